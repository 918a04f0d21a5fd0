"""One unit of extraction: read a range and write its windows' files (PROTOCOL E3)."""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kbq_assets.adapters.backup import BackupLog, BackupSource
from kbq_assets.core.backup.backup_names import state_path
from kbq_assets.core.erasure import offset_sets as sets
from kbq_assets.core.erasure.model import ErasureLog
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import (
    ConfigurationError,
    NotFound,
    OffsetOutOfRange,
    UnreadableBatch,
)
from kbq_assets.core.extraction.units import Outage, Unit, UnitOutcome, WorkerProcess
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.topics.evolution import PARK
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.backup_schemas import BackedUpSchemas
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import ReadOptions, RecordBatch, RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import WriterSchemas
from kbq_assets.wire.files.hour_files import UnitHours
from kbq_assets.wire.privacy.json import LostValues
from kbq_assets.worker.backup import BackupTarget, BackupWindowWriter
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.backup_schemas import KeptSchemas
from kbq_assets.worker.erased_records import read_log, without
from kbq_assets.worker.outputs import Output, go_on
from kbq_assets.worker.pinned_schemas import PinnedSchemas
from kbq_assets.worker.privacy.avro import ErrorCopies
from kbq_assets.worker.schema_variants import SchemaVariants
from kbq_assets.worker.table_selection import Choice
from kbq_assets.worker.translators import open_routes
from kbq_assets.worker.unit_hours import hours_of
from kbq_assets.worker.window import Staging, WindowWriter

if TYPE_CHECKING:
    from kbq_assets.wire.privacy.sealing import SealKey


def random_attempt() -> str:
    """A folder name unique to this attempt, so that a zombie task overwrites nothing."""
    return uuid.uuid4().hex[:20]


def _no_backup(settings: TopicSettings) -> BackupPlace:
    raise ConfigurationError("there are no backups here", next_step="see the worker's ports")


@dataclass(frozen=True)
class WorkerPorts:
    """The ports of a task. ``pseudonyms`` and ``seal_key`` are called only for topics with personal data."""

    store: ObjectStore
    source: RecordSource
    registry: WriterSchemas
    clock: Clock
    new_attempt: Callable[[], str] = random_attempt
    pseudonyms: Callable[[], Pseudonyms | None] = lambda: None
    seal_key: Callable[[], SealKey | None] = lambda: None
    #: where a topic is backed up
    backup: Callable[[TopicSettings], BackupPlace] = _no_backup
    #: fingerprints of the schemas already written; if None, every window writes its schemas again
    written_schemas: set[str] | None = None


def extract_units(units: Sequence[Unit], ports: WorkerPorts) -> Iterator[UnitOutcome]:
    """Read a task's units one after another, within the task's time.

    After a unit fails to reach a remote system, the following units do not wait for brokers. Otherwise, with all
    brokers down, each unit would wait for its full time.
    """
    started, waited = ports.clock.monotonic(), _seconds_waited(units[0], ports.clock.now_ms())
    is_patient = True
    commits = _Commits(ports)
    for number, unit in enumerate(units):
        left = unit.task.seconds - waited - (ports.clock.monotonic() - started)
        if number and left <= 0:
            yield UnitOutcome(unit)
            continue
        outcome = extract_unit(unit, ports, left, is_patient=is_patient, commits=commits)
        is_patient = is_patient and outcome.outage is not Outage.UNAVAILABLE
        yield outcome


def _seconds_waited(unit: Unit, now_ms: int) -> float:
    """Seconds that a task waited for an executor; 0 if the clocks of driver and worker disagree."""
    seconds = (now_ms - unit.task.handed_ms) / 1000
    return seconds if unit.task.handed_ms and 0 <= seconds < unit.task.seconds else 0.0


