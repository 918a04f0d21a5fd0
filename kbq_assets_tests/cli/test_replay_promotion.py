"""`kbq replay promote`, `rollback` and `accept`: exactly the affected rows are replaced, and reconciliation is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import is_shadow
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import ORDERS, offsets
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.platform import SOURCES, TOPIC, FakePlatform
from kbq_assets_tests.fakes.replay import FakeReplayTables
from kbq_assets_tests.fakes.script import Script

SALES = TableReference("shop", "sales")
ALL = [(0, offset) for offset in range(6)] + [(1, offset) for offset in range(3)]
MOVED = [(0, 2), (0, 3), (1, 1)]
KEPT = [place for place in ALL if place not in MOVED]


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Nine rows went to the wrong table, `sales`; the source list says `orders` now."""
    made = FakePlatform(tmp_path, keep_records=True, sources=SOURCES.replace("table=orders", "table=sales"))
    made.produce(6)
    made.produce(3, partition=1)
    return made


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    world.source_topics.write_text(SOURCES)
    return shell


def is_whole(world: FakePlatform, run: Shell) -> None:
    """Whether every record is accounted for, by count and individually, and no row is duplicated."""
    run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("check")
    assert world.warehouse.duplicates() == {}


def read(run: Shell, *options: str) -> None:
    run.done("replay", "start", TOPIC, *(options or ("--from", "0:2,1:1", "--until", "0:4,1:2")), "--yes")


def test_the_plan_of_a_promotion_names_what_is_billed(world: FakePlatform, run: Shell) -> None:
    read(run)
    assert "billed" not in run.done("replay", "promote", "1", "--yes")
    run.done("replay", "rollback", "1", "--yes")
    world.warehouse.bytes_billed_per_row = 1_500_000_000
    shown = run.done("replay", "promote", "1", "--yes")
    assert "a promotion is billed about 9.00 GB, including its counts" in shown


def test_a_wrong_route_is_repaired_rolled_back_and_accepted(world: FakePlatform, run: Shell) -> None:
    read(run)
    is_whole(world, run)
    assert "3 rows replace 0" in run.done("replay", "promote", "1", "--yes")
    assert (offsets(world, SALES), offsets(world, ORDERS)) == (KEPT, MOVED)
    assert [record["_kbq_replay"] for record in world.warehouse.records(ORDERS)] == [1, 1, 1]
    is_whole(world, run)
    world.produce(2)
    cycle(run)
    run.done("replay", "rollback", "1", "--yes")
    assert (offsets(world, SALES), offsets(world, ORDERS)) == (ALL, [(0, 6), (0, 7)])
    is_whole(world, run)
    run.done("replay", "promote", "1", "--yes")
    run.done("replay", "accept", "1", "--yes")
    is_whole(world, run)
    assert run("replay", "rollback", "1", "--yes").exit_code == 3
    assert list(filter(is_shadow, world.warehouse.stored)) == []
    world.produce(1)
    cycle(run)
    is_whole(world, run)


def test_rows_outside_the_range_and_of_other_epochs_stay(world: FakePlatform, run: Shell) -> None:
    run.done("reset", "--topic", TOPIC, "--partition", "1", "--at", "earliest", "--yes")
    cycle(run)
    before = [(r.epoch, r.partition, r.offset) for r in world.warehouse.rows(SALES)]
    read(run, "--from", "1:0", "--until", "1:2")
    run.done("replay", "promote", "1", "--yes")
    assert [(r.epoch, r.partition, r.offset) for r in world.warehouse.rows(SALES)] == before
    assert sorted((r.epoch, r.offset) for r in world.warehouse.rows(ORDERS)) == [(2, 0), (2, 1), (2, 2)]


ERRORS = TableReference("shop", "kbq_errors")


