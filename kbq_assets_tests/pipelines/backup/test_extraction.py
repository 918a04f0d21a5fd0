"""Extraction with a backup: one read if possible, and two outputs that never stop each other (PROTOCOL B1 to B4)."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from dataclasses import replace

import pytest

from kbq_assets.adapters.backup import BackupLog, BackupSource
from kbq_assets.core.backup import commits as backup
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import ReadOptions
from kbq_assets_tests.contracts.source import as_messages
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, TP, A, Bench, value

BACKED_UP = SETTINGS.with_options(backup="true")


def bench(**options: object) -> Bench:
    return Bench(BACKED_UP.with_options(**options))


def files(world: Bench, partition: int = 0) -> list[StagedFile]:
    return [f for w in world.backup_commit().partitions[partition].windows for f in w.files]


def copied(world: Bench, tp: TopicPartition = TP) -> list[tuple[object, ...]]:
    """Every record of the backup, as Kafka has it."""
    found = files(world, tp.partition)
    source = BackupSource(world.backups, {tp: BackupLog(tuple(found))})
    read = world.backup_commit().partitions[tp.partition]
    batches = source.read(OffsetRange(tp, read.start, read.next), ReadOptions(keys=True, headers=True))
    return [m[:] for batch in batches for m in as_messages(batch.chunk)]


def produced(world: Bench, tp: TopicPartition = TP) -> list[tuple[object, ...]]:
    return [m[:] for _, m in sorted(world.kafka.committed(tp).items())]


def reads(world: Bench) -> list[str]:
    """The ranges that the broker is asked for from now on."""
    asked: list[str] = []

    def note(call: Call) -> Outcome:
        if call.operation == "read":
            asked.append(call.target)
        return Outcome.OK

    world.faults = note
    return asked


def no_store(world: Bench) -> None:
    """Take the backup's store away."""
    world.faults = lambda call: Outcome.UNAVAILABLE if call.process == "backup" else Outcome.OK


def test_every_record_is_copied_verbatim_from_the_tables_own_reading() -> None:
    world = bench()
    world.produce(1, 1, 3)
    world.kafka.produce(TP, None, key=b"tombstone", headers=[("h", b"1"), ("h", None)])
    world.kafka.produce(TP, b"poison", timestamp=2**60)
    world.kafka.gap(TP, 3)
    asked = reads(world)
    report = world.extract()
    assert copied(world) == produced(world)
    assert (report.backup.records, report.backup.stops, report.backup.failures) == (5, (), {})
    starts = [target.split("[")[2].split(",")[0] for target in asked]
    assert sorted(set(starts)) == sorted(starts), "the broker was read twice"
    state = world.backup_commit().partitions[0]
    assert (state.next, state.totals.records, state.totals.gaps) == (8, 5, 3)
    assert state.next == world.commit().partitions[0].next


def test_a_topic_without_the_option_has_no_backup() -> None:
    world = Bench()
    world.produce(1)
    world.extract()
    assert world.backups.objects == {}


def test_a_backup_alone_makes_no_table() -> None:
    world = bench(backup="only")
    world.produce(1, 99, 1)
    world.extract()
    assert copied(world) == produced(world)
    assert world.paths("commits/") + world.paths("staging/") == []


def test_names_and_hashes_identify_the_content() -> None:
    world = bench()
    world.produce(1, 1, 3)
    world.extract()
    world.kafka.gap(TP, 2)
    world.extract()
    paths = [file.path.split("/") for file in files(world)]
    assert [(path[0], path[1]) for path in paths] == [("backup", TOPIC)] * 2
    assert [path[3] for path in paths] == [
        f"1_0_{0:020d}_{2:020d}.avro",
        f"1_0_{3:020d}_{4:020d}.avro",
    ], "a window without records has a file, too"
    stored = [hashlib.sha256(world.backups.objects[file.path].data).hexdigest() for file in files(world)]
    assert [file.content for file in files(world)] == [f"sha256:{each}" for each in stored]
    assert [f.until - f.window - f.rows for f in files(world)] == [0, 2]


