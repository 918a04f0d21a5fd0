"""One unit of extraction: read a range, write the files of its windows (PROTOCOL E3)."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from kbq_assets.core import codec
from kbq_assets.core.commits import Commit, Stop, Window
from kbq_assets.core.errors import KbqError, NotFound, OffsetOutOfRange
from kbq_assets.core.names import commit_path, shard_of
from kbq_assets.core.offsets import OffsetRange
from kbq_assets.core.units import Unit, UnitOutcome
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import Batch, Source
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import SchemaRegistry
from kbq_assets.worker.routes import Routes
from kbq_assets.worker.window import StopWindow, WindowWriter


def random_attempt() -> str:
    """A folder name no other attempt has: a zombie overwrites nothing."""
    return uuid.uuid4().hex[:20]


@dataclass(frozen=True)
class WorkerPorts:
    """The world of a task."""

    store: ObjectStore
    source: Source
    registry: SchemaRegistry
    clock: Clock
    new_attempt: Callable[[], str] = random_attempt


def extract_unit(unit: Unit, ports: WorkerPorts) -> UnitOutcome:
    """Read a unit. Never raises a KbqError: what went wrong is in the outcome, with the windows finished before."""
    started, cpu = ports.clock.monotonic(), ports.clock.cpu_seconds()
    read = _Read()
    stop: Stop | None = None
    failure = ""
    try:
        if _is_superseded(unit, ports.store):
            return UnitOutcome(unit, superseded=True)
        _read_windows(unit, ports, read)
    except StopWindow as stopped:
        stop = stopped.stop
    except KbqError as error:
        failure = f"{type(error).__name__}: {error}"
    return UnitOutcome(
        unit,
        tuple(read.windows),
        stop,
        failure,
        seconds=ports.clock.monotonic() - started,
        first_leader_epoch=read.first_leader_epoch,
        core_seconds=ports.clock.cpu_seconds() - cpu,
    )


@dataclass
class _Read:
    """What a task has so far."""

    windows: list[Window] = field(default_factory=list)
    first_leader_epoch: int = -1
    epoch_until: int = 0

    def note(self, batch: Batch, range_: OffsetRange) -> None:
        """Take note of a batch's leader epoch and last record. Raises OffsetOutOfRange for records before the range."""
        if len(batch.chunk) == 0:
            return
        if int(batch.chunk.offsets[0]) < range_.from_offset:
            raise OffsetOutOfRange(
                f"{range_}: there are records before it where there were none: the log was truncated",
                next_step="kbq plan names the commands that go on",
            )
        self.epoch_until = int(batch.chunk.offsets[-1]) + 1
        if self.first_leader_epoch < 0:
            self.first_leader_epoch = batch.leader_epoch

    def end(self, window: Window) -> None:
        """Add a finished window."""
        has_records = self.epoch_until > window.first
        self.windows.append(dataclasses.replace(window, epoch_until=self.epoch_until if has_records else 0))


def _is_superseded(unit: Unit, store: ObjectStore) -> bool:
    """A duplicate attempt checks the commit first: Spark may run a task twice. The commit may well be before the unit:
    what is below it is being read, or waits to be published."""
    tp = unit.range.topic_partition
    path = commit_path(tp.topic, shard_of(tp.partition))
    try:
        commit = codec.loads(Commit, store.get(path).data, path)
    except NotFound:
        return True
    return commit.epoch != unit.epoch or commit.partitions[tp.partition].next > unit.range.from_offset


def _read_windows(unit: Unit, ports: WorkerPorts, read: _Read) -> None:
    settings, attempt = unit.settings, ports.new_attempt()
    routes = Routes(unit.range.topic_partition.topic, settings, ports.registry)
    to_errors = "error_table" in (settings.errors, settings.tombstones) or unit.accept_errors_until > 0
    batches = ports.source.read(
        unit.read_range,
        leader_epoch=unit.leader_epoch,
        keys=settings.keys or to_errors or settings.tombstones == "row",
        headers=settings.headers,
    )
    windows = read.windows
    writer: WindowWriter | None = None
    try:
        for batch in batches:
            read.note(batch, unit.range)
            if batch.position < unit.range.from_offset:
                continue
            if writer is None:
                first = windows[-1].until if windows else unit.range.from_offset
                writer = WindowWriter(unit, first, attempt, routes, ports.store)
                opened = ports.clock.monotonic()
            writer.add(batch)
            if _is_full(writer, unit, ports.clock.monotonic() - opened):
                read.end(writer.close())
                writer = None
        if writer is not None and writer.position > writer.first:
            read.end(writer.close())
            writer = None
    finally:
        if writer is not None:
            writer.abort()


def _is_full(writer: WindowWriter, unit: Unit, seconds: float) -> bool:
    limits = unit.limits
    too_big = writer.bytes_written >= limits.bytes or writer.records >= limits.records
    return writer.position > writer.first and (too_big or seconds >= limits.seconds)
