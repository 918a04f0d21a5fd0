"""Staged files under an erasure, while their tables wait: written again without the rows, wherever they are listed
(PROTOCOL X3). It loads arrays: not for every command."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from kbq_assets.core.erasure.model import Erasure, RewrittenFile
from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import (
    backlog_path,
    commit_path,
    quarantine_path,
    shard_of,
    table_state_path,
)
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.topic import WaitingFile, reached, waiting_files
from kbq_assets.pipelines.protocol import state
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets.wire.files.leave_out import RowFilter


@dataclass(frozen=True)
class StagedRows:
    """Rows of an erasure in files that no table has loaded."""

    live: Deployment
    erasure: Erasure

    def left(self) -> Iterator[tuple[WaitingFile, int]]:
        """Files that have such rows, with their number. Raises Refused for one that cannot be read."""
        for each in waiting_files(self.live, self.erasure):
            try:
                for _ in (pieces := self._pieces(each))[1]:
                    pass
            except NotFound:
                continue  # loaded meanwhile
            if left_out := pieces[0].left_out:
                yield each, left_out

    def rewritten(self) -> tuple[RewrittenFile, ...]:
        """New files without the rows, which nothing lists yet. Their tables must wait."""
        return tuple(self._copy(each) for each, _ in self.left())

    def _pieces(self, each: WaitingFile) -> tuple[RowFilter, Iterator[bytes]]:
        """A file's filter, and its bytes without the rows, which compare it with its entry at the end."""
        name = each.file.name
        wanted = reached(self.live, self.erasure).of_epoch(name.topic_partition.partition, name.epoch)
        rows = RowFilter(wanted)

        def pieces() -> Iterator[bytes]:
            try:
                with self.live.load_store.open_read(each.stored) as stream:
                    reader = ChecksumReader(stream)
                    yield from rows.contents(reader.buffered())
                    if why := damage(each.file, *reader.drain()):
                        raise BadFile(why)
            except BadFile as error:
                raise Refused(
                    f"{each.file.path} may have erased rows and cannot be read: {error.message}",
                    next_step=f"kbq quarantine drop --table {each.table} if it is in quarantine, else kbq restage"
                    f" {each.file.path}; then kbq erase resume {self.erasure.number}",
                ) from error

        return rows, pieces()

    def _copy(self, each: WaitingFile) -> RewrittenFile:
        """A copy without the rows, in a folder of its own attempt: no copy can be taken for one of E11."""
        store, file = self.live.load_store, each.file
        path = dataclasses.replace(file.name, attempt=uuid.uuid4().hex[:20]).format()
        rows, pieces = self._pieces(each)
        writer = store.open_write(quarantine_path(path) if each.is_quarantined else path)
        try:
            for piece in pieces:
                writer.write(piece)
            stored = writer.close()
        except BaseException:
            writer.abort()
            raise
        new = dataclasses.replace(
            file,
            path=path,
            rows=file.rows - rows.left_out,
            bytes=stored.size,
            crc32c=stored.crc32c,
            restaged=file.restaged + 1,
        )
        return RewrittenFile(file.path, new, rows.left_out)

    def replace(self) -> None:
        """List the new files in place of the old ones, each by one swap per object. Repeatable."""
        for each in self.erasure.staged:
            self._replace(each)

    def _replace(self, each: RewrittenFile) -> None:
        store, new = self.live.load_store, each.new
        change = partial(_new_for, each)
        tp = new.name.topic_partition
        commit = state.change(
            self.live.store,
            Commit,
            commit_path(tp.topic, shard_of(tp.partition)),
            lambda commit: commits.map_files(commit, change),
        ).value
        if each.old in commit.given_up:
            return
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
