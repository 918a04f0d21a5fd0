"""Lists bad records and files in quarantine, and retries or drops the files (PROTOCOL L13)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.quarantine import drop_quarantined, retry_quarantined
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import (
    QUARANTINE,
    STAGING,
    TableReference,
    quarantine_path,
    table_state_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.errors_replay.reparse import Parse, ReplayPorts
from kbq_assets.pipelines.operate import bad_records
from kbq_assets.pipelines.operate.bad_records import Quarantined, list_quarantined
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow


def find_quarantined(
    store: ObjectStore, files: Collection[str] = (), table: TableReference | None = None
) -> list[Quarantined]:
    """Files in quarantine that were not dropped: the named ones, those of a table, or all. Raises NotFound for an
    unknown one."""
    known = [q for q in list_quarantined(store) if not q.bad.dropped and table in (None, q.table)]
    if not files:
        return known
    by_path = {q.bad.file.path: q for q in known}
    wanted = {file: STAGING + file[file.find("/") + 1 :] for file in files}
    if unknown := [file for file, path in wanted.items() if path not in by_path]:
        raise NotFound(f"{unknown[0]} is not in quarantine", next_step="kbq quarantine list")
    return [by_path[path] for path in wanted.values()]


def propose_retry(store: ObjectStore, found: Collection[Quarantined]) -> Proposal:
    """Load files with their tables' next jobs. Raises Refused if a copy is gone."""
    present = set(store.paths(QUARANTINE)) if found else set()
    if gone := [q for q in found if quarantine_path(q.bad.file.path) not in present]:
        raise Refused(
            f"{quarantine_path(gone[0].bad.file.path)} is gone",
            next_step="restore it from a backup; or kbq quarantine drop, then kbq reset to read the range again",
        )
    return _proposal(store, "retry", found, retry_quarantined, lambda: None)


def propose_drop(store: ObjectStore, found: Collection[Quarantined]) -> Proposal:
    """Give up the rows of files, and delete their copies."""

    def delete() -> None:
        dropped = {q.bad.file.path for q in list_quarantined(store) if q.bad.dropped}
        paths = [q.bad.file.path for q in found if q.bad.file.path in dropped]
        store.delete_many(map(quarantine_path, paths))

    return _proposal(store, "drop", found, drop_quarantined, delete)


def _proposal(
    store: ObjectStore,
    verb: str,
    found: Collection[Quarantined],
    change: Callable[[TableState, Collection[str]], TableState],
    then: Callable[[], None],
) -> Proposal:
    if not found:
        raise Refused("there are no such files in quarantine", next_step="kbq quarantine list")

    def apply() -> None:
        for table in sorted({q.table for q in found}):
            paths = frozenset(q.bad.file.path for q in found if q.table == table)
            state.change(store, TableState, table_state_path(table), partial(_with, change, paths))
        then()

    becomes = {"retry": "is loaded by the next job of", "drop": "is given up, for"}[verb]
    lines = tuple(
        f"{quarantine_path(q.bad.file.path)}: {counted(q.bad.file.rows, 'row')}: {becomes} {q.table}"
        for q in found
    )
    return Proposal(f"{verb} {counted(len(found), 'file')} in quarantine", lines, apply)


def _with(
    change: Callable[[TableState, Collection[str]], TableState], paths: Collection[str], now: TableState
) -> TableState:
    return change(now, paths)


@dataclass(frozen=True)
class RejectedData:
    """Lists bad records and files in quarantine, and proposes to load or drop the files."""

    deployment: Deployment
    parse: Parse

    def error_rows(self, query: ErrorQuery) -> list[ErrorRow]:
        """Bad records of all error tables, newest first."""
        return bad_records.list_error_rows(self.deployment.warehouse, query)

    def error_rows_at(self, tp: TopicPartition, offset: int) -> list[ErrorRow]:
        """The bad record at a position, once per epoch in which it occurred. Raises NotFound."""
        return bad_records.find_error_rows(self.deployment.warehouse, tp, offset)

    def check_topic(self, topic: str) -> None:
        """Raise NotFound for a topic that was never extracted: its name is misspelled."""
        if topic not in state.topic_registry(self.deployment.store).topics:
            raise NotFound(f"nothing was extracted from {topic}", next_step="kbq status lists the topics")

    @cached_property
    def replay_ports(self) -> ReplayPorts:
        own = self.deployment
        return ReplayPorts(
            own.load_store, own.warehouse, self.parse, own.sources.select, own.sources.table_options()
        )

    def files_of(self, topic: str | None = None) -> list[bad_records.Quarantined]:
        """Files that the warehouse rejected, of one topic or of all."""
        return bad_records.list_quarantined(self.deployment.store, topic)

    def files(self, paths: Collection[str], table: TableReference | None) -> list[bad_records.Quarantined]:
        """The named files in quarantine, those of a table, or all. Raises NotFound."""
        return find_quarantined(self.deployment.load_store, paths, table)

    def retry(self, paths: Collection[str], table: TableReference | None) -> Proposal:
        """Load files from quarantine after all."""
        return propose_retry(self.deployment.load_store, self.files(paths, table))

    def drop(self, paths: Collection[str], table: TableReference | None) -> Proposal:
        """Give up the rows of files in quarantine."""
        return propose_drop(self.deployment.load_store, self.files(paths, table))
