"""`kbq replay` of a topic with several warehouses: each is repaired by a replay of its own, and none waits for another
(PROTOCOL R13)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import is_shadow
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_erase import PERSON, start
from kbq_assets_tests.cli.test_erase_warehouses import TwoFakes, is_whole, rows
from kbq_assets_tests.cli.test_replay import ORDERS
from kbq_assets_tests.cli.test_replay_promotion import ALL, KEPT, MOVED
from kbq_assets_tests.cli.test_warehouses import BOTH
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.platform import GOOD, SCHEMAS, TOPIC, UNKNOWN_SCHEMA
from kbq_assets_tests.fakes.replay import FakeReplayTables
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import FakeTable, FakeWarehouse

WRONG = BOTH.replace("table=orders", "table=sales")
RANGE = ("--from", "0:2,1:1", "--until", "0:4,1:2", "--yes")
START = ("replay", "start", TOPIC, *RANGE)


@pytest.fixture
def world(tmp_path: Path) -> TwoFakes:
    """Nine rows went to the wrong table, `sales`, in both warehouses; the source list says `orders` now."""
    made = TwoFakes(tmp_path, WRONG)
    made.produce(6)
    made.produce(3, partition=1)
    return made


@pytest.fixture
def run(world: TwoFakes) -> Shell:
    shell = Shell(world)
    cycle(shell)
    world.source_topics.write_text(BOTH)
    return shell


def lake_of(world: TwoFakes) -> FakeWarehouse:
    assert world.lake is not None
    return world.lake


def tables(world: TwoFakes, warehouse: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Places of the rows of `sales` and `orders`."""
    return rows(world, warehouse, "sales"), rows(world, warehouse)


def read(run: Shell, warehouse: str, *options: str) -> None:
    run.done("--warehouse", warehouse, "replay", "start", TOPIC, *(options or RANGE))


def test_a_wrong_route_is_repaired_in_each_warehouse_by_a_replay_of_its_own(
    world: TwoFakes, run: Shell
) -> None:
    read(run, "lake")
    assert [t for t in lake_of(world).stored if is_shadow(t)] != []
    assert [t for t in world.warehouse.stored if is_shadow(t)] == []
    assert run.json("replay", "diff", "1")["equal"] is False
    run.done("replay", "promote", "1", "--yes")
    assert (tables(world, "lake"), tables(world, "main")) == ((KEPT, MOVED), (ALL, []))
    is_whole(run)
    read(run, "main")
    run.done("replay", "promote", "2", "--yes")
    assert (tables(world, "lake"), tables(world, "main")) == ((KEPT, MOVED), (KEPT, MOVED))
    is_whole(run)
    listed = run.json("replay", "list")
    assert [(each["replay"], each["warehouse"], each["phase"]) for each in listed] == [
        (1, "lake", "promoted"),
        (2, "main", "promoted"),
    ]
    assert [each["replay"] for each in run.json("--warehouse", "main", "replay", "list")] == [2]
    assert "lake" in run.done("replay", "list")
    assert f"replay 1 of {TOPIC} in lake: promoted" in run.done("replay", "status", "1")
    world.produce(2)
    cycle(run)
    run.done("replay", "rollback", "1", "--yes")
    assert tables(world, "lake") == (ALL, [(0, 6), (0, 7)])
    assert tables(world, "main") == (KEPT, sorted([*MOVED, (0, 6), (0, 7)]))
    is_whole(run)
    run.done("replay", "accept", "2", "--yes")
    run.done("replay", "drop", "1", "--yes")
    for warehouse in (world.warehouse, lake_of(world)):
        assert [t for t in warehouse.stored if is_shadow(t)] == []
    assert [entry.path for entry in world.store.list("replayed/")] == []
    is_whole(run)


def test_a_replay_asks_which_warehouse_and_remembers_it(world: TwoFakes, run: Shell) -> None:
    asked = run(*START)
    assert asked.exit_code == 2
    for name in ("main", "lake"):
        assert f"  next: kbq --warehouse {name} replay start {TOPIC} --from" in asked.output
    assert list(world.store.list("replays/")) == []
    read(run, "lake")
    stored = json.loads(world.store.get("replays/1.json").data)
    assert (stored["format"], stored["warehouse"]) == (9, "lake")
    for command in (("diff", "1"), ("promote", "1", "--yes"), ("drop", "1", "--yes"), ("resume", "1")):
        refused = run("--warehouse", "main", "replay", *command)
        assert (refused.exit_code, "replay 1 belongs to warehouse lake" in refused.output) == (3, True)
        assert "kbq --warehouse lake" in refused.output
    run.done("--warehouse", "lake", "replay", "diff", "1")
    assert run("replay", "diff", "7").exit_code == 1
    read(run, "main")
    stored = json.loads(world.store.get("replays/2.json").data)
    assert (stored["format"], "warehouse" in stored) == (3, False)


