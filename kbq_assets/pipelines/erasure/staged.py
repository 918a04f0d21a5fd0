"""Staged files under an erasure, while their tables wait: written again without the rows, wherever they are listed
(PROTOCOL X3). It loads arrays: not for every command."""

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
        """Files that have such rows, with their number; of all tables, or of some. A file that is gone counts whole
        while a job in flight may load a copy of it. Raises Refused for one that cannot be read."""
        for each in waiting_files(self.live, self.erasure):
            if tables is not None and str(each.table) not in tables:
                continue
            try:
                for _ in (pieces := self._pieces(each))[1]:
                    pass
            except NotFound:
                if is_in_job(self.live, each):
                    yield each, each.file.rows
                continue  # or loaded meanwhile
            if left_out := pieces[0].left_out:
                yield each, left_out

    def rewritten(self, tables: Container[str]) -> tuple[RewrittenFile, ...]:
        """New files without the rows, which nothing lists yet. Their tables must wait."""
        return tuple(self._copy(each) for each, _ in self.left(tables))

    def _pieces(self, each: WaitingFile, *, is_known: bool = True) -> tuple[RowFilter, Iterator[bytes]]:
        """A file's filter, and its bytes without the rows, which compare it with its entry at the end if that is
        known."""
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
                raise Refused(
                    f"{each.file.path} may have erased rows and cannot be read: {error.message}",
                    next_step=f"kbq quarantine drop --table {each.table} if it is in quarantine, else kbq restage"
                    f" {each.file.path}; then kbq erase resume {self.erasure.number}",
                ) from error

        return rows, pieces()

    def _copy(self, each: WaitingFile, *, is_known: bool = True) -> RewrittenFile:
        """A copy without the rows, in a folder of its own attempt: no copy can be taken for one of E11."""
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
        """The noted files that exist, or that something lists."""
        listed = {each.file.path for each in waiting_files(self.live, self.erasure)}
        noted = self.erasure.deletion(self._warehouse).staged
        return tuple(each for each in noted if each.old not in listed or self._exists(each.new))

    def _exists(self, file: StagedFile) -> bool:
        paths = (file.path, quarantine_path(file.path))
        return any(each.path in paths for path in paths for each in self.live.load_store.checksums(path))

    def replace(self) -> None:
        """List the new files in place of the old ones, each by one swap per object. Repeatable."""
        for each in self.erasure.deletion(self._warehouse).staged:
            made = each
            self._replace(made)
            while not self._exists(made.new) and (found := self._listed(made.new)):
                # A clean-up that ran meanwhile took it for an orphan; the old file is still there (E6).
                made = self._again(found, each, made.new)
                self._replace(made)

    def _listed(self, file: StagedFile) -> WaitingFile | None:
        return next((w for w in waiting_files(self.live, self.erasure) if w.file.path == file.path), None)

    def _again(self, lost: WaitingFile, each: RewrittenFile, copy: StagedFile) -> RewrittenFile:
        """Another copy of an old file, in place of a ``copy`` that is lost. Raises Unavailable."""
        old = dataclasses.replace(each.new, path=each.old, rows=each.new.rows + each.rows)
        try:
            made = self._copy(dataclasses.replace(lost, file=old), is_known=False)
        except NotFound as error:
            raise Unavailable(
                f"a clean-up that ran meanwhile took {copy.path} for an orphan (E6)",
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
        # The commit first: a file that moves to the backlog meanwhile is there by now (E7).
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
