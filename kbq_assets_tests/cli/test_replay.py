"""`kbq replay`: a range is read again without any effect on the live topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.observation.run_totals import EXTRACTION, RunTotals, TopicCost, WorkerUse, totals_path
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.fakes.platform import GOOD, POISON, SOURCES, TOPIC, FakePlatform

ORDERS = TableReference("shop", "orders")
SHADOW = TableReference("shop", "_kbq_replay_1_orders")
RANGE = ("--from", "0:2,1:1", "--until", "0:5,1:2", "--yes")


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Six rows of partition 0 and three of partition 1 are loaded."""
    made = FakePlatform(tmp_path, keep_records=True)
    made.produce(6)
    made.produce(3, partition=1)
    return made


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    return shell


def offsets(world: FakePlatform, table: TableReference) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in world.warehouse.rows(table))


def live_objects(world: FakePlatform) -> dict[str, bytes]:
    """Everything in the store except what belongs to replays and to metrics."""
    mine = ("replays/", "replayed/", "metrics/", "costs/")
    return {path: data for path, data in world.objects().items() if not path.startswith(mine)}


def test_a_range_is_read_into_shadows_and_nothing_live_changes(world: FakePlatform, run: Shell) -> None:
    before, rows = live_objects(world), offsets(world, ORDERS)
    reported = run.done("replay", "start", TOPIC, *RANGE)
    assert "4 positions: about 4 records" in reported
    assert "now have 4 rows in 1 table," in reported
    assert offsets(world, SHADOW) == [(0, 2), (0, 3), (0, 4), (1, 1)]
    assert (live_objects(world), offsets(world, ORDERS)) == (before, rows)
    assert run.json("replay", "diff", "1")["equal"]
    run.done("reconcile")
    run.done("check")


def test_a_plan_estimates_the_time_of_reading_at_the_measured_rate(world: FakePlatform, run: Shell) -> None:
    used = TopicCost(core_seconds=18.0, records=9, seconds=36.0)
    path, start = totals_path(EXTRACTION), ("replay", "start", TOPIC, *RANGE[:-1])

    def plan(totals: RunTotals, *more: str) -> str:
        world.store.delete(path)
        world.store.create(path, codec.dumps(totals))
        return run(*start, *more, answer="n\n").stdout

    shown = plan(RunTotals(costs={TOPIC: used}, workers=(WorkerUse(), WorkerUse())))
    assert "about 8.0 processor seconds, as measured for this topic" in shown
    assert (
        "about 16.0 seconds in one task at the measured 0.2 records per second, 8.0 in 2 tasks, as in the last run"
        in shown
    )
    alone = plan(RunTotals(costs={TOPIC: used}), "--rate", "2")
    assert "about 16.0 seconds in one task at the measured 0.2 records per second\n" in alone
    assert "at least 2 s by --rate 2" in alone
    assert "in one task" not in plan(RunTotals(costs={TOPIC: TopicCost(core_seconds=18.0)}))


def test_the_live_topic_goes_on_during_a_replay_that_is_half_done(world: FakePlatform, run: Shell) -> None:
    world.kills = lambda unit: True
    assert run("replay", "start", TOPIC, *RANGE).exit_code == 75
    world.kills = lambda unit: False
    world.produce(2)
    cycle(run)
    assert len(offsets(world, ORDERS)) == 11
    run.done("replay", "resume", "1")
    assert offsets(world, SHADOW) == [(0, 2), (0, 3), (0, 4), (1, 1)]
    run.done("reconcile")


def test_a_replay_that_was_not_read_to_its_end_is_seen_until_somebody_decides(
    world: FakePlatform, run: Shell
) -> None:
    world.kills = lambda unit: True
    run("replay", "start", TOPIC, *RANGE)
    run("replay", "start", TOPIC, *RANGE)
    world.kills = lambda unit: False
    assert "kbq replay resume 1 or kbq replay drop 1" in run.done("status")
    assert len(run.json("status")["replays"]) == 2
    checked = run("check")
    assert (checked.exit_code, "replay 2 has not read its whole range" in checked.output) == (1, True)
    assert "next: kbq replay drop 2" in checked.output
    run.done("replay", "resume", "1")
    run.done("replay", "drop", "2", "--yes")
    assert run.json("status")["replays"] == []
    run.done("check")
    world.store.create("replays/3.json", b"{")
    damaged = run("check")
    assert (damaged.exit_code, "replays/3.json" in damaged.output) == (1, True)
    assert "replays/3.json" in run.done("status")