@pytest.mark.parametrize(
    ("before", "now", "rows"),
    [
        ("error_share=1 max_record_bytes=4", "error_share=1", ([], ALL)),
        ("error_share=1", "error_share=1 max_record_bytes=4", (ALL, [])),
        ("errors=skip max_record_bytes=4", "error_share=1", ([], ALL)),
    ],
)
def test_bad_and_skipped_records_become_rows_and_rows_bad_records(
    world: FakePlatform, run: Shell, before: str, now: str, rows: tuple[Any, Any]
) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", f"table=sales {before}"))
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    cycle(run)
    world.source_topics.write_text(SOURCES.replace("table=orders", f"table=sales {now}"))
    read(run, "--from", "earliest")
    run.done("replay", "promote", "1", "--yes")
    assert (
        tuple(
            [(r.partition, r.offset) for r in sorted(world.warehouse.rows(t)) if r.epoch == 2]
            for t in (ERRORS, SALES)
        )
        == rows
    )
    is_whole(world, run)
    run.done("replay", "rollback", "1", "--yes")
    world.source_topics.write_text(SOURCES.replace("table=orders", f"table=sales {before}"))
    is_whole(world, run)


def test_a_promotion_waits_for_the_rows_of_its_range(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    world.produce(2)
    run.done("extract")
    world.source_topics.write_text(SOURCES)
    read(run, "--from", "0:5")
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "is not loaded" in refused.output) == (3, True)
    run.done("load")
    run.done("replay", "promote", "1", "--yes")
    assert (offsets(world, SALES), offsets(world, ORDERS)) == (
        [place for place in ALL if place != (0, 5)],
        [(0, 5), (0, 6), (0, 7)],
    )
    is_whole(world, run)


def test_files_in_quarantine_are_decided_about_first(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    world.produce(1)
    run.done("extract")
    world.warehouse.bad_paths |= {path for path in world.objects() if path.startswith("staging/")}
    run("load")
    world.source_topics.write_text(SOURCES)
    read(run, "--from", "0:5")
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "kbq quarantine drop" in refused.output) == (3, True)
    run.done("quarantine", "drop", "--table", "shop.sales", "--yes")
    run.done("replay", "promote", "1", "--yes")
    assert offsets(world, ORDERS) == [(0, 5), (0, 6)]


