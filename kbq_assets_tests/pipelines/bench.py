"""A small world for pipeline tests: one topic, three schemas, two tables, and the ports of single runs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.reconcile.counts import CountPorts
from kbq_assets.extras.reconcile.records import ReconcilePorts, Reconciliation, reconcile
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.extraction.extract import extract
from kbq_assets.pipelines.extraction.ports import (
    ExtractionLimits,
    ExtractionPorts,
    ExtractionReport,
    Progress,
)
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.wire.privacy.sealing import SealKey
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

TOPIC = "shop.events"
TP = TopicPartition(TOPIC, 0)
A, B, ERRORS = (TableReference("d", name) for name in ("A", "B", "kbq_errors"))
SCHEMAS = {
    1: '{"type":"record","name":"A","fields":[{"name":"x","type":"long"}]}',
    2: '{"type":"record","name":"A","fields":[{"name":"x","type":"long"},{"name":"y","type":["null","long"]}]}',
    3: '{"type":"record","name":"B","fields":[{"name":"x","type":"long"}]}',
    4: '{"type":"record","name":"A","fields":[{"name":"x","type":"string"}]}',
    5: '{"type":"record","name":"A","fields":[{"name":"_KAFKA_OFFSET","type":"long"}]}',
    6: '"string"',
    7: '{"type":"record","name":"A","fields":[{"name":"on","type":{"type":"int","logicalType":"date"}}]}',
}
BODIES = {
    1: b"\x02",
    2: b"\x02\x00",
    3: b"\x02",
    4: b"\x02x",
    5: b"\x02",
    6: b"\x02x",
    7: b"\x06",
    97: b"\x02",
    98: b"\x02",
    99: b"\x02",
}
SETTINGS = TopicSettings.of(dataset="d", route="record_name")


def value(schema_id: int) -> bytes:
    """A valid record of a schema, in Confluent's framing."""
    return struct.pack(">bI", 0, schema_id) + BODIES.get(schema_id, b"")


@dataclass
class Bench:
    """The fakes, combined. ``faults`` is asked before each call of a run to the store, broker or warehouse."""

    settings: TopicSettings = SETTINGS
    window: WindowLimits = field(default_factory=WindowLimits)
    partitions: int = 1
    auto_run: bool = True
    keep_records: bool = False
    one_transaction: bool = True
    faults: Callable[[Call], Outcome] = lambda call: Outcome.OK
    pseudonyms: Pseudonyms | None = None
    seal_key: SealKey | None = None

    def __post_init__(self) -> None:
        def ask(call: Call) -> Outcome:
            return self.faults(call)

        self.kafka = FakeKafka(chunk_records=2, faults=ask)
        self.kafka.create_topic(TOPIC, self.partitions)
        self.store = FaultyMemoryStore(ask)
        self.warehouse = FakeWarehouse(
            self.store,
            self.store.path_of,
            auto_run=self.auto_run,
            faults=ask,
            keep_records=self.keep_records,
            one_transaction=self.one_transaction,
        )
        self.warehouse.now_ms = self.store.now_ms
        self.registry = FakeRegistry(SCHEMAS)
        #: where backups go; tests damage it, or take it away
        self.backups = FaultyMemoryStore(ask)
        self.clock = FakeClock()

    def produce(self, *schema_ids: int, partition: int = 0) -> None:
        """Append one record per schema id."""
        for schema_id in schema_ids:
            self.kafka.produce(TopicPartition(TOPIC, partition), value(schema_id), key=b"k", timestamp=1000)

    def extract(
        self,
        limits: ExtractionLimits | None = None,
        *,
        choose: Callable[[int], int] = lambda number: 0,
        sources: Sequence[SourceEntry] = (),
        open_engine: Callable[[WorkerPorts], ExtractionEngine] | None = None,
        on_progress: Callable[[Progress], None] = lambda progress: None,
        is_draining: Callable[[], bool] = lambda: False,
    ) -> ExtractionReport:
        """One run, whose calls may fail. ``choose`` says which of the open tasks ends next, if no other engine is to
        run them."""
        store, kafka = self.store.view("extractor"), self.kafka.view("extractor")
        worker = self._worker(store, kafka)
        engine = open_engine(worker) if open_engine else InProcessEngine(worker, choose=choose)
        area = BackupArea(self.backups.view("backup"))
        ports = ExtractionPorts(
            store, kafka, engine, self.clock, open_backup=lambda name: area, is_draining=is_draining
        )
        return extract(
            ports,
            sources or [SourceEntry(TOPIC, self.settings)],
            limits=limits or ExtractionLimits(window=self.window),
            on_progress=on_progress,
        )

    def load(self, wait_seconds: float = 100.0, **options: Any) -> LoadReport:
        """One run, whose calls may fail."""
        ports = LoadPorts(self.store.view("loader"), self.warehouse.view("loader"), self.clock)
        return load(ports, LoadOptions(wait_seconds=wait_seconds, poll_seconds=10.0, **options))

    def reconcile(self) -> Reconciliation:
        """Compare broker and warehouse."""
        return reconcile(self.reconcile_ports())

    def reconcile_ports(self, sources: Sequence[SourceEntry] | None = None, **ports: Any) -> ReconcilePorts:
        """What a reconciliation needs, without faults."""
        counts = CountPorts(self.store, self.kafka, self.warehouse)
        return ReconcilePorts(
            self.store,
            self.kafka,
            self.kafka,
            self.warehouse,
            counts,
            lambda: self._worker(self.store, self.kafka),
            [SourceEntry(TOPIC, self.settings)] if sources is None else sources,
            **ports,
        )

    def worker(self, source: Any) -> WorkerPorts:
        """A worker without faults that reads from another source."""
        return self._worker(self.store, source)

    def _worker(self, store: Any, kafka: Any) -> WorkerPorts:
        return WorkerPorts(
            store,
            kafka,
            self.registry,
            self.clock,
            pseudonyms=lambda: self.pseudonyms,
            seal_key=lambda: self.seal_key,
            backup=lambda topic: BackupPlace(self.backups.view("backup")),
        )

    @property
    def backup_area(self) -> BackupArea:
        """The backups, without faults."""
        return BackupArea(self.backups)

    def backup_commit(self) -> Commit:
        """The backup's commit of the topic."""
        return state.read(self.backup_area, Commit, f"commits/{TOPIC}.json").value

    def commit(self) -> Commit:
        """The topic's commit."""
        return state.read(self.store, Commit, f"commits/{TOPIC}.json").value

    def paths(self, prefix: str) -> list[str]:
        """Objects below a prefix."""
        return [entry.path for entry in self.store.list(prefix)]

    def offsets(self, table: TableReference) -> list[int]:
        """Offsets in a table, in the order they became visible."""
        return [row.offset for row in self.warehouse.rows(table)]
