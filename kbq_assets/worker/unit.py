"""One unit of extraction: read a range, write the files of its windows (PROTOCOL E3)."""

from __future__ import annotations

import dataclasses
import logging
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from kbq_assets.core.errors import (
    ConfigurationError,
    ConflictError,
    KbqError,
    NotFound,
    OffsetOutOfRange,
    SchemaChanged,
    TransientError,
    Unavailable,
    UnreadableBatch,
)
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, Stop, Window
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.destinations import PythonRoute
from kbq_assets.core.topics.evolution import PARK
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import RecordBatch, RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import WriterSchemas
from kbq_assets.worker.pinned_schemas import PinnedSchemas
from kbq_assets.worker.privacy.avro import ErrorCopies
from kbq_assets.worker.schema_variants import SchemaVariants
from kbq_assets.worker.table_selection import Choice
from kbq_assets.worker.translators import open_routes
from kbq_assets.worker.window import Staging, StopWindow, WindowWriter

if TYPE_CHECKING:
    from kbq_assets.wire.privacy.sealing import SealKey

LOGGER: Final = logging.getLogger("kbq.staging")


def random_attempt() -> str:
    """A folder name that no other attempt has, so a zombie overwrites nothing."""
    return uuid.uuid4().hex[:20]


def _no_route(name: str) -> PythonRoute:
    raise ConfigurationError(
        f"route=python:{name}: there are no routes here", next_step="see the worker's ports"
    )


@dataclass(frozen=True)
class WorkerPorts:
    """What a task needs. Only topics with personal data call ``pseudonyms`` and ``seal_key``; ``find_route`` finds
    routes of other packages by name."""

    store: ObjectStore
    source: RecordSource
    registry: WriterSchemas
    clock: Clock
    new_attempt: Callable[[], str] = random_attempt
    pseudonyms: Callable[[], Pseudonyms | None] = lambda: None
    seal_key: Callable[[], SealKey | None] = lambda: None
    find_route: Callable[[str], PythonRoute] = _no_route
    #: fingerprints of schemas that need no second write; None writes each with every window
    written_schemas: set[str] | None = None


def extract_units(units: Sequence[Unit], ports: WorkerPorts) -> Iterator[UnitOutcome]:
    """Read a task's units one after another, within the task's time.

    After one unit found a remote system out of reach, the next ones do not wait for brokers: if all brokers are down,
    each unit would wait its whole time.
    """
    started, waited = ports.clock.monotonic(), _seconds_waited(units[0], ports.clock.now_ms())
    is_patient = True
    commits = _Commits(ports.store)
    for number, unit in enumerate(units):
        left = unit.task_seconds - waited - (ports.clock.monotonic() - started)
        if number and left <= 0:
            yield UnitOutcome(unit)
            continue
        outcome = extract_unit(unit, ports, left, is_patient=is_patient, commits=commits)
        is_patient = is_patient and not outcome.is_unavailable
        yield outcome


def _seconds_waited(unit: Unit, now_ms: int) -> float:
    """Seconds that a task waited for an executor; 0 if the clocks of driver and worker contradict each other."""
    seconds = (now_ms - unit.handed_ms) / 1000
    return seconds if unit.handed_ms and 0 <= seconds < unit.task_seconds else 0.0


