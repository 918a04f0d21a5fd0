"""One of the warehouses of an erasure. If it does not answer, only its own rows wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbq_assets.core.erasure.model import Erasure, erasure_path
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import KbqError, Refused, TransientError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.rows import RowDeleter, count_rows
from kbq_assets.pipelines.erasure.topic import ErasedTopic
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.spine import Spine
from kbq_assets.ports.compaction import OpenRewriter, Rewriter
from kbq_assets.ports.erasure import ErasedRows, ErasureTables

if TYPE_CHECKING:
    from kbq_assets.pipelines.erasure.staged import StagedRows


@dataclass(frozen=True)
class ErasedWarehouse:
    """A warehouse's deployment, and Spark for many bytes of a lake."""

    live: Deployment
    open_rewriter: OpenRewriter

    @classmethod
    def of(cls, spine: Spine) -> ErasedWarehouse:

        def open_rewriter() -> AbstractContextManager[Rewriter]:
            return spine.compactor.open_rewriter()  # imports Spark, which few erasures need

        return cls(spine.deployment, open_rewriter)

    @property
    def name(self) -> str:
        """The warehouse's name in stored state; "" for the first."""
        return self.live.settings.warehouse_area

    @property
    def tables(self) -> ErasureTables:
        """The warehouse's operations for erasures. Raises Refused if it has none."""
        if (found := self.live.warehouse.erasures) is None:
            raise Refused(
                f"rows of {self._named('this warehouse')} cannot be erased yet",
                next_step="docs/erasure.md lists what you must delete by hand",
            )
        return found

    def find(
        self, topic: str, column: str, value: str, limit: int
    ) -> tuple[list[TableReference], Mapping[TableReference, RowPlaces]]:
        """The tables that a topic may feed, and the matching rows of all tables that have the column. Raises
        Unavailable."""
        erased = ErasedTopic.read(self.live, topic)
        tables = erased.tables(self.live)
        fed = [table for table in tables if erased.may_feed(table)]
        return fed, self.tables.find(tables, topic, column, value, limit)

    def statement_gaps(self, topic: str) -> Iterator[str]:
        """Lines about tables whose earlier rows a search by column cannot find."""
        for table in ErasedTopic.read(self.live, topic).statement_tables():
            yield (
                f"{self.label}{table}: replaced records and deleted keys are found only by --key, but a reset would"
                " bring them back"
            )

    def sql_tables(self, topic: str) -> list[str]:
        """Tables that the user's own SQL maintains, with the warehouse's name."""
        return [f"{self.label}{table}" for table in ErasedTopic.read(self.live, topic).sql_tables()]

    def plan(self, erasure: Erasure) -> Iterator[str]:
        """Lines about the rows and files that an erasure deletes. Raises Refused."""
        try:
            found = count_rows(self.live, self.tables, erasure)
        except TransientError as error:
            yield f"{self._named('the warehouse')} does not answer, so the erasure waits for it: {error.message}"
        else:
            for table, rows in found.items():
                yield f"{self.label}{table}: {counted(_total(rows), 'row is', 'rows are')} deleted"
        if files := list(self._staged(erasure).left()):
            rows_left = sum(left for _, left in files)
            rewritten = counted(len(files), "file is", "files are")
            yield f"{self.label}staged: {rewritten} rewritten without {counted(rows_left, 'row')}"

    def keeps(self, erasure: Erasure) -> Iterator[str]:
        """Lines about where, and how long, the warehouse itself keeps deleted rows."""
        try:
            erased = ErasedTopic.read(self.live, erasure.topic)
            tables = [table for table in erased.tables(self.live) if erased.may_feed(table)]
            yield from (f"beyond reach: {self.label}{line}" for line in self.tables.keeps(tables))
        except TransientError as error:
            yield f"beyond reach: what {self._named('the warehouse')} keeps is unknown: {error.message}"

    def delete(self, number: int) -> KbqError | None:
        """Delete the rows. Return the error if that failed, and store its message in the erasure."""
        found: KbqError | None = None
        try:
            RowDeleter(self.live, self.tables, self.open_rewriter).run(number)
        except KbqError as error:
            found = error
        self._note(number, f"{found.message}; {found.next_step}" if found else "")
        return found

    def left(self, erasure: Erasure) -> Iterator[str]:
        """The rows and files that an erasure has not deleted. Raises Unavailable."""
        # Search the files first: if a job loads one meanwhile, the search of the tables finds it.
        for each, left in self._staged(erasure).left():
            yield f"{self.label}{each.file.path}: {counted(left, 'row')}"
        for table, rows in count_rows(self.live, self.tables, erasure).items():
            yield f"{self.label}{table}: {counted(_total(rows), 'row')}"

    def _note(self, number: int, problem: str) -> None:
        def noted(now: Erasure) -> Erasure:
            own = dataclasses.replace(now.deletion(self.name), problem=problem)
            return now.with_deletion(self.name, own)

        state.change(self.live.store, Erasure, erasure_path(number), noted)

    def _staged(self, erasure: Erasure) -> StagedRows:
        from kbq_assets.pipelines.erasure.staged import StagedRows  # imports numpy

        return StagedRows(self.live, erasure)

    @property
    def label(self) -> str:
        """The prefix of lines about this warehouse."""
        return f"{self.name}: " if self.name else ""

    def _named(self, unnamed: str) -> str:
        return f"warehouse {self.name}" if self.name else unnamed


def _total(rows: Mapping[tuple[int, int], ErasedRows]) -> int:
    return sum(each.rows for each in rows.values())