def test_a_topic_of_one_warehouse_needs_no_flag(world: TwoFakes, run: Shell) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders warehouses=lake\n")
    run.done(*START)
    assert run.json("replay", "list")[0]["warehouse"] == "lake"
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders\n")
    run.done(*START)
    assert run.json("replay", "list")[1]["warehouse"] == "main"
    # It has gone to the lake, and its rows there can still be repaired.
    read(run, "lake")
    run.done("replay", "promote", "3", "--yes")
    assert tables(world, "lake") == (KEPT, MOVED)
    is_whole(run)


def test_a_warehouse_that_the_topic_never_went_to_is_refused(world: TwoFakes, run: Shell) -> None:
    world.source_topics.write_text(f"{BOTH}other dataset=shop table=others format=json\n")
    world.kafka.create_topic("other", 1)
    world.kafka.produce(TopicPartition("other", 0), b"{}")
    cycle(run)
    refused = run("--warehouse", "lake", "replay", "start", "other", "--yes")
    assert (refused.exit_code, "other does not go to warehouse lake" in refused.output) == (3, True)
    assert "kbq --warehouse main replay start other" in refused.output
    world.source_topics.write_text("")
    assert run(*START).exit_code == 3


def test_a_promotion_waits_for_the_loads_of_its_own_warehouse_alone(world: TwoFakes, run: Shell) -> None:
    world.down = True
    world.source_topics.write_text(WRONG)
    world.produce(1)
    run.done("extract")
    run.done("--warehouse", "main", "load")
    world.source_topics.write_text(BOTH)
    read(run, "main", "--from", "0:6", "--until", "0:7", "--yes")
    run.done("replay", "promote", "1", "--yes")
    assert tables(world, "main") == (ALL, [(0, 6)])
    world.down = False
    read(run, "lake", "--from", "0:6", "--until", "0:7", "--yes")
    refused = run("replay", "promote", "2", "--yes")
    assert (refused.exit_code, "is not loaded" in refused.output) == (3, True)
    run.done("load")
    run.done("replay", "promote", "2", "--yes")
    assert tables(world, "lake") == (ALL, [(0, 6)])
    is_whole(run)


