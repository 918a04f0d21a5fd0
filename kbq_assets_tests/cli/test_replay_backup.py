"""`kbq replay start --source backup`: a range that Kafka has forgotten, from verbatim copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import ORDERS, live_objects, offsets
from kbq_assets_tests.fakes.platform import GOOD, POISON, SOURCES, TOPIC, FakePlatform

RANGE = ("--from", "0:1,1:1", "--until", "0:5,1:2", "--yes")
BACKED_UP = SOURCES.replace("table=orders", "table=orders backup=true error_share=1 headers=true")
TP = TopicPartition(TOPIC, 0)


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Partition 0 has five rows and a bad record, partition 1 three rows, in two windows each; all are copied."""
    made = FakePlatform(tmp_path, keep_records=True, sources=BACKED_UP)
    made.produce(2)
    made.produce(1, value=POISON)
    made.produce(2, partition=1)
    return made


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    world.produce(3)
    world.produce(1, partition=1)
    cycle(shell)
    return shell


def rows(world: FakePlatform, number: int) -> list[list[Mapping[str, Any]]]:
    """All rows and bad records of a replay."""
    tables = (TableReference("shop", f"_kbq_replay_{number}_{name}") for name in ("orders", "kbq_errors"))
    return [sorted(world.warehouse.records(table), key=lambda r: r["_kafka_offset"]) for table in tables]


def test_a_range_from_the_backup_gives_the_rows_that_kafka_gives(world: FakePlatform, run: Shell) -> None:
    run.done("replay", "start", TOPIC, *RANGE)
    world.kafka.delete_before(TP, 6)
    before = live_objects(world)
    refused = run("replay", "start", TOPIC, *RANGE)
    assert (refused.exit_code, "--source backup" in refused.output) == (3, True)
    planned = run.done("replay", "start", TOPIC, *RANGE, "--source", "backup")
    assert "again from the backup" in planned
    assert rows(world, 2) == rows(world, 1)
    assert [len(each) for each in rows(world, 2)] == [4, 1]
    assert live_objects(world) == before
    assert run.json("replay", "diff", "2")["equal"]
    assert run.json("replay", "list")[1]["source"] == "backup"
    run.done("replay", "promote", "2", "--yes")
    assert len(offsets(world, ORDERS)) == 8
    run.done("check")


def test_schemas_come_from_the_backup_while_the_registry_is_away(world: FakePlatform, run: Shell) -> None:
    world.registry.down = True
    run.done("replay", "start", TOPIC, *RANGE, "--source", "backup")
    world.registry.down = False
    world.registry.schemas.clear()
    run.done("replay", "start", TOPIC, *RANGE, "--source", "backup")
    assert [len(each) for each in rows(world, 1)] == [4, 1]
    assert rows(world, 2) == rows(world, 1)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b'{"schema_id": 1, "schema": "other"', None])
def test_a_damaged_schema_of_the_backup_is_not_used(
    world: FakePlatform, run: Shell, damage: bytes | None
) -> None:
    [path] = [path for path in world.objects() if path.startswith(f"backup/@/schemas/{TOPIC}/1-")]
    stored = world.store.get(path)
    other = stored.data.replace(b"Order", b"Other")
    world.store.swap(path, other if damage is None else damage, stored.generation)
    world.registry.down = True
    stopped = run("replay", "start", TOPIC, *RANGE, "--source", "backup")
    assert stopped.exit_code == 75
    world.registry.down = False
    run.done("replay", "resume", "1")
    assert [len(each) for each in rows(world, 1)] == [4, 1]


def test_a_replay_s_area_has_the_backups_of_the_live_one(world: FakePlatform) -> None:
    settings = world.settings
    assert settings.below("replayed/1").backup.location == settings.staging_url
    elsewhere = replace(settings, backup=replace(settings.backup, location="gs://copies"))
    assert elsewhere.below("replayed/1").backup == elsewhere.backup


def test_a_crash_is_resumed_and_ends_at_the_end_of_the_range(world: FakePlatform, run: Shell) -> None:
    world.kills = lambda unit: unit.range.topic_partition.partition == 0
    run("replay", "start", TOPIC, *RANGE, "--source", "backup")
    world.kills = lambda unit: False
    run.done("replay", "resume", "1")
    assert [len(each) for each in rows(world, 1)] == [4, 1]


@pytest.mark.parametrize(
    ("sources", "options", "why"),
    [
        (SOURCES, (), "has no backup"),
        (BACKED_UP, ("--rate", "5"), "--rate limits reading from Kafka"),
    ],
)
def test_what_a_backup_cannot_do_is_refused_before_anything_is_written(
    world: FakePlatform, run: Shell, sources: str, options: tuple[str, ...], why: str
) -> None:
    world.source_topics.write_text(sources)
    before = world.objects()
    found = run("replay", "start", TOPIC, *options, "--source", "backup", "--yes")
    assert (found.exit_code, why in found.output, world.objects() == before) == (3, True, True)


def test_times_are_found_in_the_copies_as_in_kafka(world: FakePlatform, run: Shell) -> None:
    for offset, minute in enumerate((5, 3, 9, 7, 7, 12), 6):  # timestamps need not rise
        world.kafka.produce(TP, GOOD, timestamp=minute * 60_000)
        if offset == 8:
            cycle(run)
    cycle(run)
    for number, (first, until) in enumerate([(4, 10), (7, 13), (9, 12), (10, 99)], 1):
        ends = [f"1970-01-01T{at // 60:02}:{at % 60:02}Z" for at in (first, until)]
        ranges = []
        for source in ("kafka", "backup"):
            run.done(
                *("replay", "start", TOPIC, "--from", ends[0], "--until", ends[1]),
                "--source",
                source,
                "--yes",
            )
            ranges.append(run.json("replay", "list")[-1]["ranges"])
        assert ranges[0] == ranges[1], number
        assert ranges[0] != {}


def test_a_time_is_not_looked_up_in_a_damaged_copy(world: FakePlatform, run: Shell) -> None:
    path = min(path for path in world.objects() if path.startswith(f"backup/{TOPIC}/"))
    stored = world.store.get(path)
    world.store.swap(path, stored.data[:-3], stored.generation)
    options = ("--from", "1970-01-01T00:00Z", "--source", "backup", "--yes")
    refused = run("replay", "start", TOPIC, *options)
    assert (refused.exit_code, "kbq backup verify" in refused.output) == (3, True)


@pytest.mark.parametrize("started", [False, True])
def test_what_the_backup_lacks_is_refused_by_name(world: FakePlatform, run: Shell, started: bool) -> None:
    if started:
        world.kills = lambda unit: True
        run("replay", "start", TOPIC, *RANGE, "--source", "backup")
        world.kills = lambda unit: False
    run.done("backup", "reset", "--topic", TOPIC, "--partition", "0", "--at", "latest", "--yes")
    again = ("replay", "resume", "1") if started else ("replay", "start", TOPIC, *RANGE, "--source", "backup")
    refused = run(*again)
    assert (refused.exit_code, "the backup does not have position" in refused.output) == (3, True)