def test_distinct_keys_are_compared_where_a_table_keeps_them(world: FakePlatform, run: Shell) -> None:
    run.done("replay", "start", TOPIC, *RANGE)
    [first, _] = run.json("replay", "diff", "1")["days"]
    assert (first["live_keys"], first["replay_keys"]) == (None, None)
    shown = [line.split() for line in run.done("replay", "diff", "1").splitlines()]
    assert shown[1][-6:] == ["3", "3", "3", "3", "-", "-"]
    world.source_topics.write_text(f"{SOURCES.rstrip()} keys=true\n")
    for key in (b"a", b"b", b"a", None):
        world.kafka.produce(TopicPartition(TOPIC, 0), GOOD, key=key)
    world.kafka.produce(TopicPartition(TOPIC, 0), POISON, key=b"c")
    cycle(run)
    world.source_topics.write_text(f"{SOURCES.rstrip().replace('table=orders', 'table=sales')} keys=true\n")
    run.done("replay", "start", TOPIC, "--from", "0:6", "--until", "0:11", "--yes")
    found = run.json("replay", "diff", "2")["days"]
    assert [(day["table"], day["live_keys"], day["replay_keys"]) for day in found] == [
        ("shop.kbq_errors", 1, 1),
        ("shop.orders", 2, 0),
        ("shop.sales", 0, 2),
    ]


def test_a_shadow_that_lost_rows_is_not_complete_and_replaces_nothing(
    world: FakePlatform, run: Shell
) -> None:
    run.done("replay", "start", TOPIC, *RANGE)
    assert "complete: the shadows have 4 of 4 loaded rows" in run.done("replay", "diff", "1").splitlines()
    world.warehouse.stored[SHADOW].rows.pop()
    lost = run("replay", "diff", "1")
    assert (lost.exit_code, "not complete: the shadows have 3 of 4 loaded rows" in lost.stdout) == (1, True)
    refused = run("replay", "promote", "1", "--yes")
    assert refused.exit_code == 3
    assert "the shadows have 3 of 4 loaded rows" in refused.stderr
    assert "next: kbq replay drop 1" in refused.stderr


def test_a_repaired_route_is_seen_in_the_difference(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    run.done("replay", "start", TOPIC, "--until", "0:3", "--yes")
    found = run.json("replay", "diff", "1", "--sample", "1")
    assert (found["complete"], found["equal"]) == (True, False)
    assert [(d["table"], d["live_rows"], d["replay_rows"]) for d in found["days"]] == [
        ("shop.orders", 3, 0),
        ("shop.sales", 0, 3),
    ]
    assert [(d["table"], d["offset"], d["only"]) for d in found["differences"]] == [
        ("shop.orders", 0, "live"),
        ("shop.sales", 0, "replay"),
    ]
    assert "shop.sales: partition 0 offset 0: only in the replay table" in run("replay", "diff", "1").output


def test_rows_keep_the_epoch_of_their_records(world: FakePlatform, run: Shell) -> None:
    run.done("reset", "--topic", TOPIC, "--partition", "1", "--at", "latest", "--yes")
    world.produce(2)
    cycle(run)
    refused = run("replay", "start", TOPIC, "--from", "0:4", "--yes")
    assert (refused.exit_code, "several epochs" in refused.output) == (3, True)
    run.done("replay", "start", TOPIC, "--from", "0:4", "--until", "0:6", "--yes")
    run.done("replay", "start", TOPIC, "--from", "0:6", "--yes")
    shadows = [TableReference("shop", f"_kbq_replay_{n}_orders") for n in (1, 2)]
    assert [[(r.epoch, r.offset) for r in world.warehouse.rows(t)] for t in shadows] == [
        [(1, 4), (1, 5)],
        [(2, 6), (2, 7)],
    ]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--until", "0:99"), "which was extracted"),
        (("--from", "0:3", "--until", "0:3"), "the range is empty"),
        (
            (
                "--from",
                "7:0",
            ),
            "no partition 7",
        ),
        (
            (
                "--from",
                "yesterday",
            ),
            "is not a position",
        ),
    ],
)
def test_a_range_that_cannot_be_read_is_refused_before_anything_is_written(
    world: FakePlatform, run: Shell, options: tuple[str, ...], why: str
) -> None:
    before = world.objects()
    found = run("replay", "start", TOPIC, *options, "--yes")
    assert (found.exit_code in (1, 3), why in found.output, world.objects() == before) == (True, True, True)


def test_a_range_that_kafka_no_longer_has_is_refused(world: FakePlatform, run: Shell) -> None:
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 3)
    found = run("replay", "start", TOPIC, "--from", "0:2", "--yes")
    assert (found.exit_code, "Kafka no longer has" in found.output) == (3, True)
    run.done("replay", "start", TOPIC, "--until", "0:5,1:1", "--yes")
    assert offsets(world, SHADOW) == [(0, 3), (0, 4), (1, 0)]


KEYED = "keys=true key=_kafka_key"


@pytest.mark.parametrize(
    ("load", "options", "why"),
    [
        (f"load=insert_new {KEYED}", RANGE, "(load=insert_new)"),
        (f"load=delete_insert {KEYED} version=x", RANGE, "(load=delete_insert)"),
        ("load=snapshot version=x", RANGE, "(load=snapshot)"),
        (f"load=scd2 {KEYED}", RANGE, "(load=scd2)"),
        (f"load=upsert tie=timestamp {KEYED}", RANGE, "(load=upsert tie=timestamp)"),
        (f"load=upsert order=offset format=debezium {KEYED}", RANGE, "(change events)"),
        (f"load=upsert {KEYED}", (*RANGE, "--tables", "shop.orders"), "without --tables"),
    ],
)
def test_a_range_of_a_table_that_depends_on_more_is_refused_before_anything_is_written(
    world: FakePlatform, run: Shell, load: str, options: tuple[str, ...], why: str
) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", f"table=orders {load}"))
    before = world.objects()
    found = run("replay", "start", TOPIC, *options)
    assert (found.exit_code, why in found.output, world.objects() == before) == (3, True, True), found.output