def test_a_dropped_table_gets_the_equal_rows_back(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    before = sorted(world.warehouse.records(SALES), key=_place)
    del world.warehouse.stored[SALES]
    world.warehouse.log.clear()
    world.produce(1)
    run.done("extract")
    assert run("load").exit_code == 1
    assert run.json("status")["tables"][0]["state"] == "parked"
    # The row that waits is not read again: it is loaded once the table is there.
    read(run, "--from", "earliest")
    run.done("replay", "promote", "1", "--yes")
    found = [
        {name: value for name, value in record.items() if name != "_kbq_replay"}
        for record in sorted(world.warehouse.records(SALES), key=_place)
    ]
    assert found == before
    cycle(run)
    assert offsets(world, SALES) == sorted([*ALL, (0, 6)])
    is_whole(world, run)


def test_part_of_a_dropped_table_comes_back_only_if_the_rest_is_given_up(
    world: FakePlatform, run: Shell
) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    del world.warehouse.stored[SALES]
    world.warehouse.log.clear()
    world.produce(1)
    run.done("extract")
    assert run("load").exit_code == 1
    read(run, "--from", "0:2,1:0")
    refused = run("replay", "promote", "1", "--yes")
    assert refused.exit_code == 3
    assert "shop.sales was dropped with 9 rows, and replay 1 has 7 of them" in refused.output
    assert run.json("status")["tables"][0]["state"] == "parked"
    assert run("load").exit_code == 1
    run.done("adopt", "--table", str(SALES), "--yes")
    run.done("replay", "promote", "1", "--yes")
    cycle(run)
    kept = [place for place in ALL if place not in ((0, 0), (0, 1))]
    assert offsets(world, SALES) == sorted([*kept, (0, 6)])
    run.done("check")
    assert "5 rows, but 7 were loaded" in run("reconcile", "--counts").output


def _place(record: Any) -> tuple[int, int]:
    return record["_kafka_partition"], record["_kafka_offset"]


def test_of_two_promotions_that_overlap_the_later_one_is_rolled_back_first(
    world: FakePlatform, run: Shell
) -> None:
    read(run)
    read(run, "--from", "0:3", "--until", "0:5")
    read(run, "--from", "1:2", "--until", "1:3")
    for number in ("2", "1", "3"):
        run.done("replay", "promote", number, "--yes")
    refused = run("replay", "rollback", "2", "--yes")
    assert refused.exit_code == 3
    assert "replay 1 was promoted later" in refused.output
    assert "kbq replay rollback 1, then kbq replay rollback 2" in refused.output
    run.done("replay", "rollback", "1", "--yes")
    run.done("replay", "rollback", "2", "--yes")
    run.done("replay", "rollback", "3", "--yes")
    assert offsets(world, SALES) == ALL
    is_whole(world, run)
    for number in ("1", "2"):
        run.done("replay", "promote", number, "--yes")
    run.done("replay", "accept", "2", "--yes")
    refused = run("replay", "rollback", "1", "--yes")
    assert (refused.exit_code, "kbq replay accept 1" in refused.output) == (3, True)
    run.done("replay", "accept", "1", "--yes")
    is_whole(world, run)


RANGE = ("--from", "0:2,1:1", "--until", "0:4,1:2", "--yes")


def ordered(world: FakePlatform, run: Shell, options: str) -> None:
    """The table has an order from now on, and one batch more."""
    world.source_topics.write_text(SOURCES.replace("table=orders", f"table=sales {options}"))
    world.produce(1)
    run.done("extract")
    run("load")


@pytest.mark.parametrize("gate", ["", " hold_until=go"])
def test_values_of_an_ordered_table_change_and_come_back(world: FakePlatform, run: Shell, gate: str) -> None:
    ordered(world, run, f"order=offset{gate}")
    if gate:
        run.done("order", "release", "shop.sales", "--yes")
        run.done("load")
    before = world.warehouse.records(SALES)
    again = f"table=sales order=offset{gate} keys=true"
    world.source_topics.write_text(SOURCES.replace("table=orders", again))
    assert "a promotion changes only values" in run.done("replay", "start", TOPIC, *RANGE)
    run.done("replay", "promote", "1", "--yes")
    assert offsets(world, SALES) == sorted([*ALL, (0, 6)])
    replayed = [r for r in world.warehouse.records(SALES) if r.get("_kbq_replay") == 1]
    assert sorted(map(_place, replayed)) == MOVED
    is_whole(world, run)
    run.done("replay", "rollback", "1", "--yes")
    assert sorted(world.warehouse.records(SALES), key=_place) == sorted(before, key=_place)
    is_whole(world, run)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("order=offset gate=person", "rows that passed its gates"),
        ("order=hour", "rows of complete hours"),
    ],
)
def test_a_table_whose_rows_were_judged_is_compared_and_keeps_them(
    world: FakePlatform, run: Shell, order: str, why: str
) -> None:
    ordered(world, run, order)
    before = world.warehouse.rows(SALES)
    run.done("replay", "start", TOPIC, *RANGE)
    assert run.json("replay", "diff", "1")["equal"]
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, why in refused.output) == (3, True), refused.output
    assert run.json("replay", "list")[0]["phase"] == "read"
    assert world.warehouse.rows(SALES) == before
    run.done("replay", "drop", "1", "--yes")


def test_no_row_of_an_ordered_table_appears_or_vanishes(world: FakePlatform, run: Shell) -> None:
    """Readers have read on: they would miss it. A rollback would let vanished rows appear."""
    ordered(world, run, "order=offset")
    world.source_topics.write_text(SOURCES)  # today's route takes them away
    run.done("replay", "start", TOPIC, *RANGE)
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "3 would vanish" in refused.output) == (3, True), refused.output
    assert offsets(world, SALES) == sorted([*ALL, (0, 6)])
    run.done("load")
    is_whole(world, run)


def test_a_promotion_of_before_the_order_is_not_rolled_back_under_it(world: FakePlatform, run: Shell) -> None:
    read(run)
    run.done("replay", "promote", "1", "--yes")
    ordered(world, run, "order=offset")
    refused = run("replay", "rollback", "1", "--yes")
    assert (refused.exit_code, "3 rows of the range would appear" in refused.output) == (3, True), (
        refused.output
    )
    run.done("replay", "accept", "1", "--yes")
    is_whole(world, run)


def test_a_range_that_lost_records_is_refused(world: FakePlatform, run: Shell) -> None:
    world.kafka.compact(TopicPartition(TOPIC, 0), 2)
    read(run)
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "compaction" in refused.output) == (3, True)
    assert offsets(world, SALES) == ALL


