"""The fakes joined, and the processes that work on them: extractors, loaders, janitors and operators at once."""

from __future__ import annotations

import copy
import functools
import random
import struct
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO, ClassVar, cast
from unittest.mock import patch

from kbq_assets.core.backup import merging
from kbq_assets.core.errors import KbqError, NotFound, Refused
from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import COMMITS, TABLES, TOPIC_REGISTRY, TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines import threads
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.extraction import extractor
from kbq_assets.pipelines.extraction.extract import extract
from kbq_assets.pipelines.extraction.ports import ExtractionLimits, ExtractionPorts, ExtractionReport
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, load
from kbq_assets.pipelines.loading.register_warehouses import register
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.commands import (
    Proposal,
    propose_accept_gap,
    propose_park_table,
    propose_reset,
    propose_resume,
    propose_resume_table,
)
from kbq_assets.pipelines.operate.restage import RestagePorts, propose_restage
from kbq_assets.pipelines.protocol import manifests, state
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.statements import StatementJob
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets.wire.chunk import encode_long
from kbq_assets.worker.unit import WorkerPorts, extract_unit
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.fakes.statements import Failure
from kbq_assets_tests.fakes.warehouse import TRANSIENT, FakeWarehouse, Row
from kbq_assets_tests.fixtures.tiny_manifests import counted, tiny_manifests
from kbq_assets_tests.simulation import (
    backups,
    error_replays,
    late_changes,
    mishaps,
    ordered,
    replays,
    statements,
)
from kbq_assets_tests.simulation.scheduler import Scheduler

TOPIC = "shop.events"
SCHEMAS = {
    1: '{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}',
    2: '{"type":"record","name":"A","fields":[{"name":"x","type":"long"},{"name":"y","type":["null","long"]}]}',
    3: '{"type":"record","name":"B","fields":[{"name":"x","type":"long"}]}',
    4: '{"type":"record","name":"A","fields":[{"name":"x","type":"string"}]}',
    5: '{"type":"record","name":"A","fields":[{"name":"x","type":"long"},'
    '{"name":"at","type":["null",{"type":"long","logicalType":"timestamp-millis"}]}]}',
}
_A, _B = TableReference("d", "A"), TableReference("d", "B")
TABLES_OF = {1: _A, 2: _A, 3: _B, 4: _A, 5: _A}
ERRORS = TableReference("d", "kbq_errors")
_BODIES = {1: b"\x02", 2: b"\x02\x00", 3: b"\x02", 4: b"\x02x", 5: b"\x02\x00"}
_DAY_MS = 24 * HOUR_MS
_SETTINGS = TopicSettings.of(dataset="d", route="record_name", error_share=1.0, complete_after_seconds=60)
PERMANENT = JobError("invalid", "the table does not take it", transient=False)


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Pipelines start no threads meanwhile: the simulator's processes are greenlets of one, in an order that follows
    from the seed, as do the names of manifests."""
    with (
        tiny_manifests(),
        patch.object(threads, "_PARALLEL_FROM", sys.maxsize),
        patch.object(extractor, "PUBLISHING_THREADS", 1),
        patch.object(manifests, "new_random", counted()),
        patch.object(uuid, "uuid4", uuid.uuid4),
        # Parsed values are frozen, and every process of a world reads the same objects.
        patch.object(codec, "_parse", functools.lru_cache(maxsize=8192)(codec._parse)),
    ):
        yield


class YieldingClock(FakeClock):
    """Waiting lets others run. The time of day is the store's."""

    def __init__(self, pause: Callable[[], None], time_ms: Callable[[], int]) -> None:
        super().__init__()
        self._pause = pause
        self._time_ms = time_ms

    def now_ms(self) -> int:
        """The store's time."""
        return self._time_ms()

    def sleep(self, seconds: float) -> None:
        """Move the clock and yield."""
        super().sleep(seconds)
        self._pause()


@dataclass(frozen=True)
class Buckets:
    """What the warehouse reads: the files of all staging areas. No two share a path."""

    ours: FaultyMemoryStore
    elsewhere: FaultyMemoryStore

    def open_read(self, path: str) -> BinaryIO:
        """Stream an object. Raises NotFound."""
        return (self.elsewhere if path in self.elsewhere.objects else self.ours).open_read(path)


