"""Reads ranges of the broker again by the rules of extraction, without committing anything.

This shows whether extraction skips a record that has no row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from kbq_assets.core.errors import NotFound, PreconditionFailed
from kbq_assets.core.extraction.units import Unit, UnitOutcome, WindowLimits
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import STAGING, commit_path_of
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.account import Judgement
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore, ObjectWriter, StoredFile, StoredObject
from kbq_assets.worker.unit import WorkerPorts, extract_unit

#: Most ranges that one judgement reads again. Each takes a request to the broker.
MOST_RANGES: Final = 500


@dataclass(frozen=True)
class Again:
    """Extracts ranges again without keeping the files. ``settings`` are those of the topics that the source list
    selects."""

    open_ports: Callable[[], WorkerPorts]
    settings: Mapping[str, TopicSettings]

    def judge(self, commit: Commit, tp: TopicPartition, offsets: Sequence[int]) -> Judgement:
        """The records among these that extraction would stage today."""
        if tp.topic not in self.settings:
            return Judgement(problem="the source list no longer selects the topic")
        runs = list(_runs(offsets))
        if len(runs) > MOST_RANGES:
            return Judgement(problem=f"they are in {len(runs)} ranges, more than can be read again")
        rows: list[int] = []
        while runs:
            first, until = runs.pop()
            outcome = self.stage(commit, OffsetRange(tp, first, until))
            if outcome.stop is not None and outcome.stop.reason != "unknown_schema":
                # The range is committed, so an operator accepted any bad records.
                outcome = self.stage(commit, OffsetRange(tp, first, until), accepts=True)
            if problem := outcome.failure or (outcome.stop.message if outcome.stop else ""):
                return Judgement(sorted(rows), problem)
            if any(window.files for window in outcome.windows):
                if until - first == 1:
                    rows.append(first)
                else:
                    middle = (first + until) // 2
                    runs += [(first, middle), (middle, until)]
        return Judgement(sorted(rows))

    def stage(self, commit: Commit, range_: OffsetRange, *, accepts: bool = False) -> UnitOutcome:
        """Extract a range into a store that keeps nothing. ``accepts`` has the effect of `kbq resume --as-errors`."""
        return self.extract(commit, range_, ScratchStore(self.open_ports().store), accepts=accepts)

    def extract(
        self, commit: Commit, range_: OffsetRange, scratch: ScratchStore, *, accepts: bool, key: str = ""
    ) -> UnitOutcome:
        """Extract a range into a scratch store. ``key`` is the id of the pseudonym key, "" for the current one."""
        settings, ports = self.settings[range_.topic_partition.topic], self.open_ports()
        if key and (known := ports.pseudonyms()):
            earlier = dataclasses.replace(known, current=key)
            ports = dataclasses.replace(ports, pseudonyms=lambda: earlier)
        records = dataclasses.replace(settings.records, error_share=1.0)
        unit = Unit(
            range_,
            commit.epoch,
            dataclasses.replace(settings, records=records),
            accept_errors_until=range_.until_offset if accepts else 0,
            limits=WindowLimits(bytes=2**62, records=2**62, seconds=float("inf")),
        )
        scratch.written[commit_path_of(range_.topic_partition)] = StoredObject(
            codec.dumps(_commit_at(commit, range_)), 1, 0
        )
        return extract_unit(unit, dataclasses.replace(ports, store=scratch))


def _runs(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    first = until = -1
    for offset in offsets:
        if offset != until:
            if first >= 0:
                yield first, until
            first = offset
        until = offset + 1
    if first >= 0:
        yield first, until


def _commit_at(commit: Commit, range_: OffsetRange) -> Commit:
    """A commit whose position is the beginning of the range, because extraction reads nothing below the position."""
    partition, first = range_.topic_partition.partition, range_.from_offset
    state = PartitionCommit(next=first, start=first)
    return dataclasses.replace(commit, partitions={**commit.partitions, partition: state}, given_up=())


@dataclass
class ScratchStore:
    """A store over a real one. State objects stay in memory, and staged files are dropped unless ``keeps_files``."""

    real: ObjectStore
    keeps_files: bool = False
    written: dict[str, StoredObject] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)

    def discard(self) -> None:
        """Delete the kept files. If this fails, the clean-up deletes them."""
        if self.files:
            self.real.delete_many(self.files)

    def get(self, path: str) -> StoredObject:
        """Read an object. If it was changed here, this is the changed one."""
        return self.written.get(path) or self.real.get(path)

    def create(self, path: str, data: bytes) -> int:
        """Write an object to memory."""
        try:
            self.get(path)
        except NotFound:
            return self._write(path, data)
        raise PreconditionFailed(f"{path} exists")

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Do nothing, because these are hints for others."""
        return {}

    def swap(self, path: str, data: bytes, generation: int) -> int:
        if self.get(path).generation != generation:
            raise PreconditionFailed(f"{path} changed")
        return self._write(path, data)

    def _write(self, path: str, data: bytes) -> int:
        generation = -len(self.written) - 1
        self.written[path] = StoredObject(data, generation, 0)
        return generation

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        return self.real.list(prefix, start_after)

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        return self.real.paths(prefix, start_after)

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        return self.real.checksums(prefix)

    def delete(self, path: str) -> None:
        """Do nothing."""

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Do nothing."""
        return {}

    def copy(self, source: str, target: str) -> None:
        """Do nothing."""

    def open_write(self, path: str) -> ObjectWriter:
        """Count the bytes of a staged file, or write it."""
        assert path.startswith(STAGING), path
        if not self.keeps_files:
            return _Nothing(path)
        self.files.append(path)
        return self.real.open_write(path)

    def open_read(self, path: str) -> BinaryIO:
        return self.real.open_read(path)

    def uri(self, path: str) -> str:
        return self.real.uri(path)

    def now_ms(self) -> int:
        return self.real.now_ms()

    def sweep_temporary(self) -> int:
        """Do nothing."""
        return 0


@dataclass
class _Nothing:
    """A staged file that is not kept."""

    path: str
    size: int = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        size = len(data) if not isinstance(data, memoryview) else data.nbytes
        self.size += size
        return size

    def close(self) -> StoredFile:
        return StoredFile(self.path, self.size, "")

    def abort(self) -> None:
        pass
