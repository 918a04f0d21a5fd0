"""Producers with their own log, and platforms that read what they produced."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbq_assets.adapters.duckdb.database import DuckDbDatabase
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import STAGING, commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Parts
from kbq_assets.extras.reconcile.records import Reconciliation
from kbq_assets.extras.reconcile.values import SAMPLE
from kbq_assets.local.demo.broker import register_schema
from kbq_assets.pipelines.extraction.ports import ExtractionReport
from kbq_assets.pipelines.loading.load import LoadReport
from kbq_assets.pipelines.protocol import state
from kbq_assets.wire.chunk import RawRecord
from kbq_assets_tests.adapters.kafka.brokers import RealBroker
from kbq_assets_tests.integration.platform import open_parts
from kbq_assets_tests.wire.samples import avro_body, framed, record_of

#: 2013-01-01, the time of the first record.
FIRST_MS = 1_356_998_400_000


@dataclass(frozen=True)
class Registered:
    """A schema in the registry."""

    schema_id: int
    schema: Mapping[str, Any]

    def value(self, **fields: Any) -> bytes:
        """A record, as producers send it."""
        return framed(avro_body(self.schema, fields), self.schema_id)


class Producers:
    """Produce to the real broker, and keep the log: what became of each offset, by topic-partition."""

    def __init__(self, broker: RealBroker, registry_url: str) -> None:
        self.broker = broker
        self.registry_url = registry_url
        self.log: dict[TopicPartition, dict[int, str]] = defaultdict(dict)

    def register(self, *fields: tuple[str, Any], name: str = "Order", subject: str = "") -> Registered:
        """Register a record schema, by default with its own subject. Fields that may be null are null by default."""
        schema = record_of(*fields, name=name)
        for field in schema["fields"]:
            if "null" in field["type"]:
                field["default"] = None
        subject = subject or f"{uuid.uuid4().hex}-value"
        return Registered(register_schema(self.registry_url, subject, schema), schema)

    def produce(self, tp: TopicPartition, values: Sequence[bytes | RawRecord | None], outcome: str) -> range:
        """Append records, all with one outcome: `row:<dataset>.<table>`, `error` or `skip`. Return their offsets."""
        offsets = self._next(tp, len(values))
        self.broker.produce(tp, _messages(values, offsets))
        self.log[tp].update(dict.fromkeys(offsets, outcome))
        return offsets

    def transaction(self, tp: TopicPartition, values: Sequence[bytes], outcome: str, *, commit: bool) -> None:
        """Append records in one transaction, which takes one more position."""
        offsets = self._next(tp, len(values))
        self.broker.transaction(tp, _messages(values, offsets), commit=commit)
        if commit:
            self.log[tp].update(dict.fromkeys(offsets, outcome))

    def forget(self, tp: TopicPartition, below: int) -> None:
        """Drop offsets from the log: they were lost, and given up."""
        self.log[tp] = {offset: outcome for offset, outcome in self.log[tp].items() if offset >= below}

    def _next(self, tp: TopicPartition, count: int) -> range:
        first = self.broker.reader.offsets([tp])[tp].latest
        return range(first, first + count)


class World:
    """One platform: a folder with its store, its warehouse and its list of topics."""

    def __init__(
        self,
        folder: Path,
        producers: Producers,
        *,
        sources: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.producers = producers
        self.broker = producers.broker
        self.environ = {
            "KBQ_HOME": str(folder),
            "KBQ_SOURCE_TOPICS": str(folder / "source-topics.txt"),
            "KBQ_KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap_servers,
            "KBQ_REGISTRY_URL": producers.registry_url,
            "KBQ_REGISTRY_TIMEOUT_SECONDS": "120",
            **(environ or {}),
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.sources = sources
        self.parts = self.reopened()

    @property
    def sources(self) -> str:
        """The list of topics."""
        return (self.folder / "source-topics.txt").read_text()

    @sources.setter
    def sources(self, text: str) -> None:
        (self.folder / "source-topics.txt").write_text(text)

    def reopened(self, *, offsets_seconds: float = 120, **environ: str) -> Parts:
        """The platform as another process would open it, with some variables changed."""
        return open_parts({**self.environ, **environ}, self.producers.log, offsets_seconds=offsets_seconds)

    def topic(
        self,
        options: str = "dataset=shop table=orders",
        *,
        partitions: int = 1,
    ) -> TopicPartition:
        """Create a topic, list it, return its first partition."""
        topic = self.broker.create_topic(partitions)
        self.sources += f"{topic} {options}\n"
        return TopicPartition(topic, 0)

    # Runs

    def extract(self) -> ExtractionReport:
        """An extraction that nothing stops."""
        report = self.parts.extractor.extract()
        assert (report.stops, report.failures, report.unfinished) == ((), {}, 0)
        return report

    def stopped(self) -> PartitionStop:
        """An extraction that one partition, and no failure, stops."""
        report = self.parts.extractor.extract()
        assert report.failures == {}
        [stop] = report.stops
        return stop

    def load(self) -> LoadReport:
        """A load after which no table waits."""
        report = self.parts.loader.load()
        assert [t for t in report.tables if t.state != "idle"] == []
        return report

    def finish(self, values: str = SAMPLE) -> Reconciliation:
        """Run everything to its end: all that was produced is there once, nothing else is left, and a second run
        loads nothing."""
        self.extract()
        self.load()
        assert self.extract().totals.records == 0
        assert self.load().rows == 0
        self.parts.operator.clean()
        assert [entry.path for entry in self.parts.deployment.store.list(STAGING)] == []
        return self.reconciled(values)

    def reconciled(self, values: str = SAMPLE) -> Reconciliation:
        """The reconciliation, which finds nothing."""
        result = self.parts.reconciler.reconcile(values=values)
        assert [finding for account in result.partitions for finding in account.findings] == []
        assert result.accounted
        return result

    # State

    def commit(self, tp: TopicPartition) -> Commit:
        """The commit of a partition's topic."""
        return state.read(
            self.parts.deployment.store, Commit, commit_path(tp.topic, shard_of(tp.partition))
        ).value

    def partition(self, tp: TopicPartition) -> PartitionCommit:
        """Where a partition stands."""
        return self.commit(tp).partitions[tp.partition]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of the warehouse, by SQL."""
        # A process that has just loaded, or looks itself, may hold the file's lock for another moment.
        with DuckDbDatabase(self.folder / "warehouse.duckdb", 120.0).reading() as connection:
            return connection.execute(sql).fetchall()


def _messages(values: Sequence[bytes | RawRecord | None], offsets: range) -> list[RawRecord]:
    return [
        value
        if isinstance(value, RawRecord)
        else RawRecord(value, offset, FIRST_MS + offset, b"k%d" % offset)
        for value, offset in zip(values, offsets, strict=True)
    ]