class WatchedStore(FaultyMemoryStore):
    """Tells of each swap of a table's state, when it happens, however late that is: how it was, and how it is."""

    def __init__(
        self,
        watch: Callable[[TableState, TableState], None],
        faults: Callable[[Call], Outcome],
        published: Callable[[Commit, Commit], None],
    ) -> None:
        super().__init__(faults)
        self._watch = watch
        self._published = published

    def swap(self, path: str, data: bytes, generation: int) -> int:
        before = self.objects.get(path)
        swapped = super().swap(path, data, generation)
        if before is not None and path.startswith(COMMITS) and path != TOPIC_REGISTRY:
            self._published(codec.loads(Commit, before.data, path), state.read(self, Commit, path).value)
        if before is not None and path.startswith(TABLES) and not path.endswith("/_tables.json"):
            self._watch(codec.loads(TableState, before.data, path), codec.loads(TableState, data, path))
        return swapped


@dataclass(frozen=True)
class Recipe:
    """What a world is made of. ``kinds`` are what is produced, by schema id: gaps, poison and tombstones next to.

    With a business time, records of a replay (`r`) tell of a day ago, then of later and later, and those of a clock
    that is ahead (`f`) of hours to come; Kafka has them now. Each partition then begins with one of a replay.
    """

    kinds: str = "1122333gpt"
    partitions: int = 2
    settings: TopicSettings = _SETTINGS
    window_records: int = 4
    chunk_records: int = 2
    #: what the topic's option may be in a run, by stored names; each run draws one
    warehouses: tuple[tuple[str, ...], ...] = ((),)
    #: what the topic's `load` may be: it changes all the time
    rules: tuple[StatementRule, ...] = ()
    #: whether the topic leaves the list now and then, so that loads do not know its options
    unlisted: bool = False
    #: windows that a commit keeps for a slower warehouse
    patience: int = 24
    #: from this many files on, a job reads copies (L15)
    merge_files: int = 0
    #: how many files of a backup that adjoin are merged (B10)
    backup_files: int = merging.LEAST_FILES
    #: whether operators replay ranges (replays.py)
    replays: bool = False
    #: whether operators replay error rows (error_replays.py)
    replays_errors: bool = False
    #: whether a replacement in several tables is one transaction
    one_transaction: bool = True
    #: whether the topic has fewer partitions after it was recreated, and grows again
    grows: bool = False


def _park_as_loader(store: ObjectStore, table: TableReference) -> None:
    """Park a table as a load does whose jobs fail: a later load tries it again on its own."""

    def park(now: TableState) -> TableState:
        return (
            now
            if now.in_flight or now.parked
            else table_state.park(now, ParkReason.LOAD_FAILED, "no job", store.now_ms())
        )

    state.change(store, TableState, table_state_path(table), park)


def _name_by(seed: int) -> None:
    """A world's names follow from its seed."""
    setattr(manifests, "new_random", counted())  # noqa: B010
    names = random.Random(seed)
    setattr(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128)))  # noqa: B010