def extract_unit(
    unit: Unit,
    ports: WorkerPorts,
    seconds: float = math.inf,
    *,
    is_patient: bool = True,
    commits: _Commits | None = None,
    again: bool = False,
) -> UnitOutcome:
    """Read a unit, for at most ``seconds``; one that is committed only with ``again``. It raises no Exception: the
    outcome has the failure, and the windows finished before it."""
    started, cpu = ports.clock.monotonic(), ports.clock.cpu_seconds()
    read = _Read()
    stop: Stop | None = None
    failure, is_unavailable = "", False
    try:
        commit = (commits or _Commits(ports.store)).find(unit)
        if commit is None or (not again and _is_superseded(unit, commit)):
            return UnitOutcome(unit, superseded=True)
        read.has_order = [*commit.partitions] == [0]
        read.schemas = PinnedSchemas(ports.registry, commit.schema_ids)
        ports = dataclasses.replace(ports, registry=read.schemas)
        _read_windows(unit, ports, read, min(seconds, unit.seconds), is_patient)
    except StopWindow as stopped:
        stop = stopped.stop
    except UnreadableBatch as batch:
        stop = _stop_at(unit, read, batch.reason, batch.message, batch.until)
    except SchemaChanged as changed:
        stop = _stop_at(unit, read, StopReason.SCHEMA_CHANGED, changed.message, read.position)
    except (TransientError, ConflictError, NotFound, OSError, MemoryError) as error:
        failure, is_unavailable = f"{type(error).__name__}: {error}", isinstance(error, Unavailable)
    except (
        Exception
    ) as error:  # the next run would fail, too; it stops this unit, never its neighbors in the task
        if not isinstance(error, KbqError):
            LOGGER.exception("%s failed", unit.range)
        stop = _stop_for(unit, read, error)
    return UnitOutcome(
        unit,
        tuple(read.windows),
        stop,
        failure,
        seconds=ports.clock.monotonic() - started,
        first_leader_epoch=read.first_leader_epoch,
        core_seconds=ports.clock.cpu_seconds() - cpu,
        opened_ms=tuple(read.opened_ms),
        evolved=tuple(sorted(read.variants.evolved)) if read.variants else (),
        schema_ids=read.schemas.seen if read.schemas else {},
        is_unavailable=is_unavailable,
    )


def _stop_for(unit: Unit, read: _Read, error: Exception) -> Stop:
    """The stop after an error that does not pass by itself: another log, a setting, damaged state, a defect."""
    reason = StopReason.LOG_CHANGED if isinstance(error, OffsetOutOfRange) else StopReason.FAILED
    message, step = f"{type(error).__name__}: {error}", "report a bug with the log of this task"
    if isinstance(error, KbqError):
        message, step = error.message, error.next_step
    until = unit.range.until_offset
    return _stop_at(unit, read, reason, f"{message}; {step}" if step else message, until)


@dataclass
class _Read:
    """A unit's results so far."""

    windows: list[Window] = field(default_factory=list)
    opened_ms: list[int] = field(default_factory=list)
    position: int = 0
    first_leader_epoch: int = -1
    epoch_until: int = 0
    variants: SchemaVariants | None = None
    schemas: PinnedSchemas | None = None
    #: whether the topic has one partition, so that all of its records have an order
    has_order: bool = False

    def note(self, batch: RecordBatch, range_: OffsetRange) -> None:
        """Note a batch's leader epoch and last record. Raises OffsetOutOfRange for records before the range."""
        self.position = batch.position
        if len(batch.chunk) == 0:
            return
        if int(batch.chunk.offsets[0]) < range_.from_offset:
            raise OffsetOutOfRange(
                f"{range_}: the log was truncated: records precede the range where there were none",
                next_step="kbq plan shows the commands that fix it",
            )
        self.epoch_until = int(batch.chunk.offsets[-1]) + 1
        if self.first_leader_epoch < 0:
            self.first_leader_epoch = batch.leader_epoch

    def end(self, window: Window) -> None:
        """Add a finished window."""
        has_records = self.epoch_until > window.first
        self.windows.append(dataclasses.replace(window, epoch_until=self.epoch_until if has_records else 0))


