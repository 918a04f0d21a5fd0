"""`kbq erase` for a topic with a backup: files are rewritten, and the backup brings no person back."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_erase import ERRORS, ORDERS, PERSON, is_whole, named, offsets, start
from kbq_assets_tests.fakes.platform import GOOD, POISON, SOURCES, TOPIC, FakePlatform


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Anna's records are 0:1 and 0:3, a bad one."""
    made = FakePlatform(
        tmp_path,
        keep_records=True,
        partitions=1,
        sources=SOURCES.strip() + " error_share=1 backup=true tombstones=error_table\n",
    )
    produce(made)
    return made


def produce(world: FakePlatform) -> None:
    for key, value in (("bert", GOOD), (PERSON, named(PERSON)), ("bert", None), (PERSON, POISON)):
        world.kafka.produce(TopicPartition(TOPIC, 0), value, key=key.encode())


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    return shell


def copies(world: FakePlatform) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
    """Key and value of every record in any backup file of the store, listed or not, by epoch and offset."""
    found = {}
    area = BackupArea(world.store)
    for entry in area.list(f"backup/{TOPIC}/"):
        name = BackupFileName.parse(entry.path)
        with area.open_read(entry.path) as stream:
            for chunk, _ in read_chunks(stream, name.epoch, name.range):
                for row in range(len(chunk)):
                    found[name.epoch, int(chunk.offsets[row])] = (chunk.key(row), chunk.value(row))
    return found


def test_a_backup_is_written_again_without_the_person_and_every_other_record_is_the_same(
    world: FakePlatform, run: Shell
) -> None:
    before = copies(world)
    assert "backup: 1 file is rewritten without 2 records" in run.done(
        "erase", "plan", TOPIC, "--key", PERSON
    )
    assert "1 file rewritten" in start(run)
    assert copies(world) == {at: record for at, record in before.items() if record[0] != PERSON.encode()}
    run.done("backup", "verify", "--topic", TOPIC)
    run.done("erase", "verify", "1")
    is_whole(run)
    cycle(run)
    produce(world)
    cycle(run)
    assert sorted(copies(world)) == [(1, 0), (1, 2), (1, 4), (1, 5), (1, 6), (1, 7)]
    run.done("backup", "verify", "--topic", TOPIC)


def test_records_that_kafka_has_no_longer_are_found_in_the_backup(world: FakePlatform, run: Shell) -> None:
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 4)
    shown = run.done("erase", "plan", TOPIC, "--key", PERSON)
    assert "erases 2 records" in shown and "not searched" not in shown
    start(run)
    assert offsets(world, ORDERS) == [(1, 0, 0)] and offsets(world, ERRORS) == [(1, 0, 2)]
    run.done("replay", "start", TOPIC, "--source", "backup", "--yes")
    run.done("replay", "promote", "1", "--yes")
    run.done("replay", "accept", "1", "--yes")
    assert offsets(world, ORDERS) == [(1, 0, 0)] and offsets(world, ERRORS) == [(1, 0, 2)]


def test_a_reset_of_the_backup_leaves_the_person_out_and_former_epochs_forget_too(
    world: FakePlatform, run: Shell
) -> None:
    run.done("backup", "reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    assert len(copies(world)) == 8
    start(run)
    assert sorted(copies(world)) == [(1, 0), (1, 2), (2, 0), (2, 2)]
    run.done("backup", "reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    assert sorted(copies(world)) == [(1, 0), (1, 2), (2, 0), (2, 2), (3, 0), (3, 2)]
    run.done("backup", "verify", "--topic", TOPIC)
    shown = run.done("erase", "plan", TOPIC, "--where", f"n={PERSON}")
    assert "before its reset was not searched by column" in shown


def test_tables_that_were_read_from_copies_without_the_last_record_go_on_in_kafka(
    world: FakePlatform, run: Shell
) -> None:
    """Kafka has the erased record still, before the range that follows."""
    start(run)
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 1)
    cycle(run)
    produce(world)
    cycle(run)
    assert [place for place in offsets(world, ORDERS) if place[0] == 2] == [(2, 0, 0), (2, 0, 4), (2, 0, 5)]
    is_whole(run)


def test_a_topic_with_a_backup_alone_is_erased(world: FakePlatform, tmp_path: Path) -> None:
    world.source_topics.write_text(f"{TOPIC} backup=only\n")
    run = Shell(world)
    run.done("extract")
    start(run)
    assert sorted(copies(world)) == [(1, 0), (1, 2)]


def test_a_backup_that_begins_after_an_erasure_lacks_the_person(world: FakePlatform) -> None:
    world.source_topics.write_text(SOURCES.strip() + " error_share=1\n")
    run = Shell(world)
    cycle(run)
    start(run)
    world.source_topics.write_text(SOURCES.strip() + " error_share=1 backup=true\n")
    cycle(run)
    assert sorted(copies(world)) == [(1, 0), (1, 2)]


def test_a_damaged_backup_file_stops_an_erasure_by_name(world: FakePlatform, run: Shell) -> None:
    [path] = [path for path in world.objects() if path.startswith("backup/shop")]
    whole = world.store.objects[path].data
    world.store.delete(path)
    world.store.create(path, whole[:-20])
    refused = run("erase", "start", TOPIC, "--key", PERSON, "--yes")
    assert refused.exit_code == 3 and "kbq backup verify" in refused.output
    world.store.delete(path)
    world.store.create(path, whole)
    start(run)
    assert sorted(copies(world)) == [(1, 0), (1, 2)]