class World:
    """One broker, store and registry, the warehouses, and the processes of a schedule."""

    topic: ClassVar[str] = TOPIC
    #: what the topic's option was in the runs of this process
    options_now: ClassVar[list[tuple[str, ...]]] = [()]

    def __init__(self, seed: int, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or Recipe()
        self.random = random.Random(seed)
        _name_by(seed)
        self.scheduler = Scheduler(self.random)
        decide = self.scheduler.decide
        self.kafka = FakeKafka(chunk_records=self.recipe.chunk_records, faults=decide)
        self.store = WatchedStore(self._watch, decide, self._watch_windows)
        self.backup = backups.BackupStore(decide)
        #: a staging area set by mistake, for the same topic and warehouse (mishaps.py)
        self.elsewhere = FaultyMemoryStore()
        #: by stored name; the first is also ``warehouse``
        self.warehouses = {
            name: FakeWarehouse(
                Buckets(self.store, self.elsewhere),
                self.store.path_of,
                auto_run=False,
                faults=decide,
                one_transaction=self.recipe.one_transaction,
            )
            for name in sorted({name for names in self.recipe.warehouses for name in names or ("",)})
        }
        self.warehouse = self.warehouses[""]
        #: which warehouses each window that was ever published is for
        self.windows: dict[tuple[TopicPartition, int], dict[range, tuple[str, ...]]] = defaultdict(dict)
        self.registry, self.registry_before = FakeRegistry(SCHEMAS), SCHEMAS
        self.clock = YieldingClock(self.scheduler.pause, lambda: self.store.time_ms)
        for warehouse in self.warehouses.values():
            warehouse.job_errors = self._job_error
            warehouse.statements.errors = self._statement_error
            warehouse.limits = replace(warehouse.limits, mixes_schemas=bool(seed % 2))
        self.job_error_rate = 0.0
        self.rejecting: TableReference | None = None
        self.kafka.create_topic(TOPIC, self.recipe.partitions)
        self._note_logs()
        self.kafka.notices_recreation = False  # as librdkafka: it may read on in the new log
        self.expected: dict[tuple[TopicPartition, str], dict[int, TableReference | None]] = defaultdict(dict)
        self.schema_ids: dict[tuple[TopicPartition, int], str] = {}
        self.recreated = False
        self.reset_rate = self.park_rate = self.decide_rate = 0.0
        self.restart_rate = self.restage_rate = self.mend_rate = 0.0
        self._attempts = 0
        self.area = ""
        #: how often mishaps and what mends them occurred (mishaps.py)
        self.met = Counter[str]()
        #: rows that an operator let be loaded out of order, from quarantine
        self.brought_back: set[Row] = set()
        self.lost_silently: list[str] = []
        self.defects, self.skipped = list[str](), list[str]()
        self.out_of_order: list[str] = []
        self._produced = 0
        self.loads_by = {name: list[tuple[TableReference, Row]]() for name in self.warehouses}
        self.late_by = {name: Counter[TableReference]() for name in self.warehouses}
        self.late_rows = self.late_by[""]
        self.too_early: list[str] = []
        self._told: dict[tuple[TopicPartition, int], int] = {}
        self._passed: dict[TopicPartition, int] = {}
        #: business times of records that have their own, with Kafka's
        self.own_times: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self.began_ms = self.store.time_ms
        #: what the topic asks for, and how each table's last batch was loaded
        self.rule = self.recipe.settings.statement.rule
        self.loaded_as: dict[TableReference, str] = {}
        #: whether tables begin by hour
        self.by_hour = self.recipe.settings.ordering.order == "hour"
        others = [name for name in self.warehouses if name]
        register(others, lambda: self.store, lambda: self.store)
        if self.recipe.settings.records.event_date:
            for partition in range(self.recipe.partitions):
                self._produce(TopicPartition(TOPIC, partition), "r")

    # What happens on its own ------------------------------------------------------------------------------------

    def produce(self) -> None:
        """Append a few records, of any schema, poison and gaps among them."""
        for _ in range(self.random.randint(1, 4)):
            tp = TopicPartition(TOPIC, self.random.randrange(self.partitions))
            self._produce(tp, self.random.choice(self.recipe.kinds))

    def _produce(self, tp: TopicPartition, kind: str) -> None:
        if kind == "g":
            self.kafka.gap(tp)
            return
        when = reported = self._when()
        tells = kind in "rf"
        if kind == "t":
            offset = self.kafka.produce(tp, None, key=b"k", timestamp=when)
            table = self._table_of_tombstones
        elif kind == "p":
            offset, table = self.kafka.produce(tp, b"\x01poison", timestamp=when), ERRORS
        elif kind in "ab":
            value = b"\x01poison" if kind == "b" else struct.pack(">bI", 0, 1) + _BODIES[1]
            offset = self.kafka.produce(tp, value, key=backups.ANNA, timestamp=when)
            table = ERRORS if kind == "b" else TABLES_OF[1]
            kind = "1" if kind == "a" else "p"
        else:
            if kind in "rf":
                reported, kind = self._tell(tp, kind), "5"
                body = b"\x02\x02" + encode_long(reported)
            else:
                body = _BODIES[int(kind)]
            value = struct.pack(">bI", 0, int(kind)) + body
            offset, table = self.kafka.produce(tp, value, timestamp=when), TABLES_OF[int(kind)]
        self.expected[tp, self.topic_id][offset] = table
        self.schema_ids[tp, offset] = kind
        self._told[tp, offset] = reported
        if tells:
            self.own_times[tp, offset] = reported, when

    def produce_one(self, partition: int, kind: str) -> None:
        """Append a record of a kind."""
        self._produce(TopicPartition(TOPIC, partition), kind)

    def _tell(self, tp: TopicPartition, kind: str) -> int:
        """A business time, noted: its partition may be taken to have passed it, but no further than now."""
        now = self.store.time_ms
        reported = min(now, self.began_ms - _DAY_MS + self._produced * 600_000)
        if kind == "f":
            reported = now + self._produced * HOUR_MS
        self._passed[tp] = max(self._passed.get(tp, 0), min(reported, now))
        return reported

    @property
    def _table_of_tombstones(self) -> TableReference | None:
        settings = self.recipe.settings
        return {"error_table": ERRORS, "row": settings.destination.table_for(TOPIC)}.get(
            settings.records.tombstones
        )

    @property
    def tables(self) -> tuple[TableReference, ...]:
        """All tables that records may come to."""
        tombstones = [self._table_of_tombstones] if self.recipe.settings.records.tombstones == "row" else []
        replayed = replays.tables(self) if self.recipe.replays else ()
        return (*sorted(set(TABLES_OF.values())), ERRORS, *filter(None, tombstones), *replayed)

    def _when(self) -> int:
        """The time of a record: now, or some hours ago. Of no random choice, so that seeds stay schedules."""
        self._produced += 1
        return self.store.time_ms - (0 if self._produced % 3 else self._produced * 7919 % 300 * 60_000)

    def run_job(self) -> None:
        """Let one pending job of the warehouse run."""
        for name, warehouse in self.warehouses.items():
            if warehouse.pending:
                job_id, before = self.random.choice(warehouse.pending), len(warehouse.log)
                is_load = not warehouse.is_replacement(job_id)
                error = None if is_load else replays.draw_error(self)
                self.scheduler.trace.append(f"warehouse {name}: {warehouse.run_pending(job_id, error)}"[:200])
                if is_load:
                    self._note_loads(name, replays.live_rows(warehouse.log[before:]))

    def hour_of(self, row: Row) -> int:
        """The hour of a row's record, by its business time; of another record's where the topic was recreated since."""
        return self._told[TopicPartition(row.topic, row.partition), row.offset] // HOUR_MS

    @property
    def loads(self) -> list[tuple[TableReference, Row]]:
        """All rows that load jobs made visible in the warehouse, whatever replays did with them later."""
        return self.loads_by[self.area]

    def _note_loads(self, warehouse: str, rows: list[tuple[TableReference, Row]]) -> None:
        """Counts rows that become visible late: after their hour was complete. A job in flight holds back its hours
        until it is recorded, so the order does not matter."""
        self.loads_by[warehouse] += rows
        states = state.warehouse_states(self.store).by_name[warehouse]
        for table, row in rows:
            if self.hour_of(row) < states[table].hours.until:
                self.late_by[warehouse][table] += 1

    def _watch_windows(self, before: Commit, after: Commit) -> None:
        """Windows that a swap publishes, and the warehouses that they are for; and positions that it skips."""
        self.skipped.extend(late_changes.judge_skips(self, before, after))
        for number, partition in after.partitions.items():
            known = before.partitions.get(number)
            position = known.next if known and before.epoch == after.epoch else 0
            found = self.windows[after.topic_partition(number), after.epoch]
            for window in partition.windows:
                self.out_of_order.extend(ordered.judge_files(self, window.files))
                if window.first >= position and window.files:
                    found[range(window.first, window.until)] = window.files[0].wanted_by

    def as_seen_by(self, name: str) -> World:
        """The world with another warehouse as its warehouse: every promise holds for each."""
        seen = copy.copy(self)
        seen.area, seen.warehouse, seen.late_rows = name, self.warehouses[name], self.late_by[name]
        seen.store = cast("WatchedStore", WarehouseStore(self.store, name))
        return seen

    def is_wanted(self, tp: TopicPartition, epoch: int, offset: int) -> bool:
        """Whether the window of an offset is for the warehouse; one without files is for any."""
        windows = self.windows[tp, epoch]
        return all(self.area in wanted for span, wanted in windows.items() if offset in span)

    def _watch(self, before: TableState, after: TableState) -> None:
        self.out_of_order.extend(ordered.judge_swap(before, after, partial(ordered.given_up, self)))
        self.out_of_order.extend(ordered.judge_hours(self, before, after))
        self.out_of_order.extend(statements.judge_load(self, before, after))
        self.out_of_order.extend(ordered.judge_marks(self, before, after))
        self._watch_quarantine(before, after)
        self._watch_hours(before, after)

    def _watch_quarantine(self, before: TableState, after: TableState) -> None:
        """No batch loses most of its files, unless an operator lets it (L5)."""
        job, known = before.in_flight, {bad.file.path for bad in before.quarantined}
        lost = [bad.file.path for bad in after.quarantined if bad.file.path not in known and not bad.dropped]
        if job is None or len(lost) < 2 or before.accepted.loss:
            return
        total = {f.path for f in (*job.files, *(bad.file for bad in job.quarantined))}
        if 2 * len(lost) > len(total):
            self.lost_silently.append(f"{len(lost)} of {len(total)} files left for quarantine: {lost}")

    def _watch_hours(self, before: TableState, after: TableState) -> None:
        """Hours that become complete: nothing of them may be in quarantine that no operator has seen, and each
        partition must have reported of a later time, where it has a business time."""
        hours, settings = range(before.hours.until, after.hours.until), self.recipe.settings
        if not hours or self.recreated:
            return
        passed = min(self._passed.values(), default=0) - settings.checks.complete_after_seconds * 1000
        if settings.records.event_date and hours.stop > passed // HOUR_MS:
            self.too_early.append(f"{hours}: partitions were read until {self._passed}")
        for bad in after.new_quarantined:
            of_hours = [offset for offset in self.offsets(bad.file) if self._hour(bad.file, offset) in hours]
            if of_hours:
                self.too_early.append(f"{hours} without offsets {of_hours} of {bad.file.path}")

    def offsets(self, file: StagedFile) -> Iterator[int]:
        """Offsets of the records in a file, by what was produced."""
        tp, expected = file.name.topic_partition, self.expected[file.name.topic_partition, self.topic_id]
        for offset in range(file.name.first_offset, file.until):
            is_of_schema = file.table == ERRORS or self.schema_ids.get((tp, offset)) == str(
                file.name.schema_id
            )
            if expected.get(offset) == file.table and is_of_schema and self._is_of_hour(file, offset):
                yield offset

    def _is_of_hour(self, file: StagedFile, offset: int) -> bool:
        """Whether a record may be in a file of one hour of its window (O8)."""
        return not self.by_hour or file.table == ERRORS or self._hour(file, offset) in file.events.hours

    def _hour(self, file: StagedFile, offset: int) -> int:
        name = file.name
        return self.hour_of(
            Row(name.epoch, name.topic_partition.topic, name.topic_partition.partition, offset)
        )

    def deliver_late_call(self) -> None:
        """Let one call arrive that its caller gave up."""
        fakes: list[FaultyMemoryStore | FakeWarehouse] = [self.store, *self.warehouses.values()]
        fakes += [self.backup] if backups.has_backup(self) else []
        for fake in self.random.sample(fakes, len(fakes)):
            if fake.late:
                index = self.random.randrange(len(fake.late))
                self.scheduler.trace.append(f"late: {fake.late[index].call}")
                fake.deliver_late(index)
                return

    def spoil_a_file(self) -> None:
        """Make one staged file fail in every load."""
        staged = [e.path for e in self.store.list("staging/") if ".kbq_errors." not in e.path]
        if staged:
            warehouse = self.random.choice(list(self.warehouses.values())) if self.others else self.warehouse
            warehouse.bad_paths.add(self.random.choice(staged))

    def reject(self) -> None:
        """Let a table refuse every job for a while, so that it is parked; or let it accept again."""
        self.rejecting = None if self.rejecting else self.random.choice(self.tables)

    def waiting(self) -> list[StagedFile]:
        """Files that commits and backlogs list."""
        chunks = [c for area in state.areas(self.store).values() for c in state.read_backlogs(area)]
        return [f for c in self.commits() for f in c.files] + [f for c in chunks for f in c.value.files]

    def lose_to_retention(self) -> None:
        """Delete the oldest records of a partition."""
        tp = TopicPartition(TOPIC, self.random.randrange(self.partitions))
        self.kafka.delete_before(tp, self.kafka.log(tp).start + self.random.randint(1, 3))

    def elect_leader(self) -> None:
        """A new leader that has everything: slices that are read ahead do not know it."""
        self.kafka.elect_leader(TopicPartition(TOPIC, self.random.randrange(self.partitions)))

    def _job_error(self, job: LoadJob) -> JobError | None:
        if job.table == self.rejecting:
            return PERMANENT
        if self.random.random() < self.job_error_rate:
            return self.random.choice([TRANSIENT, TRANSIENT, PERMANENT])
        return None

    def _statement_error(self, job: StatementJob) -> tuple[JobError, Failure] | None:
        if job.target == self.rejecting:
            return PERMANENT, Failure.BEFORE
        if self.random.random() < self.job_error_rate:
            return self.random.choice([TRANSIENT, TRANSIENT, PERMANENT]), self.random.choice(list(Failure))
        return None

    @property
    def partitions(self) -> int:
        """How many partitions the topic has now."""
        return len(self.kafka.topics_by_name[TOPIC].partitions)

    @property
    def topic_id(self) -> str:
        """The topic's incarnation."""
        return self.kafka.topics_by_name[TOPIC].topic_id

    # Processes --------------------------------------------------------------------------------------------------

    def extract(self, name: str, staging: FaultyMemoryStore | None = None) -> ExtractionReport:
        """One extraction, as a process of this name, a minute after the last run:
        pauses end (core/extraction/restarts.py)."""
        self.store.time_ms += 60_000
        store, kafka = (staging or self.store).view(name), self.kafka.view(name)
        worker = WorkerPorts(
            store, kafka, self.registry.view(name, self.scheduler.decide), self.clock, self.attempt,
            backup=lambda topic: backups.place_of(self, name),
        )  # fmt: skip
        engine = InProcessEngine(worker, slots=self.random.choice([1, 2, 3]), choose=self._choose)
        limits = ExtractionLimits(
            slices=SliceLimits(positions=6, least=3, packed_positions=3),
            window=WindowLimits(records=self.recipe.window_records),
        )
        settings = self.recipe.settings
        if self.others:
            self.options_now.append(self.random.choice(self.recipe.warehouses))
            destination = replace(settings.destination, warehouses=self.options_now[-1])
            settings = replace(settings, destination=destination)
        ports = ExtractionPorts(
            store, kafka, engine, self.clock, new_run=self.attempt,
            open_backup=lambda area: BackupArea(self.backup.view(name)),
        )  # fmt: skip
        report = extract(ports, [SourceEntry(TOPIC, settings)], limits=limits)
        self._note_defects(stop.message for stop in report.stops)
        return report

    def _note_defects(self, messages: Iterable[str]) -> None:
        """No schedule makes KBQ fail in a way that it did not expect."""
        self.defects.extend(message for message in messages if "report a bug" in message)

    def _choose(self, tasks: int) -> int:
        """Any task ends next, sooner or later: what has ended by then is published in one swap or in several."""
        self.clock.seconds += self.random.choice([0.0, 0.6, 2.0])
        return self.random.randrange(tasks)

    @property
    def others(self) -> list[str]:
        """The warehouses besides the first."""
        return [name for name in self.warehouses if name]

    def load(self, name: str, staging: FaultyMemoryStore | None = None, warehouse: str = "") -> None:
        """One load, a minute after the last run; sometimes it does not wait for its jobs (L8)."""
        self.store.time_ms += 60_000
        store = WarehouseStore((staging or self.store).view(name), warehouse)
        ports = LoadPorts(store, self.warehouses[warehouse].view(name), self.clock, self.attempt)
        wait_seconds = self.random.choice([0.0, 1000.0])
        options = LoadOptions(
            self._table_options,
            wait_seconds=wait_seconds,
            poll_seconds=100.0,
            topics=self._topics,
            merge_files=self.recipe.merge_files,
        )
        report = load(ports, options)
        self._note_defects(each.message for each in report.tables)
        self.met["waited"] += sum(table.state == "waiting" for table in report.tables)

    def _table_options(self, table: TableReference, topics: frozenset[str]) -> TableOptions:
        unknown = table == ERRORS or (self.recipe.unlisted and self.random.random() < 0.5)
        return TableOptions(rules=frozenset() if unknown else frozenset([self.rule]))

    def change_load(self) -> None:
        """The topic asks for another `load`, or for the same."""
        self.rule = self.random.choice(self.recipe.rules)

    def _topics(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        return dict.fromkeys(topics, self.recipe.settings)

    def clean(self, name: str) -> None:
        """One clean-up."""
        clean(self.store.view(name))
        if backups.has_backup(self):
            backups.clean(self, name)

    def erase(self, name: str) -> None:
        """Anna's records are erased (backups.py)."""
        backups.erase(self, name)

    def replay(self, name: str) -> None:
        """An operator takes a step of a replay (replays.py)."""
        replays.operate(self, name)

    def replay_errors(self, name: str) -> None:
        """An operator replays error rows (error_replays.py)."""
        error_replays.operate(self, name)

    def operate(self, name: str) -> None:
        """An operator looks at what is stopped or parked and does one thing about it; sometimes resets."""
        store, kafka = self.store.view(name), self.kafka.view(name)
        if self.random.random() < self.reset_rate:
            propose_reset(store, kafka, TOPIC, give_up_pending=self.random.random() < 0.7).apply()
            return
        if backups.operate(self, name):
            return
        if self.decide_rate and self.random.random() < self.decide_rate:
            ordered.operate(self, name)
            return
        if self.mend_rate and self.random.random() < self.mend_rate:
            mishaps.mend(self, name)
            return
        if self.restage_rate and self.random.random() < self.restage_rate and (waiting := self.waiting()):
            with suppress(Refused, NotFound):
                self._restage(name, self.random.choice(waiting))
            return
        if self.random.random() < self.park_rate:
            self._park(store)
            return
        repairs = [*self._repairs(store, kafka), *backups.repairs(self, self.backup.view(name), kafka)]
        for propose in self.random.sample(repairs, len(repairs)):
            try:
                propose().apply()
            except Refused:
                continue  # nothing of this kind to mend

    def _park(self, store: ObjectStore) -> None:
        table = self.random.choice(self.tables)
        if self.others:
            store = WarehouseStore(store, self.random.choice(list(self.warehouses)))
        elif self.restart_rate and self.random.random() < self.restart_rate:
            _park_as_loader(store, table)
            return
        propose_park_table(store, table).apply()

    def _restage(self, name: str, file: StagedFile) -> None:
        store, kafka = self.store.view(name), self.kafka.view(name)
        worker = WorkerPorts(store, kafka, self.registry, self.clock, self.attempt)
        settings = {TOPIC: self.recipe.settings}
        read_again = partial(extract_unit, ports=worker, again=True)
        propose_restage(RestagePorts(store, kafka, read_again, lambda topics: settings), file.path).apply()
        self.met["restaged"] += 1

    def _repairs(self, store: ObjectStore, kafka: object) -> Iterator[Callable[[], Proposal]]:
        for name in self.warehouses:
            area = WarehouseStore(store, name)
            for table in self.tables:
                yield partial(propose_resume_table, area, table, to_quarantine=True)
        for partition in range(self.partitions):
            tp = TopicPartition(TOPIC, partition)
            yield lambda p=tp: propose_accept_gap(store, kafka, p)  # type: ignore[misc, arg-type]
        yield lambda: propose_resume(store, TOPIC)

    def repair(self) -> None:
        """A patient operator mends what can be mended without losing more (not a reset)."""
        if self.decide_rate:
            decisions = ordered if self.recipe.settings.statement.rule.appends else statements
            decisions.repair(self)
        if self.mend_rate:
            mishaps.adopt(self, "operator")
        for file in mishaps.unsound(self) if self.restage_rate else ():
            with suppress(Refused, NotFound):
                self._restage("operator", file)
        for propose in self._repairs(self.store.view("operator"), self.kafka.view("operator")):
            try:
                propose().apply()
            except KbqError:
                continue
        if backups.has_backup(self):
            backups.repair(self)

    def recreate(self) -> None:
        """Delete the topic and create it again."""
        partitions = self.random.randint(1, self.recipe.partitions) if self.recipe.grows else None
        self.kafka.recreate_topic(TOPIC, partitions)
        self._note_logs()
        self.recreated = True

    def grow(self) -> None:
        """Add a partition, up to the number in the recipe."""
        self.kafka.add_partitions(TOPIC, min(self.partitions + 1, self.recipe.partitions))
        self._note_logs()

    def _note_logs(self) -> None:
        self.backup.logs |= dict(backups.log_of(self, p) for p in range(self.partitions))

    def run_alone(self, kind: str, body: Callable[[str], object]) -> None:
        """One process, to its end; jobs run meanwhile."""
        self.scheduler.start(kind, body)
        while self.scheduler.step():
            self.run_job()

    def attempt(self) -> str:
        """The name of the next attempt."""
        self._attempts += 1
        return f"a{self._attempts}"

    def commits(self) -> list[Commit]:
        """The commits as they are."""
        return [c.value for c in state.read_commits(self.store)]
