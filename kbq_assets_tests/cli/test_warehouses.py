"""Two DuckDB files as two warehouses: each gets the rows of its topics, and one that is down delays no other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kbq_assets.core.observation.check_names import ROWS_MATCH, TABLES_LOAD
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Parts
from kbq_assets.worker.adapters import open_store
from kbq_assets_tests.cli.conftest import Shell
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

BOTH = f"{TOPIC} dataset=shop table=orders warehouses=main,lake\n"


pytestmark = pytest.mark.filterwarnings("ignore:Parameter `owners` of initializer `SensorDefinition")

LAKE = ("warehouses", "lake")
IN_LAKE = dg.AssetKey([*LAKE, "shop", "orders"])


class TwoWarehouses(FakePlatform):
    """The fakes of broker and registry over a local staging area and DuckDB files."""

    def __init__(self, folder: Path, warehouses: str, sources: str = BOTH) -> None:
        super().__init__(folder, sources=sources, environ={"KBQ_WAREHOUSE": warehouses})
        self.store = open_store(self.settings)  # type: ignore[assignment]

    def reopened(self, **ports: Any) -> Parts:
        """Each warehouse opens as its settings say."""
        parts = super().reopened(**ports)
        del parts.adapters.warehouse
        return parts


@pytest.fixture
def files(tmp_path: Path) -> str:
    return f"main=duckdb:{tmp_path / 'main.duckdb'},lake=duckdb:{tmp_path / 'lake.duckdb'}"


@pytest.fixture
def world(tmp_path: Path, files: str) -> TwoWarehouses:
    return TwoWarehouses(tmp_path, files)


@pytest.fixture
def run(world: TwoWarehouses) -> Shell:
    return Shell(world)


def rows(run: Shell) -> dict[str, list[tuple[str, int, int]]]:
    """Rows and waiting rows of each table, by warehouse."""
    found = run.json("status")["warehouses"]
    return {
        name: [(t["table"], t["loaded_rows"], t["pending_rows"]) for t in status["tables"]]
        for name, status in found.items()
    }


def test_each_warehouse_gets_the_rows_and_accounts_for_them(world: TwoWarehouses, run: Shell) -> None:
    world.produce(3)
    run.done("extract")
    assert {name: document["rows"] for name, document in run.json("load")["warehouses"].items()} == {
        "main": 3,
        "lake": 3,
    }
    assert rows(run) == {"main": [("shop.orders", 3, 0)], "lake": [("shop.orders", 3, 0)]}
    assert "warehouse lake" in run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("check")
    assert [entry.path for entry in world.store.list("staging/")] == []
    run.done("extract")
    assert [e.path for e in world.store.list("tables/lake/")] == [
        "tables/lake/_tables.json",
        "tables/lake/shop.orders.json",
    ]


def test_a_warehouse_that_is_down_delays_no_other(
    world: TwoWarehouses, run: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbq_assets.pipelines.extraction.recovery.PATIENCE", 0)
    world.produce(2)
    run.done("extract")
    run.done("load")
    lake = tmp_path / "lake.duckdb"
    lake.rename(tmp_path / "away")
    lake.mkdir()
    for _ in range(2):
        world.produce(1)
        run.done("extract")
        assert run("load").exit_code != 0
    run.done("extract")
    assert rows(run) == {"main": [("shop.orders", 4, 0)], "lake": [("shop.orders", 2, 2)]}
    assert len(list(world.store.list("backlog/lake/shop.orders/"))) == 2
    lake.rmdir()
    (tmp_path / "away").rename(lake)
    run.done("load")
    run.done("load")
    assert rows(run)["lake"] == [("shop.orders", 4, 0)]
    assert list(world.store.list("backlog/")) == []
    run.done("reconcile")


def test_a_command_that_changes_tables_asks_which_warehouse(world: TwoWarehouses, run: Shell) -> None:
    world.produce(1)
    run.done("extract")
    run.done("load")
    refused = run("park", "--table", "shop.orders", "--yes")
    assert refused.exit_code == 2
    assert "  next: kbq --warehouse main park --table shop.orders --yes\n" in refused.output
    assert "  next: kbq --warehouse lake park --table shop.orders --yes\n" in refused.output
    assert run("resume", "--table", "shop.orders", "--yes").exit_code == 2
    run.done("--warehouse", "lake", "park", "--table", "shop.orders", "--yes")
    world.produce(1)
    run.done("extract")
    assert run("load").exit_code == 1
    assert rows(run) == {"main": [("shop.orders", 2, 0)], "lake": [("shop.orders", 1, 1)]}
    assert run.json("--warehouse", "main", "status")["tables"][0]["loaded_rows"] == 2
    run.done("--warehouse", "lake", "resume", "--table", "shop.orders", "--yes")
    run.done("load")
    assert rows(run)["lake"] == [("shop.orders", 2, 0)]
    assert run("--warehouse", "sea", "status").exit_code == 1


def test_a_warehouse_is_reconciled_without_the_topics_of_others(world: TwoWarehouses, run: Shell) -> None:
    world.source_topics.write_text(f"{BOTH}other dataset=shop table=others format=json\n")
    world.kafka.create_topic("other", 1)
    world.kafka.produce(TopicPartition("other", 0), b"{}")
    world.produce(2)
    run.done("extract")
    run.done("load")
    of_lake = run.json("--warehouse", "lake", "reconcile")
    assert list(of_lake["topics"]) == [TOPIC]
    assert "no record of 1 topic\n" in run.done("--warehouse", "lake", "reconcile")
    assert sorted(run.json("--warehouse", "main", "reconcile")["topics"]) == ["other", TOPIC]


def test_what_all_warehouses_share_is_shown_once(world: TwoWarehouses, run: Shell) -> None:
    world.produce(2)
    planned = run.done("plan")
    assert planned.count("extract: 2 positions") == planned.count("warehouse lake") == 1
    run.done("extract")
    planned, shown = run.done("plan"), run.done("status")
    assert planned.count("load: 2 rows") == 2
    assert shown.count(f"{TOPIC}[0]") == shown.count("lag 0 positions") == 1
    assert shown.count("shop.orders ") == shown.count("2 rows to load") == 2
    of_lake = run.done("--warehouse", "lake", "status")
    assert (of_lake.count(f"{TOPIC}[0]"), of_lake.count("shop.orders ")) == (1, 1)


def test_a_warehouse_added_later_begins_at_the_next_window(tmp_path: Path, files: str) -> None:
    first = TwoWarehouses(tmp_path, files.partition(",")[0], f"{TOPIC} dataset=shop table=orders\n")
    first.produce(2)
    Shell(first).done("extract")
    world = TwoWarehouses(tmp_path, files)
    world.kafka, run = first.kafka, Shell(world)
    run.done("load")
    world.produce(3)
    run.done("extract")
    run.done("load")
    assert rows(run) == {"main": [("shop.orders", 5, 0)], "lake": [("shop.orders", 3, 0)]}
    run.done("check")
    run.done("reconcile", "--counts")
    partly = run("--warehouse", "lake", "reconcile")
    assert (partly.exit_code, "3 of 5 rows" in partly.output) == (1, True)
    assert "every record accounted for: unknown" in partly.output
    for path in ("tables/_tables.json", "commits/_topics.json"):
        assert json.loads(world.store.get(path).data)["format"] == 3
        assert json.loads(world.store.get(path).data)["warehouses"] == {"lake": "active"}


def test_a_warehouse_leaves_by_a_command_and_never_by_a_setting(tmp_path: Path, files: str) -> None:
    world = TwoWarehouses(tmp_path, files)
    run = Shell(world)
    world.produce(2)
    run.done("extract")
    run.done("--warehouse", "main", "load")
    alone = TwoWarehouses(tmp_path, files.partition(",")[0], f"{TOPIC} dataset=shop table=orders\n")
    alone.kafka = world.kafka
    for command in ("extract", "load"):
        refused = Shell(alone)(command)
        assert (refused.exit_code, "kbq warehouse remove lake" in refused.output) == (1, True)
    assert (
        "gives up 2 rows of 1 staged file " in Shell(alone)("warehouse", "remove", "lake", answer="n").output
    )
    assert Shell(alone)("extract").exit_code == 1
    Shell(alone).done("warehouse", "remove", "lake", "--yes")
    Shell(alone).done("extract")
    Shell(alone).done("clean")
    assert list(world.store.list("staging/")) == []
    assert run("extract").exit_code == 1  # its name is not used again
    assert Shell(alone)("warehouse", "remove", "lake", "--yes").exit_code == 3
    assert Shell(alone)("warehouse", "remove", "main", "--yes").exit_code == 1


def test_a_topic_names_warehouses_that_there_are(tmp_path: Path, files: str) -> None:
    world = TwoWarehouses(tmp_path, files, f"{TOPIC} dataset=shop table=orders warehouses=sea\n")
    refused = Shell(world)("extract")
    assert (refused.exit_code, "KBQ_WAREHOUSE has no warehouse sea" in refused.output) == (1, True)


def test_dagster_loads_each_other_warehouse_by_a_job_and_a_sensor_of_its_own(
    world: TwoWarehouses, run: Shell
) -> None:
    world.produce(2)
    run.done("extract")
    run.done("--warehouse", "main", "load")
    definitions = world.reopened().definitions()
    [sensor] = [each for each in definitions.sensors or () if each.name == "load_sensor_lake"]
    job = definitions.resolve_job_def("load_lake_job")
    with dg.DagsterInstance.ephemeral() as instance:

        def requests() -> list[dg.RunRequest]:
            result = sensor(dg.build_sensor_context(instance=instance))
            assert isinstance(result, dg.SensorResult)
            return list(result.run_requests or ())

        [request] = requests()
        loaded = job.execute_in_process(instance=instance, tags=request.tags)
        [event] = loaded.asset_materializations_for_node("load_lake")
        assert (event.asset_key, event.metadata["rows"].value) == (IN_LAKE, 2)
        checks = {each.check_name: each.passed for each in evaluations(loaded) if each.asset_key == IN_LAKE}
        assert checks == {ROWS_MATCH: True, TABLES_LOAD: True}
        assert requests() == []
        assert rows(run)["lake"] == [("shop.orders", 2, 0)]
        run.done("--warehouse", "lake", "park", "--table", "shop.orders", "--yes")
        parked = job.execute_in_process(instance=instance, raise_on_error=False)
        assert "kbq --warehouse lake status" in str(parked.all_events)
        failed = {(each.asset_key, each.check_name) for each in evaluations(parked) if not each.passed}
        assert failed == {(key, TABLES_LOAD) for key in (IN_LAKE, dg.AssetKey([*LAKE, "warehouse_tables"]))}


def evaluations(ran: dg.ExecuteInProcessResult) -> Sequence[dg.AssetCheckEvaluation]:
    """The results of checks that a run wrote."""
    return ran.get_asset_check_evaluations()


def test_a_table_has_an_asset_with_checks_in_each_warehouse_that_gets_its_rows(
    tmp_path: Path, files: str
) -> None:
    world = TwoWarehouses(tmp_path, files, f"{BOTH}shop.returns dataset=shop table=returns\n")
    graph = world.reopened().definitions().resolve_asset_graph()
    tables = {key for key in graph.materializable_asset_keys if key.path[-1] in ("orders", "returns")}
    assert tables == {dg.AssetKey(["shop", "orders"]), dg.AssetKey(["shop", "returns"]), IN_LAKE}
    assert graph.get(IN_LAKE).parent_keys == {dg.AssetKey(["staged", TOPIC])}
    assert graph.get(IN_LAKE).pools == {"kbq_load_lake"}
    assert graph.get(IN_LAKE).metadata["materialized_by"] == "load_sensor_lake"
    assert {key.name for key in graph.get(IN_LAKE).check_keys} == {ROWS_MATCH, TABLES_LOAD}


def test_materializing_the_asset_of_another_warehouse_loads_that_one_alone(
    world: TwoWarehouses, run: Shell
) -> None:
    world.produce(2)
    run.done("extract")
    definitions = world.reopened().definitions()
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_implicit_global_asset_job_def()
        ran = job.execute_in_process(instance=instance, asset_selection=[IN_LAKE])
        assert [event.asset_key for event in ran.get_asset_materialization_events()] == [IN_LAKE]
    assert rows(run) == {"main": [("shop.orders", 0, 2)], "lake": [("shop.orders", 2, 0)]}
