"""`kbq compact`: the plan changes nothing, the command says what it did, and a warehouse without files says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.contracts.compaction import view_of
from kbq_assets_tests.contracts.warehouse import TABLE
from kbq_assets_tests.fakes.platform import FakePlatform


@pytest.fixture
def lake(world: FakePlatform, tmp_path: Path) -> Lake:
    """The platform's warehouse, with a table of five files, an hour ago."""
    lake = Lake(tmp_path)
    for offset in range(5):
        lake.load(offset)
    world.warehouse = lake.warehouse  # type: ignore[assignment]
    newest = max(file.added_ms for file in view_of(lake).files)
    world.clock.skew_ms = newest + 3_600_001 - world.clock.now_ms()
    return lake


def test_the_plan_shows_files_before_and_after_and_changes_nothing(run: Shell, lake: Lake) -> None:
    before = view_of(lake)
    shown = run.done("compact", "--plan")
    assert "a query of all tables opens 4 fewer files" in shown
    [plan] = run.json("compact", str(TABLE), "--plan")
    assert (plan["files_before"], plan["files_after"], plan["reads_saved"]) == (5, 1, 4)
    assert plan["bytes_rewritten"] == plan["bytes_before"] == sum(file.bytes for file in before.files)
    assert [group["rows"] for group in plan["groups"]] == [5]
    assert view_of(lake) == before


def test_it_compacts_and_says_what_it_did(run: Shell, lake: Lake) -> None:
    [report] = run.json("compact")
    assert (report["table"], report["files_before"], report["files_after"]) == (str(TABLE), 5, 1)
    assert (report["commits"], report["failures"], report["message"]) == (1, {}, "")
    assert lake.offsets() == list(range(5))
    assert "nothing to compact" in run.done("compact", "--plan")
    assert str(TABLE) in run.done("compact")


def test_a_lost_file_fails_its_partition_with_exit_code_1(run: Shell, lake: Lake) -> None:
    lost = view_of(lake).files[2].path
    Path(lost.removeprefix("file://")).unlink()
    result = run("compact")
    assert result.exit_code == 1
    assert "failed: shop.orders-v1" in result.stdout
    assert lost.rpartition("/")[2] in result.stdout


def test_a_wrong_property_fails_its_table(run: Shell, lake: Lake) -> None:
    with lake.table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": "large"})
    result = run("compact")
    assert result.exit_code == 1
    assert "write.target-file-size-bytes" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"), [([], "no files to compact"), (["shop.missing"], "no files to compact")]
)
def test_a_warehouse_without_files_is_refused(run: Shell, args: list[str], message: str) -> None:
    result = run("compact", *args)
    assert result.exit_code == 1
    assert message in result.output


def test_an_unknown_table_is_refused(run: Shell, lake: Lake) -> None:
    result = run("compact", "shop.missing")
    assert result.exit_code == 1
    assert "the lake has no table shop.missing" in result.output


def test_of_several_warehouses_those_without_files_are_passed_over(tmp_path: Path) -> None:
    url = f"db=duckdb:{tmp_path}/kbq.duckdb,other=duckdb:{tmp_path}/other.duckdb"
    run = Shell(FakePlatform(tmp_path, environ={"KBQ_WAREHOUSE": url}))
    assert run.done("compact").count("no lake: nothing to compact") == 2
    assert run.done("expire").count("no lake: nothing to expire") == 2
    assert run.json("compact") == {"warehouses": {"db": [], "other": []}}


def test_the_options_of_the_topics_decide_before_the_tables_properties(
    run: Shell, lake: Lake, world: FakePlatform
) -> None:
    state.create(world.store, table_state_path(TABLE), TableState("1a2b", rows={"t/0/0": 5}))
    left = {}
    for option in ("lake_compact=off", "lake_min_files=6", "lake_min_age_seconds=7200", "lake_file_bytes=1"):
        world.source_topics.write_text(f"t dataset=shop table=orders {option}\n")
        [plan] = run.json("compact", "--plan")
        left[option] = (plan["files_after"], plan["left_alone"])
    assert left.pop("lake_compact=off") == (5, "compaction is off for this table")
    assert set(left.values()) == {(5, "")}
    world.source_topics.write_text("t dataset=shop table=orders\n")
    assert run.json("compact", "--plan")[0]["files_after"] == 1


def test_rows_older_than_the_topics_keep_them_are_dropped(
    run: Shell, lake: Lake, world: FakePlatform
) -> None:
    """The option of the topic whose rows the table has."""
    world.source_topics.write_text("t dataset=shop table=orders partition_expiry_days=30\n")
    hold = run.json("expire", "--plan")
    assert [(plan["days"], plan["rows"]) for plan in hold] == [(0, 0)]  # no state says whose rows these are
    state.create(world.store, table_state_path(TABLE), TableState("1a2b", rows={"t/0/0": 5}))
    [plan] = run.json("expire", "--plan")
    assert (plan["days"], plan["files"], plan["rows"]) == (30, 5, 5)
    assert lake.offsets() == list(range(5))
    assert "dropped 5 rows in 5 files" in run.done("expire")
    assert lake.offsets() == []
    assert str(TABLE) in run.done("expire", "--plan")
