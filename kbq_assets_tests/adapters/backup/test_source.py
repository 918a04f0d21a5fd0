"""The backup as a source, beyond the contract suite that it shares with Kafka's readers: lost positions, damaged
files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.adapters.backup import BackupSource
from kbq_assets.core.errors import OffsetOutOfRange, UnreadableBatch
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import ReadOptions
from kbq_assets_tests.contracts.source import records
from kbq_assets_tests.fakes.backup import log_of, write_files
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

TP = TopicPartition("t", 0)


def backed_up(store: FaultyMemoryStore) -> list[StagedFile]:
    kafka = FakeKafka(chunk_records=10)
    kafka.create_topic("t")
    for number in range(30):
        kafka.produce(TP, b"%d" % number)
    return write_files(store, TP, kafka.read(OffsetRange(TP, 0, 30), ReadOptions(keys=True, headers=True)))


def test_positions_between_two_files_are_lost_not_empty() -> None:
    store = FaultyMemoryStore()
    first, _, third = backed_up(store)
    source = BackupSource(store, {TP: log_of([first, third])})
    assert len(records(list(source.read(OffsetRange(TP, 0, 10))))) == 10
    assert len(records(list(source.read(OffsetRange(TP, 20, 30))))) == 10
    for first_offset, until in ((0, 11), (5, 30), (10, 30), (12, 15)):
        with pytest.raises(OffsetOutOfRange):
            list(source.read(OffsetRange(TP, first_offset, until)))


@pytest.mark.parametrize("damage", ["gone", "changed", "cut", "extended"])
def test_a_damaged_file_ends_the_reading_before_its_first_record(damage: str) -> None:
    store = FaultyMemoryStore()
    files = backed_up(store)
    bad = files[1].path
    stored = store.objects.pop(bad)
    data = bytearray(stored.data)
    data[-30] ^= 1
    changed = {"changed": bytes(data), "cut": stored.data[:-1], "extended": stored.data + b"x"}
    if damage != "gone":
        store.objects[bad] = replace(stored, data=changed[damage])
    reading = BackupSource(store, {TP: log_of(files)}).read(OffsetRange(TP, 3, 30))
    found = [next(reading)]
    with pytest.raises(UnreadableBatch, match=bad) as raised:
        found.extend(reading)
    assert list(records(found)) == list(range(3, 10))
    assert (raised.value.first, raised.value.until) == (10, 20)