@pytest.mark.parametrize("trouble", ["registry", "unknown_schema", "error_share"])
def test_a_stop_of_the_parser_stops_no_backup_and_the_tables_catch_up(trouble: str) -> None:
    world = bench(error_share=0.1, error_share_records=2)
    world.produce(1, 1)
    world.extract()
    if trouble == "registry":
        world.registry.down = True
        world.produce(3, 3, 3)
    elif trouble == "unknown_schema":
        world.produce(1, 99, 1)
    else:
        for _ in range(3):
            world.kafka.produce(TP, b"bad")
    for _ in range(3):
        world.extract()
        world.produce(1)
    world.extract()
    assert world.commit().partitions[0].next == (3 if trouble == "unknown_schema" else 2)
    assert copied(world) == produced(world), "hashes equal the broker's"
    assert world.backup_commit().partitions[0].next == 8
    world.registry.down = False
    world.registry.schemas[99] = world.registry.schemas[1]
    tables = world.commit().partitions[0]
    if trouble == "registry":
        asked = reads(world)
        world.extract()
        assert world.commit().partitions[0].next == 8
        assert asked
        world.load()
        assert len(world.offsets(A)) == 5
    else:
        assert tables.stop is not None
    assert copied(world) == produced(world)


def test_a_backup_out_of_reach_stops_no_table_and_is_seen() -> None:
    world = bench()
    world.produce(1, 1)
    world.extract()
    no_store(world)
    world.produce(1, 1)
    report = world.extract()
    assert world.commit().partitions[0].next == 4
    [stop] = report.backup.stops
    assert (stop.topic_partition.topic, stop.reason) == (TOPIC, "backup_unreachable")
    assert report.stops == ()
    world.faults = lambda call: Outcome.OK
    report = world.extract()
    assert report.backup.records == 2
    assert copied(world) == produced(world)
    world.produce(1)
    asked = reads(world)
    world.extract()
    assert len(asked) == 1, "both are at one position again: one reading"
    assert copied(world) == produced(world)


def test_a_store_that_fails_while_a_range_is_copied_stops_no_table() -> None:
    world = bench()
    world.produce(1, 1)
    folder = f"backup/{TOPIC}"
    world.faults = lambda call: (
        Outcome.UNAVAILABLE if call.writes and call.target.startswith(folder) else Outcome.OK
    )
    report = world.extract()
    assert world.commit().partitions[0].next == 2
    assert report.backup.records == 0
    assert TP in report.backup.failures
    assert report.failures == {}
    world.faults = lambda call: Outcome.OK
    world.extract()
    assert copied(world) == produced(world)


def test_slices_and_small_windows_copy_everything_once() -> None:
    world = Bench(BACKED_UP, window=WindowLimits(records=3), partitions=2)
    for number in range(25):
        world.produce(1 if number % 5 else 3, partition=number % 2)
    world.extract()
    for partition in range(2):
        tp = TopicPartition(TOPIC, partition)
        assert copied(world, tp) == produced(world, tp)
    windows = world.backup_commit().partitions[0].windows
    assert [w.first for w in windows] == [w.first for w in world.commit().partitions[0].windows]


def test_schemas_are_kept_with_the_records_that_name_them() -> None:
    world = bench()
    world.produce(1, 3, 1)
    world.extract()
    kept = [path for path in world.backups.objects if path.startswith(f"backup/@/schemas/{TOPIC}/")]
    documents = [json.loads(world.backups.objects[path].data) for path in sorted(kept)]
    assert [(d["schema_id"], d["schema_type"], d["schema"]) for d in documents] == [
        (number, "AVRO", world.registry.schemas[number]) for number in (1, 3)
    ]
    assert [file.schema_ids for file in files(world)] == [(1, 3)]


def test_a_full_disk_for_temporary_files_stops_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 KB wait in Python's buffer, so that the file cannot even be closed."""
    monkeypatch.setattr("kbq_assets.worker.backup._IN_MEMORY", 1)
    world = bench()
    for _ in range(30):
        world.kafka.produce(TP, value(1), key=b"k", headers=[("h", os.urandom(4000) + bytes(140_000))])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64_000, hard))
    try:
        report = world.extract()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (world.commit().partitions[0].next, report.failures) == (30, {})
    assert "File too large" in report.backup.failures[TP]
    world.extract()
    assert copied(world) == produced(world)


