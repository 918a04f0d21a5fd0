"""Reads the range of one staged file again, and replaces the file in commit and backlog (PROTOCOL L14).

For files that are gone or damaged while Kafka still has their records. The marks use only parts of a file's name that
the old and the new file share. So if one of the two is loaded, the other is not.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from kbq_assets.core.errors import NotFound, Refused, Unavailable
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.extraction.units import Unit, UnitOutcome, WindowLimits
from kbq_assets.core.loading.batches import identity
from kbq_assets.core.loading.table_state import mark_key
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import (
    STAGING,
    StagedFileName,
    backlog_path,
    commit_path_of,
)
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.topics.ordering_options import HOUR, is_late_table
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.verification import StagedContents
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: Extracts a committed unit again, into the folder of a new attempt.
ReadAgain = Callable[[Unit], UnitOutcome]
#: Every hour is before this one.
_ALL_LATE: Final = 2**62


@dataclass(frozen=True)
class RestagePorts:
    """The ports of restaging. ``settings`` returns the options of the given topics that the source list selects."""

    store: ObjectStore
    offsets: OffsetReader
    read_again: ReadAgain
    settings: Callable[[list[str]], Mapping[str, TopicSettings]]


def propose_restage(ports: RestagePorts, path: str) -> Proposal:
    """Read a staged file's range again. Raises Refused if its rows may be loaded, or the broker has other records."""
    restage = _Restage(ports, StagedFileName.parse(path[max(path.find(STAGING), 0) :]))
    file = restage.find()
    restage.check_table(file)
    if not file.rows:
        line = "an erasure left it no row: removes its entry"
        return Proposal(f"restage {file.path}", (line,), lambda: restage.drop(file))
    restage.check_broker(file)
    found = StagedContents(ports.store, math.inf).unsound([file])
    now = found.message if found else f"{file.path} is intact: this is not necessary"
    lines = (
        now,
        f"reads {restage.range_of(file)} again, for {counted(file.rows, 'row')} of {file.table},"
        f" schema id {file.name.schema_id}",
        f"then: kbq resume --table {file.table}, if it is parked",
    )
    return Proposal(f"restage {file.path}", lines, lambda: restage.apply(file))