def extract_unit(
    unit: Unit,
    ports: WorkerPorts,
    seconds: float = math.inf,
    *,
    is_patient: bool = True,
    commits: _Commits | None = None,
    again: bool = False,
) -> UnitOutcome:
    """The outcome of reading one unit for at most ``seconds``. A unit that is already committed is read only with
    ``again``. Never raises an Exception: the outcome holds the failure and the windows finished before it."""
    started, cpu = ports.clock.monotonic(), ports.clock.cpu_seconds()
    read, outputs = _Read(), [Output(each, ports.clock) for each in unit.outputs]
    try:
        commit = (commits or _Commits(ports)).find(unit)
        if commit is None or (not again and _is_superseded(unit, commit)):
            return UnitOutcome(unit, superseded=True)
        read.has_order = [*commit.partitions] == [0]
        read.hours = hours_of(unit, commit, ports.store, ports.clock, again=again)
        read.erasures = read_log(ports.store, commit)
        read.erased = read.erasures.of(commit, unit.range.topic_partition.partition) if read.erasures else ()
        if unit.tables:
            read.schemas = PinnedSchemas(_schemas(unit, ports, commit.schema_ids), commit.schema_ids)
        _read_windows(unit, ports, read, outputs, min(seconds, unit.seconds), is_patient)
    except Exception as error:
        for output in outputs:
            output.fail(error)
    first, *others = (
        dataclasses.replace(
            each.outcome(read.position),
            first_leader_epoch=read.first_leader_epoch,
            erasures=read.erasures.version if read.erasures else 0,
        )
        for each in outputs
    )
    return dataclasses.replace(
        first,
        seconds=ports.clock.monotonic() - started,
        process=WorkerProcess(core_seconds=ports.clock.cpu_seconds() - cpu),
        evolved=tuple(sorted(read.variants.evolved)) if read.variants else (),
        schema_ids=read.schemas.seen if read.schemas else {},
        backup=others[0] if others else None,
    )


@dataclass
class _Read:
    """The progress of one unit, and what it looked up on the way."""

    position: int = 0
    first_leader_epoch: int = -1
    epoch_until: int = 0
    variants: SchemaVariants | None = None
    schemas: PinnedSchemas | None = None
    erasures: ErasureLog | None = None
    #: erased offsets of the partition, which the unit leaves out
    erased: Offsets = ()
    #: whether the topic has a single partition, and thus a total order of its records
    has_order: bool = False
    #: set if the topic has order=hour
    hours: UnitHours | None = None

    def note(self, batch: RecordBatch, range_: OffsetRange) -> RecordBatch:
        """Note a batch's leader epoch and last record, and return the batch without records before the range. Only
        erased records, which the backup lacks, may be there (B9, X5). Raises OffsetOutOfRange for any other."""
        self.position = batch.position
        early = int(batch.chunk.offsets.searchsorted(range_.from_offset))
        if not all(sets.has(self.erased, offset) for offset in batch.chunk.offsets[:early].tolist()):
            raise OffsetOutOfRange(
                f"{range_}: the log was truncated: there are records before the range, where there were none",
                next_step="kbq plan shows the commands that fix it",
            )
        if early:
            batch = dataclasses.replace(batch, chunk=batch.chunk.slice(early, len(batch.chunk)))
        if len(batch.chunk):
            self.epoch_until = int(batch.chunk.offsets[-1]) + 1
            if self.first_leader_epoch < 0:
                self.first_leader_epoch = batch.leader_epoch
        return batch

    def close(self, outputs: Iterable[Output]) -> None:
        """End the open windows of all outputs."""
        for output in outputs:
            output.close(self.epoch_until)


class _Commits:
    """The commits of a task's units. Each is read once, since all units of a task start with it."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ports = ports
        self._read: dict[tuple[bool, str], Commit | None] = {}

    def find(self, unit: Unit) -> Commit | None:
        """The commit of a unit; None if there is none."""
        path = commit_path(unit.range.topic_partition.topic, shard_of(unit.range.topic_partition.partition))
        if (unit.tables, path) not in self._read:
            try:
                self._read[unit.tables, path] = codec.loads(Commit, self._stored(unit, path), path)
            except NotFound:
                self._read[unit.tables, path] = None
        return self._read[unit.tables, path]

    def _stored(self, unit: Unit, path: str) -> bytes:
        if unit.tables:
            return self._ports.store.get(path).data
        return self._ports.backup(unit.settings).store.get(state_path(path)).data


def _is_superseded(unit: Unit, commit: Commit) -> bool:
    """Whether another attempt published the unit: Spark may run a task twice. The commit may still be below the unit
    while earlier slices are being read or wait to be published."""
    partition = commit.partitions.get(unit.range.topic_partition.partition)
    # A reset may have dropped the partition, or a run that did not see it yet created the commit.
    if commit.epoch != unit.epoch or partition is None:
        return True
    return partition.next > unit.range.from_offset


def _open(
    unit: Unit, ports: WorkerPorts, read: _Read, outputs: Sequence[Output], wait_seconds: float
) -> Iterator[RecordBatch]:
    """The unit's batches. First prepares each output to open windows; an output that cannot do so fails."""
    keys = headers = False
    for output in outputs:
        try:
            needs = _open_tables(output, ports, read) if output.unit.tables else _open_backup(output, ports)
            keys, headers = keys or needs[0], headers or needs[1]
        except Exception as error:
            output.fail(error)
    if not go_on(outputs):
        return iter(())
    options = ReadOptions(unit.read_epoch, keys, headers, wait_seconds)
    return _source(unit, ports).read(unit.read_range, options)