def test_a_reset_of_the_tables_leaves_the_backup_alone() -> None:
    world = bench()
    world.produce(1, 1)
    world.extract()
    before = world.backup_commit()
    for path in world.paths("commits/") + world.paths("done/"):
        world.store.delete(path)
    world.extract()
    assert world.backup_commit() == before
    assert world.commit().partitions[0].next == 2
    assert copied(world) == produced(world)


def test_records_lost_to_retention_are_a_gap_of_the_backup() -> None:
    world = bench(on_retention_loss="record")
    world.produce(1, 1)
    world.extract()
    world.produce(1, 1, 1)
    world.kafka.delete_before(TP, 4)
    world.extract()
    state = world.backup_commit().partitions[0]
    assert [(gap.first, gap.until) for gap in state.accepted_gaps] == [(2, 4)]
    assert [(f.window, f.until) for f in files(world)] == [(0, 2), (4, 5)]


class TestBelowTheLogStart:
    """PROTOCOL B9."""

    @staticmethod
    def overtaken(world: Bench) -> None:
        """The tables stop at offset 2, the backup goes on to 6, and Kafka deletes the records below 5."""
        world.produce(1, 1)
        world.extract()
        world.registry.down = True
        world.produce(1, 3, 1, 1)
        world.extract()
        world.extract()
        world.registry.down = False
        world.kafka.delete_before(TP, 5)

    @pytest.mark.parametrize("policy", ["stop", "record"])
    def test_tables_are_read_from_the_backup_and_nothing_is_lost(self, policy: str) -> None:
        world = bench(on_retention_loss=policy)
        self.overtaken(world)
        world.produce(1)
        report = world.extract()
        assert (report.stops, report.failures) == ((), {})
        world.extract()
        world.load()
        state = world.commit().partitions[0]
        assert (state.next, state.totals.records, state.totals.lost) == (7, 7, 0)
        assert world.offsets(A) == [0, 1, 2, 4, 5, 6]
        assert copied(world) == produced(world)

    def test_what_the_backup_does_not_have_stops_as_before(self) -> None:
        world = bench()
        self.overtaken(world)
        world.kafka.delete_before(TP, 6)
        world.produce(1, 1)
        world.kafka.delete_before(TP, 8)
        world.extract()
        [stop] = world.extract().stops
        assert (stop.reason, world.commit().partitions[0].next) == ("retention_loss", 6)
        assert [s.reason for s in world.extract().backup.stops] == ["retention_loss"]

    def test_a_backup_of_another_log_is_no_help(self) -> None:
        world = bench()
        self.overtaken(world)
        area, path = world.backup_area, f"commits/{TOPIC}.json"
        state.change(area, Commit, path, lambda now: replace(now, topic_id="id-other"))
        assert [stop.reason for stop in world.extract().stops] == ["retention_loss"]

    def test_a_backup_of_an_older_epoch_is_no_help(self) -> None:
        world = bench()
        self.overtaken(world)
        area, path = world.backup_area, f"commits/{TOPIC}.json"
        state.change(area, Commit, path, lambda now: backup.reset(now, {0: 6}, {0: 0}, "fake", now.topic_id))
        assert [stop.reason for stop in world.extract().stops] == ["retention_loss"]

    def test_a_damaged_copy_stops_at_its_first_position(self) -> None:
        world = bench()
        self.overtaken(world)
        world.backups.objects.pop(files(world)[1].path)
        [stop] = world.extract().stops
        assert (stop.reason, world.commit().partitions[0].next) == ("damaged_batch", 2)
        assert "is gone" in stop.message

    def test_tables_of_a_topic_without_a_backup_stop(self) -> None:
        world = Bench()
        world.produce(1, 1, 1)
        world.extract()
        world.produce(1, 1)
        world.kafka.delete_before(TP, 4)
        assert [stop.reason for stop in world.extract().stops] == ["retention_loss"]