class _Restage:
    def __init__(self, ports: RestagePorts, name: StagedFileName) -> None:
        self._ports, self._name = ports, name
        tp = name.topic_partition
        self._commit_path = commit_path_of(tp)

    @property
    def _give_up(self) -> str:
        topic = self._name.topic_partition.topic
        return (
            f"kbq reset --topic {topic} --give-up-pending begins a new epoch without it, and reads all again"
        )

    def find(self) -> StagedFile:
        """The file's entry in its commit or backlog. Raises NotFound."""
        path, topic = self._name.format(), self._name.topic_partition.topic
        found = state.find(self._ports.store, Commit, self._commit_path)
        if found is None:
            raise NotFound(f"{topic} has no commit", next_step="kbq status lists the topics")
        commit = found.value
        areas = state.areas(self._ports.store).values()
        chunks = [chunk for area in areas for chunk in state.read_backlog(area, self._name.table)]
        listed = [*commit.files, *(file for chunk in chunks for file in chunk.value.files)]
        file = next((file for file in listed if file.path == path), None)
        if file is None or path in commit.given_up:
            raise NotFound(
                f"neither commit nor backlog lists {path}",
                next_step="kbq status shows the files of parked tables; loaded files, and files that a reset gave up, "
                "cannot be restaged",
            )
        partition = commit.partitions[self._name.topic_partition.partition]
        if partition.since > self._name.epoch:
            raise Refused(f"{path}: the partition was reset since then", next_step=self._give_up)
        return file

    def check_table(self, file: StagedFile) -> None:
        """Raise Refused if all warehouses have loaded the file, or if one has it in its load job in flight."""
        states = state.warehouse_states(self._ports.store)
        if states.is_loaded(file):
            raise Refused(
                f"{file.path} is below the mark of {file.table}: its rows are loaded or in quarantine",
                next_step=f"kbq quarantine list --table {file.table}",
            )
        for in_flight in states.jobs_in_flight(file.table):
            if identity(file) in {
                identity(f) for f in (*in_flight.files, *(q.file for q in in_flight.quarantined))
            }:
                raise Refused(
                    f"{file.path} is in load job {in_flight.job_id}",
                    next_step="kbq load, to end the job; if the table is parked, resume it first",
                )

    def check_broker(self, file: StagedFile) -> None:
        """Raise Refused unless the broker has the range in the same log."""
        tp, range_ = self._name.topic_partition, self.range_of(file)
        commit = state.read(self._ports.store, Commit, self._commit_path).value
        offsets, topic = self._ports.offsets, self._ports.offsets.topics([tp.topic]).get(tp.topic)
        if topic is None or topic.topic_id != commit.topic_id or offsets.cluster_id() != commit.cluster_id:
            raise Refused(f"the broker no longer has the topic of {range_}", next_step=self._give_up)
        broker = offsets.offsets([tp]).get(tp)
        if (
            broker is None
            or not broker.earliest <= range_.from_offset <= range_.until_offset <= broker.latest
        ):
            has = f"[{broker.earliest}, {broker.latest})" if broker else "nothing"
            raise Refused(f"Kafka no longer has {range_}: it has {has}", next_step=self._give_up)

    def range_of(self, file: StagedFile) -> OffsetRange:
        """The positions of the file's rows. A file of one hour has rows from its whole window."""
        topic = self._name.topic_partition.topic
        settings = self._ports.settings([topic]).get(topic)
        by_hour = settings is not None and settings.ordering.order == HOUR
        first = file.window if by_hour else self._name.first_offset
        return OffsetRange(self._name.topic_partition, first, file.until)

    def apply(self, file: StagedFile) -> None:
        """Read, compare, and replace the file where it is listed."""
        store = self._ports.store
        new = self._read(file)
        self.check_table(file)
        replace = partial(_replaced, file, new)
        changed = state.change(
            store, Commit, self._commit_path, lambda commit: commits.map_files(commit, replace)
        ).value
        # Change the commit first: a file that moves to the backlog meanwhile is there by then (E7).
        waiting = self._change_backlogs(file, lambda files: tuple(map(replace, files)))
        if new.path not in {f.path for f in (*changed.files, *waiting)}:
            raise Refused(f"{file.path} is no longer listed", next_step="kbq status; nothing was changed")
        if StagedContents(store, math.inf).unsound([new]):
            raise Unavailable(
                f"a clean-up that ran meanwhile deleted {new.path} as an orphan (E6)",
                next_step=f"kbq restage {new.path}",
            )

    def drop(self, file: StagedFile) -> None:
        """Remove the entry of a file without rows, which no range gives again."""
        self.check_table(file)
        drop = partial(commits.drop_files, dropped=lambda each: each.path == file.path)
        state.change(self._ports.store, Commit, self._commit_path, drop)
        self._change_backlogs(file, lambda files: tuple(f for f in files if f.path != file.path))

    def _change_backlogs(
        self, file: StagedFile, change: Callable[[tuple[StagedFile, ...]], tuple[StagedFile, ...]]
    ) -> list[StagedFile]:
        """Change the chunks that may list a file; return the files that they list then."""
        path = backlog_path(file.table, self._name.epoch, self._name.topic_partition, file.window)
        return [
            f for area in state.areas(self._ports.store).values() for f in _changed_in(area, path, change)
        ]

    def _read(self, file: StagedFile) -> StagedFile:
        """A new file with the same rows. Raises Refused if the range has other rows now."""
        topic = self._name.topic_partition.topic
        settings = self._ports.settings([topic]).get(topic)
        if settings is None:
            raise Refused(f"the source list no longer selects {topic}", next_step="add it for this command")
        outcome = self._extract(file, settings)
        staged = [f for window in outcome.windows for f in window.files]
        alike = [f for f in staged if _is_like(f, file)]
        # Files of several hours may have the same number of rows; otherwise the window has one file of each schema.
        by_hour = settings.ordering.order == HOUR
        new = [f for f in alike if identity(f) == identity(file)] if by_hour else alike
        self._ports.store.delete_many([f.path for f in staged if f not in new])
        if outcome.failure:
            raise Unavailable(f"{file.path}: {outcome.failure}", next_step="run the command again")
        if len(new) != 1:
            why = outcome.stop.message if outcome.stop else "the range has other rows now"
            raise Refused(
                f"{file.path} had {counted(file.rows, 'row')}; {why} (compaction, an erasure, or other options of the"
                " topic)",
                next_step=self._give_up,
            )
        return dataclasses.replace(
            new[0],
            path=self._under_first_offset(new[0]),
            window=file.window,
            until=file.until,
            oldest_ms=file.oldest_ms,
            restaged=file.restaged + 1,
            warehouses=file.warehouses,
        )

    def _under_first_offset(self, new: StagedFile) -> str:
        """The new file's path, under the old file's first offset: marks know a file by it, and an erasure may have
        removed the record there."""
        path = dataclasses.replace(new.name, first_offset=self._name.first_offset).format()
        if path != new.path:
            writer = self._ports.store.open_write(path)
            try:
                with self._ports.store.open_read(new.path) as stream:
                    shutil.copyfileobj(stream, writer)
                writer.close()
            except BaseException:
                writer.abort()
                raise
            self._ports.store.delete_many([new.path])
        return path

    def _extract(self, file: StagedFile, settings: TopicSettings) -> UnitOutcome:
        """Extract the range into one window. Accept any bad records, because an operator may have accepted them."""
        records = dataclasses.replace(settings.records, error_share=1.0)
        is_late = is_late_table(file.table, [settings.ordering])
        unit = Unit(
            self.range_of(file),
            self._name.epoch,
            dataclasses.replace(settings, records=records),
            limits=WindowLimits(2**62, 2**62, math.inf, 2**62, _ALL_LATE if is_late else 0),
        )
        outcome = self._ports.read_again(unit)
        if outcome.stop is None:
            return outcome
        self._ports.store.delete_many([f.path for window in outcome.windows for f in window.files])
        return self._ports.read_again(dataclasses.replace(unit, accept_errors_until=file.until))


def _changed_in(
    store: ObjectStore, path: str, change: Callable[[tuple[StagedFile, ...]], tuple[StagedFile, ...]]
) -> tuple[StagedFile, ...]:
    """The files of a backlog chunk after a change; empty if there is no such chunk."""
    try:
        return state.change(
            store, BacklogChunk, path, lambda chunk: dataclasses.replace(chunk, files=change(chunk.files))
        ).value.files
    except NotFound:
        return ()


def _is_like(new: StagedFile, old: StagedFile) -> bool:
    """Whether a file can replace another one. Its first offset may be higher: an erasure may have removed the record
    there."""
    return (mark_key(new), new.table, new.rows) == (mark_key(old), old.table, old.rows)


def _replaced(old: StagedFile, new: StagedFile, file: StagedFile) -> StagedFile:
    return new if file.path == old.path else file
