"""The registry is down for an hour by the clock: the backup is complete throughout, then the tables catch up (PROTOCOL
B1, B8)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest

from kbq_assets.adapters.backup import BackupLog, BackupSource
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.backup.verify import verify_topic
from kbq_assets.ports.kafka import ReadOptions
from kbq_assets_tests.contracts.source import as_messages
from kbq_assets_tests.pipelines.backup.test_extraction import BACKED_UP, files
from kbq_assets_tests.pipelines.bench import TOPIC, Bench, value

CYCLE_SECONDS = 300
HOUR_SECONDS = 3600
PARTITIONS = [TopicPartition(TOPIC, partition) for partition in (0, 1)]


class Hour(Bench):
    """Timed cycles of extraction and loading, with records of two schemas arriving between them."""

    def __init__(self) -> None:
        super().__init__(BACKED_UP, partitions=len(PARTITIONS))
        self.started_ms, self.cycles = self.clock.now_ms(), 0
        #: what the broker has had, by partition and offset
        self.originals: dict[TopicPartition, dict[int, Any]] = {tp: {} for tp in PARTITIONS}

    @property
    def minutes(self) -> float:
        return (self.clock.now_ms() - self.started_ms) / 60_000

    def arrive(self) -> None:
        """Each partition gets some records, with keys and headers."""
        self.cycles += 1
        for tp in PARTITIONS:
            for number in range(2 + (self.cycles + tp.partition) % 3):
                body = value(1 if (self.cycles + number) % 2 else 3)
                headers = [("cycle", str(self.cycles).encode()), ("empty", None)]
                at_ms = self.clock.now_ms() + 1000 * number
                self.kafka.produce(tp, body, key=b"%d" % number, timestamp=at_ms, headers=headers)
            self.originals[tp] |= self.kafka.committed(tp)

    def cycle(self) -> Any:
        """Five minutes: records arrive, then one run of each kind."""
        self.arrive()
        self.clock.sleep(CYCLE_SECONDS)
        self.store.time_ms = self.backups.time_ms = self.clock.now_ms()
        report = self.extract()
        self.load()
        return report

    def next_of(self, tp: TopicPartition) -> tuple[int, int, int]:
        """The ends of the tables, of the backup, and of the log."""
        commit, backup = self.commit(), self.backup_commit()
        at = tp.partition
        return commit.partitions[at].next, backup.partitions[at].next, self.kafka.log(tp).end


def digest(records: Iterable[Any]) -> str:
    """The hash of records by all that Kafka has of them: offset, time, key, value, headers."""
    return hashlib.sha256(repr([record[:] for record in records]).encode()).hexdigest()


def check_backup(world: Hour) -> None:
    """Each window has the bytes that its commit names, and exactly the records that the broker has there."""
    for tp in PARTITIONS:
        found, broker = files(world, tp.partition), world.originals[tp]
        source = BackupSource(world.backups, {tp: BackupLog(tuple(found))})
        for file in found:
            stored = world.backups.objects[file.path].data
            assert file.content == f"sha256:{hashlib.sha256(stored).hexdigest()}"
            batches = source.read(
                OffsetRange(tp, file.window, file.until), ReadOptions(keys=True, headers=True)
            )
            copies = [message for batch in batches for message in as_messages(batch.chunk)]
            originals = [broker[offset] for offset in range(file.window, file.until)]
            assert digest(copies) == digest(originals), file.path
        ends = [0, *(file.until for file in found)]
        assert [file.window for file in found] == ends[:-1], "windows adjoin"
        assert ends[-1] == world.kafka.log(tp).end, "the backup has all that the broker has"


def outage(world: Hour) -> None:
    """One cycle before the outage, then an hour of cycles, in which the backup advances but no table does."""
    world.cycle()
    before = {tp: world.next_of(tp)[0] for tp in PARTITIONS}
    world.registry.down, began = True, world.minutes
    while world.minutes - began < HOUR_SECONDS / 60:
        report = world.cycle()
        for tp in PARTITIONS:
            tables, backup, end = world.next_of(tp)
            assert (tables, backup) == (before[tp], end), f"{tp} after {world.minutes - began:.0f} minutes"
            assert "registry is down" in str(report.failures[tp])
        assert (report.backup.stops, report.backup.failures) == ((), {})
        check_backup(world)
    assert world.minutes - began == 60


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["kept by Kafka", "forgotten by Kafka"])
def test_an_hour_without_a_registry_costs_no_record(is_forgotten: bool) -> None:
    world = Hour()
    outage(world)
    assert world.cycles == 1 + HOUR_SECONDS // CYCLE_SECONDS
    if is_forgotten:  # B9: then the tables are read from the backup
        for tp in PARTITIONS:
            world.kafka.delete_before(tp, world.kafka.log(tp).end - 2)
    world.registry.down = False
    for _ in range(2):
        report = world.cycle()
        assert (report.stops, report.failures) == ((), {})
    check_backup(world)
    for tp in PARTITIONS:
        tables, backup, end = world.next_of(tp)
        assert tables == backup == end
    assert verify_topic(world.backup_area, TOPIC).damages == ()
    assert is_forgotten or world.reconcile().verdict == "yes"
    assert rows_of(world) == sorted(
        (tp.partition, offset) for tp in PARTITIONS for offset in world.originals[tp]
    )


def rows_of(world: Hour) -> list[tuple[int, int]]:
    """The places of all rows."""
    return sorted(
        (row.partition, row.offset)
        for table in world.warehouse.tables()
        for row in world.warehouse.rows(table)
    )
