"""A platform over the fakes, as Dagster sees it."""

from __future__ import annotations

import copy
import struct
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

import dagster as dg

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Adapters, Parts
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.platform import with_ports
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

TOPIC = "nyc.flights.v1"
TABLE = "nyc.flights"
SCHEMA = '{"type":"record","name":"Flight","fields":[{"name":"x","type":"long"}]}'
RECORD = struct.pack(">bI", 0, 1) + b"\x02"
SOURCES = f"{TOPIC} dataset=nyc table=flights\nother.* dataset=nyc route=record_name\n"


class PlatformWorld:
    """Fakes, a Platform over them, and its definitions with units that run in this process."""

    def __init__(self, folder: Path, partitions: int = 2, chunk_records: int = 500, **environ: str) -> None:
        (folder / "topics.txt").write_text(SOURCES)
        (folder / "staging").mkdir(exist_ok=True)  # only then do definitions look for stored names
        self._home = {"KBQ_HOME": str(folder), "KBQ_SOURCE_TOPICS": str(folder / "topics.txt")}
        self.kafka = FakeKafka(chunk_records=chunk_records)
        self.kafka.create_topic(TOPIC, partitions)
        self.store = FaultyMemoryStore()
        self.warehouse = FakeWarehouse(self.store, self.store.path_of)
        self.registry = FakeRegistry({1: SCHEMA})
        self.clock = FakeClock()
        place = BackupPlace(self.store)
        ports = WorkerPorts(self.store, self.kafka, self.registry, self.clock, backup=lambda topic: place)
        self.engine = InProcessEngine(ports)
        self._environ: Mapping[str, str] = environ
        self._open(environ)

    def _open(self, environ: Mapping[str, str]) -> None:
        self.parts = with_ports(
            Parts(Adapters(parse_settings({**self._home, **environ}))),
            store=lambda: self.store,
            load_store=lambda: self.store,
            backup=lambda area, role: self.store,
            offsets=lambda: self.kafka,
            source=lambda: self.kafka,
            warehouse=lambda: self.warehouse,
            engine=_no_engine,
            clock=self.clock,
            expected=lambda: lambda tp: None,
            notifiers=tuple,
            examine_staging=lambda role: (),
        )
        engine = dg.ResourceDefinition.hardcoded_resource(self.engine)
        self.definitions = self.parts.definitions(resources={ENGINE: engine})

    def reopened(self, **environ: str) -> PlatformWorld:
        """The same world, reloaded with changed settings."""
        other = copy.copy(self)
        other._environ = {**self._environ, **environ}
        other._open(other._environ)
        return other

    def sources(self) -> TextIO:
        """The source list, to append lines to."""
        return Path(self._home["KBQ_SOURCE_TOPICS"]).open("a")

    def produce(self, count: int, partition: int = 0, topic: str = TOPIC) -> None:
        """Append good records."""
        for _ in range(count):
            self.kafka.produce(TopicPartition(topic, partition), RECORD)

    def run(
        self,
        job: str,
        instance: dg.DagsterInstance,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> dg.ExecuteInProcessResult:
        """Run a job in this process."""
        definition = self.definitions.resolve_job_def(job)
        return definition.execute_in_process(
            run_config=config, instance=instance, raise_on_error=False, tags=tags
        )


def _no_engine() -> AbstractContextManager[ExtractionEngine]:
    raise AssertionError("Dagster passes its own engine")