class _Commits:
    """The commits of a task's units. Each is read once: its units began when the task did."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._read: dict[str, Commit | None] = {}

    def find(self, unit: Unit) -> Commit | None:
        """The commit of a unit; None if there is none."""
        path = commit_path(unit.range.topic_partition.topic, shard_of(unit.range.topic_partition.partition))
        if path not in self._read:
            try:
                self._read[path] = codec.loads(Commit, self._store.get(path).data, path)
            except NotFound:
                self._read[path] = None
        return self._read[path]


def _is_superseded(unit: Unit, commit: Commit) -> bool:
    """Whether another attempt published the unit: Spark may run a task twice. The commit may be below the unit, while
    earlier slices are read or wait to be published."""
    position = commit.partitions[unit.range.topic_partition.partition].next
    return commit.epoch != unit.epoch or position > unit.range.from_offset


def _open(
    unit: Unit, ports: WorkerPorts, read: _Read, wait_seconds: float
) -> tuple[Iterator[RecordBatch], Callable[[int], WindowWriter]]:
    """The unit's batches, and a function that opens the writer of a window from a position on."""
    settings, attempt = unit.settings, ports.new_attempt()
    read.variants = _variants(settings, ports)
    topic = unit.range.topic_partition.topic
    choice = Choice(topic, settings, ports.find_route) if settings.destination.by_record else None
    translator, routes = open_routes(topic, settings, ports, read.variants, choice, has_order=read.has_order)
    is_accepting = unit.accept_errors_until > unit.range.from_offset
    # Otherwise records of schemas with undecided fields stop their window.
    copies = None
    if settings.privacy.decisions or is_accepting:
        copies = ErrorCopies.of(settings, ports.seal_key, ports.registry)
    records = settings.records
    to_errors = "error_table" in (records.errors, records.tombstones) or unit.accept_errors_until > 0
    to_errors |= choice is not None  # records without a table
    batches = ports.source.read(
        unit.read_range,
        leader_epoch=unit.leader_epoch,
        keys=settings.keys.are_stored or to_errors or records.tombstones == "row",
        headers=records.headers
        or records.framing == "header"
        or (choice is not None and choice.needs_headers),
        wait_seconds=wait_seconds,
    )
    staging = Staging(unit, attempt, routes, ports.store, translator, copies, ports.written_schemas)
    return batches, partial(WindowWriter, staging)


def _read_windows(unit: Unit, ports: WorkerPorts, read: _Read, seconds: float, is_patient: bool) -> None:
    started = ports.clock.monotonic()
    batches, new_window = _open(unit, ports, read, seconds if is_patient else 0.0)
    windows = read.windows
    writer: WindowWriter | None = None
    try:
        for batch in batches:
            read.note(batch, unit.range)
            if batch.position < unit.range.from_offset:
                continue
            if writer is None:
                writer = new_window(windows[-1].until if windows else unit.range.from_offset)
                opened = ports.clock.monotonic()
                read.opened_ms.append(ports.clock.now_ms())
            writer.add(batch)
            now = ports.clock.monotonic()
            is_late = now - started >= seconds and writer.position > writer.first
            if is_late or _is_full(writer, unit, now - opened):
                read.end(writer.close())
                writer = None
            if is_late:
                break
        if writer is not None and writer.position > writer.first:
            read.end(writer.close())
            writer = None
    except UnreadableBatch:
        if writer is not None and writer.position > writer.first:
            read.end(writer.close())
            writer = None
        raise
    finally:
        if writer is not None:
            writer.abort()


def _stop_at(unit: Unit, read: _Read, reason: str, message: str, until: int) -> Stop:
    """A stop after the finished windows."""
    first = read.windows[-1].until if read.windows else unit.range.from_offset
    until = max(until, first + 1)
    return Stop(reason, f"{unit.range.topic_partition} [{first}, {until}): {message}", first, until)


def _variants(settings: TopicSettings, ports: WorkerPorts) -> SchemaVariants | None:
    """Variants for schemas that contradict their table; None if such tables are parked, or cannot occur (payloads)."""
    if settings.destination.on_incompatible == PARK or settings.records.format == "json":
        return None
    return SchemaVariants(ports.store, settings.destination.on_incompatible)


def _is_full(writer: WindowWriter, unit: Unit, seconds: float) -> bool:
    limits = unit.limits
    too_big = writer.bytes_written >= limits.bytes or writer.records >= limits.records
    return writer.position > writer.first and (too_big or seconds >= limits.seconds)