def test_what_is_refused_is_read_again_into_another_table(world: FakePlatform, run: Shell) -> None:
    options = f"load=insert_new {KEYED}"
    world.source_topics.write_text(SOURCES.replace("table=orders", f"table=orders2 {options}"))
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    assert len(world.warehouse.rows(TableReference("shop", "orders2"))) == 9


def test_an_upsert_tables_plan_and_diff_say_what_decides_about_its_keys(
    world: FakePlatform, run: Shell
) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=orders2 load=upsert key=x"))
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    assert "a promotion gives each key of the range its newest record" in run.done(
        "replay", "start", TOPIC, *RANGE
    )
    days = run.json("replay", "diff", "1")["days"]
    assert [day["replay_keys"] for day in days if day["table"] == "shop.orders2"] == [1, 1], "x is always 1"
    assert "its keys' rows come from 4 records" in run.done("replay", "promote", "1", "--yes")
    assert run.json("reconcile", "--counts")["findings"] == []
    run.done("replay", "rollback", "1", "--yes")
    run.done("check")


def test_a_replay_that_stops_names_its_way_back(world: FakePlatform, run: Shell) -> None:
    world.produce(1, value=POISON)
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=orders error_share=1"))
    cycle(run)
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=orders errors=fail"))
    stopped = run("replay", "start", TOPIC, "--from", "0:5", "--yes")
    assert (stopped.exit_code, "kbq replay resume 1 --as-errors" in stopped.output) == (1, True)
    assert run.json("replay", "status", "1")["stops"] != []
    run.done("replay", "resume", "1", "--as-errors")
    assert offsets(world, SHADOW) == [(0, 5)]
    assert run.json("replay", "status", "1")["errors"] == 1


def test_an_unknown_schema_stops_a_replay_until_the_registry_has_it(world: FakePlatform, run: Shell) -> None:
    world.produce(1)
    cycle(run)
    schema = world.registry.schemas.pop(1)
    stopped = run("replay", "start", TOPIC, "--from", "0:5", "--yes")
    assert stopped.exit_code == 1
    world.registry.schemas[1] = schema
    run.done("replay", "resume", "1")
    assert offsets(world, SHADOW) == [(0, 5), (0, 6)]


def test_a_dropped_replay_leaves_neither_table_nor_file_and_its_number(
    world: FakePlatform, run: Shell
) -> None:
    before = live_objects(world)
    run.done("replay", "start", TOPIC, *RANGE)
    run.done("replay", "drop", "1", "--yes")
    assert SHADOW not in world.warehouse.stored
    assert [path for path in world.objects() if path.startswith("replayed/")] == []
    assert live_objects(world) == before
    assert [(r["replay"], r["phase"]) for r in run.json("replay", "list")] == [(1, "dropped")]
    assert run("replay", "diff", "1").exit_code == 3
    run.done("replay", "start", TOPIC, *RANGE)
    assert [r["replay"] for r in run.json("replay", "list")] == [1, 2]


def test_a_rate_spreads_the_reading_over_turns(world: FakePlatform, run: Shell) -> None:
    world.produce(60)
    cycle(run)
    before = world.clock.monotonic()
    run.done("replay", "start", TOPIC, "--from", "0:0", "--rate", "1", "--yes")
    assert world.clock.monotonic() - before >= 60
    assert len(offsets(world, SHADOW)) == 66


@pytest.mark.parametrize("end", ["drop", "accept"])
def test_an_ended_replay_cannot_be_resumed_and_its_status_counts_nothing(run: Shell, end: str) -> None:
    run.done("replay", "start", TOPIC, *RANGE)
    if end == "accept":
        run.done("replay", "promote", "1", "--yes")
    run.done("replay", end, "1", "--yes")
    again = run("replay", "resume", "1")
    assert (again.exit_code, f"next: kbq replay start {TOPIC}" in again.stderr) == (3, True), again.output
    assert "positions" not in run.done("replay", "status", "1")


def test_a_phase_that_refuses_a_command_names_one_that_it_accepts(run: Shell) -> None:
    run.done("replay", "start", TOPIC, *RANGE)
    assert "next: kbq replay promote 1" in run("replay", "accept", "1", "--yes").stderr
    run.done("replay", "promote", "1", "--yes")
    assert "next: kbq replay accept 1, or kbq replay rollback 1" in run("replay", "drop", "1", "--yes").stderr
    run.done("replay", "accept", "1", "--yes")
    assert f"next: kbq replay start {TOPIC}" in run("replay", "drop", "1", "--yes").stderr