def test_who_dies_in_one_warehouse_stops_no_load_of_another(world: TwoFakes, run: Shell) -> None:
    read(run, "lake")
    lake = lake_of(world)
    view = lake.view("promoter")
    parts = world.reopened().for_warehouse("lake")
    parts.adapters.replay_tables = lambda: FakeReplayTables(lake, view)  # type: ignore[method-assign]
    lake.faults = Script("replace", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        parts.replays.propose_promotion(1).apply()
    lake.faults = None
    world.produce(1)
    run.done("extract")
    run.done("load")
    assert rows(world, "main") == [(0, 6)] and rows(world, "lake") == []
    run.done("--warehouse", "main", "check")
    assert "kbq replay continue 1" in run("--warehouse", "lake", "check").output
    read(run, "main")
    run.done("replay", "promote", "2", "--yes")
    run.done("replay", "continue", "1")
    run.done("load")
    assert tables(world, "lake") == tables(world, "main") == (KEPT, sorted([*MOVED, (0, 6)]))
    is_whole(run)


def test_a_rollback_looks_for_later_promotions_in_its_own_warehouse_alone(
    world: TwoFakes, run: Shell
) -> None:
    for name in ("main", "lake", "main"):
        read(run, name)
    for number in ("1", "2"):
        run.done("replay", "promote", number, "--yes")
    run.done("replay", "rollback", "1", "--yes")
    run.done("replay", "promote", "1", "--yes")
    run.done("replay", "promote", "3", "--yes")
    refused = run("replay", "rollback", "1", "--yes")
    assert (refused.exit_code, "replay 3 was promoted later" in refused.output) == (3, True)
    run.done("replay", "rollback", "2", "--yes")
    is_whole(run)


def test_counts_change_in_the_warehouse_of_the_replay_alone(tmp_path: Path) -> None:
    """An error row becomes a row, first in one warehouse, then in the other."""
    world = TwoFakes(tmp_path, BOTH.strip() + " error_share=1\n")
    run = Shell(world)
    for value in (GOOD, UNKNOWN_SCHEMA, GOOD):
        world.produce(value=value)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    cycle(run)
    world.registry.schemas[99] = SCHEMAS[1]
    for number, name in enumerate(("lake", "main"), 1):
        read(run, name, "--yes")
        run.done("replay", "promote", str(number), "--yes")
        assert rows(world, name) == [(0, 0), (0, 1), (0, 2)]
        assert rows(world, name, "kbq_errors") == []
        is_whole(run)
    commit = json.loads(world.store.get(f"commits/{TOPIC}.json").data)
    replaced = commit["partitions"]["0"]["replaced"]
    assert sorted(key.startswith("lake/kbq-replay-") for key in replaced) == [False, True]
    totals = run.json("reconcile")["warehouses"]
    assert {(each["totals"]["loaded"], each["totals"]["errors"]) for each in totals.values()} == {(3, 0)}


def reset_of_the_other_partition(run: Shell) -> None:
    """A new epoch, about which the commit says nothing for partition 0."""
    run.done("reset", "--topic", TOPIC, "--partition", "1", "--at", "latest", "--yes")


LAST = ("--from", "0:6", "--until", "0:8", "--yes")


def test_rows_that_no_warehouse_has_loaded_keep_the_epoch_of_their_records(
    world: TwoFakes, run: Shell
) -> None:
    """No mark says where the epoch ends: a backlog does, whose rows would come beside those of another epoch."""
    world.source_topics.write_text(WRONG)
    for name in ("main", "lake"):
        run.done("--warehouse", name, "park", "--table", "shop.sales", "--yes")
    world.produce(2)
    for _ in range(2):
        run.done("extract")
        run("load")
    reset_of_the_other_partition(run)
    world.source_topics.write_text(BOTH)
    read(run, "lake", *LAST)
    assert run.json("replay", "status", "1")["epoch"] == 1
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "is not loaded" in refused.output) == (3, True)
    for name in ("main", "lake"):
        run.done("--warehouse", name, "resume", "--table", "shop.sales", "--yes")
    run.done("load")
    run.done("replay", "promote", "1", "--yes")
    assert tables(world, "lake") == (ALL, [(0, 6), (0, 7)])
    assert tables(world, "main") == (sorted([*ALL, (0, 6), (0, 7)]), [])
    run.done("reconcile", "--counts")


def test_rows_that_a_warehouse_was_not_given_keep_the_epoch_of_their_records(
    world: TwoFakes, run: Shell
) -> None:
    """Only the marks of the first warehouse say where the epoch ends."""
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders\n")
    world.produce(2)
    cycle(run)
    reset_of_the_other_partition(run)
    world.source_topics.write_text(BOTH)
    read(run, "lake", *LAST)
    assert run.json("replay", "status", "1")["epoch"] == 1
    run.done("replay", "promote", "1", "--yes")
    assert tables(world, "lake") == (ALL, [(0, 6), (0, 7)])
    run.done("reconcile", "--counts")


def test_a_warehouse_that_is_removed_ends_its_replays(world: TwoFakes, run: Shell) -> None:
    read(run, "lake")
    read(run, "lake")
    read(run, "main")
    run.done("replay", "promote", "1", "--yes")
    shown = run.done("warehouse", "remove", "lake", "--yes")
    assert f"ends replay 1 of {TOPIC}" in shown and f"ends replay 2 of {TOPIC}" in shown
    assert f"replay 3 of {TOPIC}" not in shown
    assert [entry.path for entry in world.store.list("replayed/1/")] == []
    phases = [json.loads(world.store.get(f"replays/{n}.json").data)["phase"] for n in (1, 2, 3)]
    assert phases == ["accepted", "dropped", "read"]


def test_a_replay_of_a_warehouse_that_is_not_named_says_so(world: TwoFakes, run: Shell) -> None:
    read(run, "lake")
    world.settings = dataclasses.replace(world.settings, warehouse_urls="duckdb:/a")
    refused = run("replay", "diff", "1")
    assert (refused.exit_code, "kbq warehouse remove lake" in refused.output) == (3, True), refused.output