def _source(unit: Unit, ports: WorkerPorts) -> RecordSource:
    """Kafka, or the backup if Kafka no longer has the unit's records (PROTOCOL B9)."""
    if unit.copies is None:
        return ports.source
    log = BackupLog(unit.copies.files, unit.copies.leader_epoch)
    return BackupSource(ports.backup(unit.settings).store, {unit.range.topic_partition: log})


def _schemas(unit: Unit, ports: WorkerPorts, pins: Mapping[int, str]) -> WriterSchemas:
    """The registry. For records from a backup, also the schemas that the backup keeps (PROTOCOL B8)."""
    if unit.copies is None:
        return ports.registry
    store = ports.backup(unit.settings).store
    return BackedUpSchemas(ports.registry, store, unit.range.topic_partition.topic, pins)


def _open_tables(output: Output, ports: WorkerPorts, read: _Read) -> tuple[bool, bool]:
    """Prepare an output to tables; return whether it needs keys and whether it needs headers."""
    assert read.schemas is not None, "tables know the schemas of their commit"
    ports = dataclasses.replace(ports, registry=read.schemas)
    unit = output.unit
    settings, attempt = unit.settings, ports.new_attempt()
    read.variants = _variants(settings, ports)
    topic = unit.range.topic_partition.topic
    choice = Choice(topic, settings) if settings.destination.by_record else None
    lost = LostValues()
    translator, routes = open_routes(
        topic, settings, ports, read.variants, choice, has_order=read.has_order, lost=lost
    )
    is_accepting = unit.accept_errors_until > unit.range.from_offset
    # Otherwise, records whose schemas have undecided fields stop their window.
    copies = None
    if settings.privacy.decisions or is_accepting:
        copies = ErrorCopies.of(settings, ports.seal_key, ports.registry)
    records = settings.records
    to_errors = "error_table" in (records.errors, records.tombstones) or unit.accept_errors_until > 0
    to_errors |= choice is not None  # records without a table
    staging = Staging(
        unit, attempt, routes, ports.store, translator, copies, ports.written_schemas, lost, read.hours
    )
    output.open_window = partial(WindowWriter, staging)
    keys = settings.keys.are_stored or to_errors or records.tombstones == "row"
    needs_headers = choice is not None and choice.needs_headers
    return keys, records.headers or records.framing == "header" or needs_headers


def _open_backup(output: Output, ports: WorkerPorts) -> tuple[bool, bool]:
    """Prepare the output to the backup, which needs both keys and headers."""
    unit, place = output.unit, ports.backup(output.unit.settings)
    tp = unit.range.topic_partition
    schemas = KeptSchemas(place.store, ports.registry, tp.topic, unit.settings)
    target = BackupTarget(place, tp, unit.epoch, ports.new_attempt(), schemas)
    output.open_window = partial(BackupWindowWriter, target)
    return True, True


def _read_windows(
    unit: Unit, ports: WorkerPorts, read: _Read, outputs: Sequence[Output], seconds: float, is_patient: bool
) -> None:
    """Read batches into the windows of all outputs until every output has ended. Windows close together."""
    started = opened = ports.clock.monotonic()
    batches = _open(unit, ports, read, outputs, seconds if is_patient else 0.0)
    is_open = False
    try:
        for batch in batches:
            batch = read.note(batch, unit.range)  # noqa: PLW2901 - what remains of the batch
            if batch.position < unit.range.from_offset:
                continue
            opened = opened if is_open else ports.clock.monotonic()
            is_open = True
            for part in without(batch, read.erased):
                for output in outputs:
                    output.add(part)
            if not go_on(outputs):
                return
            now = ports.clock.monotonic()
            has_progress = any(output.has_progress for output in outputs)
            is_late = now - started >= seconds and has_progress
            is_old = now - opened >= unit.limits.seconds and has_progress
            if is_late or is_old or any(output.is_full() for output in outputs):
                read.close(outputs)
                is_open = False
            if is_late:
                break
        read.close(outputs)
    except UnreadableBatch:
        read.close(outputs)
        raise
    finally:
        for output in outputs:
            output.abort()


def _variants(settings: TopicSettings, ports: WorkerPorts) -> SchemaVariants | None:
    """Variants for schemas that contradict their table; None if such tables are parked, or if none can occur, as with
    JSON payloads."""
    if settings.destination.on_incompatible == PARK or settings.records.format == "json":
        return None
    return SchemaVariants(ports.store, settings.destination.on_incompatible)