def test_a_promotion_that_died_is_seen_and_continued(world: FakePlatform, run: Shell) -> None:
    read(run)
    view = world.warehouse.view("promoter")
    dying = world.reopened(replay_tables=lambda: FakeReplayTables(world.warehouse, view))
    world.warehouse.faults = Script("replace", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        dying.replays.propose_promotion(1).apply()
    world.warehouse.faults = None
    world.produce(1)
    run.done("extract")
    assert "loaded 0 rows" in run("load").output
    for command in ("check", "status"):
        assert "kbq replay continue 1" in run(command).output
    run.done("reconcile", "--counts")
    assert run("replay", "drop", "1", "--yes").exit_code == 3
    run.done("replay", "continue", "1")
    run.done("load")
    assert offsets(world, ORDERS) == [*MOVED[:2], (0, 6), MOVED[2]]
    is_whole(world, run)


@pytest.mark.parametrize("object_", ["staging/", f"tables/{ORDERS}"])
@pytest.mark.parametrize("command", ["accept", "drop"])
def test_the_files_of_an_ended_replay_that_were_not_deleted_are_named_until_they_are(
    world: FakePlatform, run: Shell, command: str, object_: str
) -> None:
    read(run)
    if command == "accept":
        run.done("replay", "promote", "1", "--yes")
    world.store.create("replayed/1/staging/left", b"x")
    view = world.store.view("operator")
    parts = world.reopened(store=lambda: view)
    end = parts.replays.propose_accept if command == "accept" else parts.replays.propose_drop
    world.store.faults = Script("delete", f"replayed/1/{object_}", outcome=Outcome.REFUSED)
    with pytest.raises(Refused, match=f"replayed/1/{object_}") as refused:
        end(1).apply()
    world.store.faults = None
    assert refused.value.next_step == f"kbq replay {command} 1"
    # An erasure would not find the records that are left.
    waits = run("erase", "plan", TOPIC, "--key", "anna")
    assert (waits.exit_code, f"kbq replay {command} 1, then" in waits.output) == (3, True)
    run.done("replay", command, "1", "--yes")
    assert list(world.store.paths("replayed/")) == []
    assert run("erase", "plan", TOPIC, "--key", "anna").exit_code == 0


def test_a_replay_waits_for_another_one_of_its_range_that_died(world: FakePlatform, run: Shell) -> None:
    read(run)
    read(run, "--from", "0:3", "--until", "0:5")
    view = world.warehouse.view("promoter")
    dying = world.reopened(replay_tables=lambda: FakeReplayTables(world.warehouse, view))
    world.warehouse.faults = Script("replace", outcome=Outcome.CRASH_AFTER)
    with pytest.raises(Crash):
        dying.replays.propose_promotion(2).apply()
    world.warehouse.faults = None
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "kbq replay continue 2" in refused.output) == (3, True)
    run.done("replay", "continue", "2")
    run.done("replay", "promote", "1", "--yes")
    assert offsets(world, ORDERS) == [(0, 2), (0, 3), (0, 4), (1, 1)]
    is_whole(world, run)


def test_only_a_complete_replay_is_promoted(world: FakePlatform, run: Shell) -> None:
    world.kills = lambda unit: True
    run("replay", "start", TOPIC, "--yes")
    assert run("replay", "promote", "1", "--yes").exit_code == 3
    assert run("replay", "rollback", "1", "--yes").exit_code == 3
    assert run("replay", "continue", "1").exit_code == 3
    assert run("replay", "accept", "1", "--yes").exit_code == 3


def test_a_column_of_another_type_is_refused_before_anything_waits(world: FakePlatform, run: Shell) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    world.registry.schemas[1] = world.registry.schemas[1].replace('"long"', '"string"')
    stopped = run("replay", "start", TOPIC, "--yes")
    assert (stopped.exit_code, "schema" in stopped.output) == (
        1,
        True,
    )  # E12: ids are how records name their schema
    assert run("replay", "promote", "1", "--yes").exit_code == 3
    run.done("replay", "drop", "1", "--yes")
    is_whole(world, run)
