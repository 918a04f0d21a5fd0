"""Erasure in staged files: rewrites them without the rows while their tables wait, wherever they are listed (PROTOCOL
X3). This module imports numpy, so commands import it only when they need it."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from functools import partial

from kbq_assets.core.erasure.model import Erasure, RewrittenFile
from kbq_assets.core.erasure.staged import for_warehouse, with_rewritten
from kbq_assets.core.errors import NotFound, Refused, Unavailable
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import (
    backlog_path,
    commit_path_of,
    quarantine_path,
    table_state_path,
)
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.topic import WaitingFile, is_in_job, reached, waiting_files
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets.wire.files.leave_out import RowFilter


@dataclass(frozen=True)
class StagedRows:
    """Rows of an erasure in files that no table has loaded."""

    live: Deployment
    erasure: Erasure

    @property
    def _warehouse(self) -> str:
        return warehouse_of(self.live.load_store)

    def left(self, tables: Container[str] | None = None) -> Iterator[tuple[WaitingFile, int]]:
        """Files with such rows, and the number of rows; for all tables, or for some. If a file is gone but a job in
        flight may load a copy of it, all its rows count. Raises Refused for a file that cannot be read."""
        for each in waiting_files(self.live, self.erasure):
            if tables is not None and str(each.table) not in tables:
                continue
            try:
                for _ in (pieces := self._pieces(each))[1]:
                    pass
            except NotFound:
                if is_in_job(self.live, each):
                    yield each, each.file.rows
                elif any(each.stored == now.stored for now in waiting_files(self.live, self.erasure)):
                    raise self._unreadable(each, "it is gone") from None
                continue  # or it was loaded meanwhile
            if left_out := pieces[0].left_out:
                yield each, left_out

    def rewritten(self, tables: Container[str]) -> tuple[RewrittenFile, ...]:
        """Write new files without the rows. Nothing lists them yet. The tables must wait."""
        return tuple(self._copy(each) for each, _ in self.left(tables))

    def _pieces(self, each: WaitingFile, *, is_known: bool = True) -> tuple[RowFilter, Iterator[bytes]]:
        """A file's filter, and its bytes without the rows. With ``is_known``, the file is compared with its entry at
        the end."""
        name = each.file.name
        wanted = reached(self.live, self.erasure).of_epoch(name.topic_partition.partition, name.epoch)
        rows = RowFilter(wanted)

        def pieces() -> Iterator[bytes]:
            try:
                with self.live.load_store.open_read(each.stored) as stream:
                    reader = ChecksumReader(stream)
                    yield from rows.contents(reader.buffered())
                    if (why := damage(each.file, *reader.drain())) and is_known:
                        raise BadFile(why)
            except BadFile as error:
                raise self._unreadable(each, error.message) from error

        return rows, pieces()

    def _unreadable(self, each: WaitingFile, why: str) -> Refused:
        return Refused(
            f"{each.file.path} may have erased rows, but cannot be read: {why}",
            next_step=f"kbq quarantine drop --table {each.table} if it is in quarantine, otherwise kbq restage"
            f" {each.file.path}; then again, or kbq erase resume {self.erasure.number} if the erasure has begun",
        )

    def _copy(self, each: WaitingFile, *, is_known: bool = True) -> RewrittenFile:
        """A copy without the rows, in the folder of a new attempt, so it cannot be confused with a copy of E11."""
        store, file = self.live.load_store, each.file
        path = dataclasses.replace(file.name, attempt=uuid.uuid4().hex[:20]).format()
        rows, pieces = self._pieces(each, is_known=is_known)
        writer = store.open_write(quarantine_path(path) if each.is_quarantined else path)
        try:
            for piece in pieces:
                writer.write(piece)
            stored = writer.close()
        except BaseException:
            writer.abort()
            raise
        new = dataclasses.replace(
            for_warehouse(file, self._warehouse),
            path=path,
            rows=file.rows - rows.left_out,
            bytes=stored.size,
            crc32c=stored.crc32c,
            restaged=file.restaged + 1,
        )
        return RewrittenFile(file.path, new, rows.left_out)

    def kept(self) -> tuple[RewrittenFile, ...]:
        """The noted files that exist, or that have replaced their old files."""
        listed = {each.file.path for each in waiting_files(self.live, self.erasure)}
        noted = self.erasure.deletion(self._warehouse).staged
        return tuple(each for each in noted if each.old not in listed or self._exists(each.new))

    def _exists(self, file: StagedFile) -> bool:
        paths = (file.path, quarantine_path(file.path))
        return any(each.path in paths for path in paths for each in self.live.load_store.checksums(path))

    def replace(self) -> None:
        """List the new files instead of the old ones, each by one swap per object. Repeatable."""
        for each in self.erasure.deletion(self._warehouse).staged:
            made = each
            self._replace(made)
            while not self._exists(made.new) and (found := self._listed(made.new)):
                # A clean-up that ran meanwhile deleted it as an orphan. The old file still exists (E6).
                made = self._again(found, each, made.new)
                self._replace(made)

    def _listed(self, file: StagedFile) -> WaitingFile | None:
        return next((w for w in waiting_files(self.live, self.erasure) if w.file.path == file.path), None)

    def _again(self, lost: WaitingFile, each: RewrittenFile, copy: StagedFile) -> RewrittenFile:
        """Another copy of an old file, to replace a lost ``copy``. Raises Unavailable."""
        old = dataclasses.replace(each.new, path=each.old, rows=each.new.rows + each.rows)
        try:
            made = self._copy(dataclasses.replace(lost, file=old), is_known=False)
        except NotFound as error:
            raise Unavailable(
                f"a clean-up that ran meanwhile deleted {copy.path} as an orphan (E6)",
                next_step=f"kbq restage {copy.path}, then kbq erase resume {self.erasure.number}",
            ) from error
        return RewrittenFile(copy.path, made.new, 0)

    def _replace(self, each: RewrittenFile) -> None:
        store, new = self.live.load_store, each.new
        change = partial(_new_for, each)
        tp = new.name.topic_partition
        state.change(
            self.live.store,
            Commit,
            commit_path_of(tp),
            lambda commit: with_rewritten(commit, each, self._warehouse),
        )
        # Change the commit first: a file that moves to the backlog meanwhile is there by then (E7).
        _change_if_there(
            partial(
                state.change, store, BacklogChunk, backlog_path(new.table, new.name.epoch, tp, new.window)
            ),
            lambda chunk: dataclasses.replace(chunk, files=tuple(map(change, chunk.files))),
        )
        path = table_state_path(new.table)
        found = state.change(store, TableState, path, partial(_with_quarantined, change)).value
        if any(bad.file.path == new.path for bad in found.quarantined):
            store.delete(quarantine_path(each.old))


def _new_for(each: RewrittenFile, file: StagedFile) -> StagedFile:
    return each.new if file.path == each.old else file


def _with_quarantined(change: Callable[[StagedFile], StagedFile], found: TableState) -> TableState:
    bad = tuple(dataclasses.replace(q, file=change(q.file)) for q in found.quarantined)
    return found if bad == found.quarantined else dataclasses.replace(found, quarantined=bad)


def _change_if_there(swap: Callable[..., object], function: Callable[[BacklogChunk], BacklogChunk]) -> None:
    try:
        swap(function)
    except NotFound:
        return
