"""`kbq replay start --tables`: only the named tables of a topic are filled, compared and replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.errors import UnsupportedFormat
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import Replay, is_shadow
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import live_objects, offsets
from kbq_assets_tests.fakes.platform import GOOD, SOURCES, TOPIC, FakePlatform

ONE, TWO, ALL, ERRORS = (TableReference("shop", name) for name in ("to_1", "to_2", "all", "kbq_errors"))
BY_RECORD = SOURCES.replace("table=orders", "table=to_{field.x}")
CHOSEN = ("--tables", "shop.to_1", "--yes")


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """Offsets 0 to 3 chose table `to_1`, 4 to 6 `to_2`."""
    made = FakePlatform(tmp_path, keep_records=True, sources=BY_RECORD, partitions=1)
    made.produce(4)
    made.produce(3, value=GOOD[:-1] + b"\x04")
    return made


@pytest.fixture
def run(world: FakePlatform) -> Shell:
    shell = Shell(world)
    cycle(shell)
    return shell


def replayed(world: FakePlatform, table: TableReference) -> list[int]:
    return sorted(r["_kafka_offset"] for r in world.warehouse.records(table) if r.get("_kbq_replay"))


def test_only_the_chosen_tables_are_filled_compared_replaced_and_rolled_back(
    world: FakePlatform, run: Shell
) -> None:
    before = live_objects(world)
    reported = run.done("replay", "start", TOPIC, *CHOSEN)
    assert "fills only shop.to_1" in reported
    assert "now have 4 rows in 1 table," in reported
    assert live_objects(world) == before
    assert [t.table for t in world.warehouse.stored if is_shadow(t)] == ["_kbq_replay_1_to_1"]
    assert run.json("replay", "status", "1")["tables"] == ["shop.to_1"]
    found = run.json("replay", "diff", "1")
    assert ({day["table"] for day in found["days"]}, found["complete"], found["equal"]) == (
        {"shop.to_1"},
        True,
        True,
    )
    run.done("replay", "promote", "1", "--yes")
    assert (replayed(world, ONE), replayed(world, TWO)) == ([0, 1, 2, 3], [])
    assert (len(offsets(world, ONE)), len(offsets(world, TWO))) == (4, 3)
    run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("replay", "rollback", "1", "--yes")
    assert replayed(world, ONE) == []
    run.done("replay", "drop", "1", "--yes")
    assert [t.table for t in world.warehouse.stored if is_shadow(t)] == []
    run.done("reconcile")


@pytest.mark.parametrize(
    ("now", "chosen", "why", "again"),
    [
        ("table=all", "shop.all", "4 rows of shop.to_1 would be in a chosen table too", "shop.all,shop.to_1"),
        (
            "table=all",
            "shop.to_1",
            "4 records of the range would leave the chosen tables",
            "shop.all,shop.to_1",
        ),
        (
            "table=to_{field.x} error_share=1 max_record_bytes=4",
            "shop.to_1",
            "4 records of the range would leave the chosen tables, perhaps for kbq_errors",
            "shop.kbq_errors,shop.to_1",
        ),
    ],
)
def test_a_record_that_moves_between_a_chosen_table_and_another_one_is_in_one_of_them(
    world: FakePlatform, run: Shell, now: str, chosen: str, why: str, again: str
) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", now))
    run.done("replay", "start", TOPIC, "--tables", chosen, "--yes")
    before = live_objects(world)
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, why in refused.output, live_objects(world) == before) == (3, True, True)
    assert f"kbq replay start {TOPIC} --tables {again}" in refused.output
    run.done("replay", "drop", "1", "--yes")
    run.done("replay", "start", TOPIC, "--tables", f"{again},shop.to_2", "--yes")
    run.done("replay", "promote", "2", "--yes")
    run.done("reconcile")
    run.done("reconcile", "--counts")


def test_a_table_without_rows_of_the_topic_is_named_in_the_plan(world: FakePlatform, run: Shell) -> None:
    reported = run.done("replay", "start", TOPIC, "--tables", "shop.to_1,shop.typo", "--yes")
    assert "has no row of this topic yet: shop.typo" in reported


def test_a_release_that_knows_no_chosen_tables_refuses_the_replay(
    world: FakePlatform, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would delete the rows of all other tables."""
    run.done("replay", "start", TOPIC, *CHOSEN)
    monkeypatch.setattr(codec, "HIGHEST", codec.ORDERED)
    with pytest.raises(UnsupportedFormat, match="format 5"):
        codec.loads(Replay, world.store.get("replays/1.json").data, "replays/1.json", keep=False)
