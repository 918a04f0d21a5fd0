"""The contract suite of Kafka's readers, run against the backup of a broker's records."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kbq_assets.adapters.backup import BackupSource
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets_tests.adapters.kafka.brokers import FakeBroker
from kbq_assets_tests.contracts.source import SourceContract
from kbq_assets_tests.fakes.backup import log_of, write_files
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


class BackedUpKafka:
    """Backs up all new records of the broker, then reads only from the backup."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._store = FaultyMemoryStore()
        self._files: dict[TopicPartition, list[StagedFile]] = {}
        self._topic_ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        with self._lock:
            self._copy()
        logs = {
            tp: log_of(
                [f for f in files if f.until > self._kafka.log(tp).start], self._kafka.log(tp).leader_epoch
            )
            for tp, files in self._files.items()
        }
        source = BackupSource(self._store, logs)
        yield from source.read(range_, options)

    def _copy(self) -> None:
        for topic, described in self._kafka.topics().items():
            is_new = self._topic_ids.get(topic) != described.topic_id
            self._topic_ids[topic] = described.topic_id
            for partition in range(described.partitions):
                tp = TopicPartition(topic, partition)
                if is_new:
                    self._files.pop(tp, None)
                files, log = self._files.setdefault(tp, []), self._kafka.log(tp)
                first = max(files[-1].until if files else 0, log.start)
                if first == log.last_stable:
                    continue
                batches = self._kafka.read(
                    OffsetRange(tp, first, log.last_stable), ReadOptions(keys=True, headers=True)
                )
                files += write_files(self._store, tp, batches, first, len(self._topic_ids))


class BackedUpBroker(FakeBroker):
    """The fake broker, read from its backup."""

    def __init__(self) -> None:
        super().__init__()
        # Small windows, so that ranges begin and end within files and between them.
        self.kafka.chunk_records = 37
        self.source = BackedUpKafka(self.kafka)


class TestBackup(SourceContract):
    @pytest.fixture
    def broker(self) -> BackedUpBroker:
        return BackedUpBroker()