def test_an_erasure_waits_for_a_replay_of_any_warehouse(world: TwoFakes, run: Shell) -> None:
    world.kafka.produce(TopicPartition(TOPIC, 0), GOOD, key=PERSON.encode())
    cycle(run)
    read(run, "lake")
    refused = run("erase", "start", TOPIC, "--key", PERSON, "--yes")
    assert (refused.exit_code, "kbq replay drop 1" in refused.output) == (3, True)
    run.done("replay", "drop", "1", "--yes")
    start(run)
    read(run, "lake", "--from", "0:5", "--yes")
    assert (0, 5) in rows(world, "lake", "_kbq_replay_2_orders")
    assert (0, 6) not in rows(world, "lake", "_kbq_replay_2_orders")
    run.done("replay", "promote", "2", "--yes")
    assert (0, 6) not in rows(world, "lake")
    is_whole(run)


def test_a_warehouse_that_never_loaded_anything_is_filled_and_then_loaded(tmp_path: Path) -> None:
    world = TwoFakes(tmp_path, f"{TOPIC} dataset=shop table=orders\n")
    run = Shell(world)
    world.produce(6)
    world.produce(3, partition=1)
    cycle(run)
    world.source_topics.write_text(BOTH)
    read(run, "lake", "--yes")
    run.done("replay", "promote", "1", "--yes")
    assert rows(world, "lake") == ALL
    # The id names the staging area: another one that fills this warehouse has other jobs.
    job_id = json.loads(world.store.get("replays/1.json").data)["job_id"]
    staging_id = json.loads(world.store.get("tables/lake/_tables.json").data)["staging"]
    assert staging_id and job_id == f"kbq-replay-{staging_id}-1-1"
    world.produce(1)
    cycle(run)
    assert rows(world, "lake") == sorted([*ALL, (0, 6)])
    is_whole(run)


@pytest.mark.parametrize("foreign", [True, False])
def test_a_table_of_another_staging_area_is_not_filled(tmp_path: Path, foreign: bool) -> None:
    world = TwoFakes(tmp_path, f"{TOPIC} dataset=shop table=orders\n")
    run = Shell(world)
    world.produce(3)
    cycle(run)
    world.source_topics.write_text(BOTH)
    lake, mains = lake_of(world), world.warehouse.stored[ORDERS]
    lake.stored[ORDERS] = FakeTable(mains.columns, mains.options, rows=[*mains.rows] if foreign else [])
    read(run, "lake", "--yes")
    promoted = run("replay", "promote", "1", "--yes")
    assert (promoted.exit_code, "could double them" in promoted.output) == (
        (3, True) if foreign else (0, False)
    )
    world.produce(1)
    run.done("extract")
    assert (run("load").exit_code == 0) != foreign
    assert rows(world, "lake") == [(0, offset) for offset in range(3 if foreign else 4)]


def test_error_rows_wait_for_promotions_of_their_own_warehouse_alone(tmp_path: Path) -> None:
    world = TwoFakes(tmp_path, BOTH.strip() + " error_share=1\n")
    run = Shell(world)
    for value in (GOOD, UNKNOWN_SCHEMA, GOOD):
        world.produce(value=value)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    cycle(run)
    read(run, "lake", "--from", "0:0", "--until", "0:1", "--yes")
    run.done("replay", "promote", "1", "--yes")
    world.registry.schemas[99] = SCHEMAS[1]
    waits = run("--warehouse", "lake", "errors", "replay", "--yes")
    assert (waits.exit_code, "kbq replay accept 1" in waits.output) == (1, True)
    assert "1 row added" in run.done("--warehouse", "main", "errors", "replay", "--yes")
    run.done("replay", "accept", "1", "--yes")
    assert "1 row added" in run.done("--warehouse", "lake", "errors", "replay", "--yes")
    is_whole(run)


def test_older_rows_of_a_warehouse_that_was_added_later_come_by_a_replay(tmp_path: Path) -> None:
    world = TwoFakes(tmp_path, f"{TOPIC} dataset=shop table=orders\n")
    run = Shell(world)
    world.produce(6)
    world.produce(3, partition=1)
    cycle(run)
    world.source_topics.write_text(BOTH)
    world.produce(2)
    cycle(run)
    assert rows(world, "lake") == [(0, 6), (0, 7)]
    shown = run.done("--warehouse", "lake", "replay", "start", TOPIC, "--yes")
    assert "warehouse lake was not given 9 rows of the topic" in shown
    run.done("replay", "promote", "1", "--yes")
    assert rows(world, "lake") == sorted([*ALL, (0, 6), (0, 7)])
    run.done("check")
    run.done("reconcile", "--counts")
    run.done("reconcile")
    world.produce(1)
    cycle(run)
    is_whole(run)
    run.done("replay", "rollback", "1", "--yes")
    assert rows(world, "lake") == [(0, 6), (0, 7), (0, 8)]
    run.done("reconcile", "--counts")
