"""Dagster's history: old runs go, with everything they left; what an asset's page stands on stays."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.defs.history import build_history, delete_old_runs

PARTITIONS = dg.DynamicPartitionsDefinition(name="keys")


@dg.op
def make(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
    print("made")
    for key in context.run.tags.get("keys", "").split():
        yield dg.AssetMaterialization("asset", partition=key)
    yield dg.Output(None)


@dg.job
def making() -> None:
    make()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance in SQLite."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def run_of(instance: dg.DagsterInstance, keys: str = "") -> str:
    return making.execute_in_process(instance=instance, tags={"keys": keys}).run_id


def now() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1)


def test_old_runs_leave_nothing_behind(home: dg.DagsterInstance, tmp_path: Path) -> None:
    run = run_of(home)
    assert [path for path in tmp_path.rglob("*") if run in path.name]
    assert delete_old_runs(home, now()) == (1, 0)
    assert home.get_runs() == []
    assert [path for path in tmp_path.rglob("*") if run in path.name] == []


def test_young_runs_and_runs_under_way_stay(home: dg.DagsterInstance) -> None:
    young = run_of(home)
    assert delete_old_runs(home, datetime.now(UTC) - timedelta(days=1)) == (0, 0)
    running = dg.DagsterRun(job_name="making", status=dg.DagsterRunStatus.STARTED)
    home.add_run(running)
    delete_old_runs(home, now())
    assert [run.run_id for run in home.get_runs()] == [running.run_id] != [young]


def test_the_run_that_made_a_partition_last_stays(home: dg.DagsterInstance) -> None:
    first, second, third = (run_of(home, keys) for keys in ("a b", "b c", "c"))
    superseded = run_of(home)
    assert delete_old_runs(home, now()) == (1, 3)
    assert superseded not in [run.run_id for run in home.get_runs()]
    again = run_of(home, "a b")
    assert delete_old_runs(home, now()) == (2, 2)
    assert {run.run_id for run in home.get_runs()} == {third, again}
    assert {first, second}.isdisjoint(run.run_id for run in home.get_runs())
    assert home.get_materialized_partitions(dg.AssetKey("asset")) == {"a", "b", "c"}


@pytest.mark.parametrize(("days", "left"), [(0, 1), (30, 1)])
def test_the_job_keeps_what_is_young_and_with_0_days_everything(
    home: dg.DagsterInstance, days: int, left: int
) -> None:
    run_of(home)
    job, schedule = build_history(days)
    assert job.execute_in_process(instance=home).success
    assert home.get_runs_count(dg.RunsFilter(job_name="making")) == left
    assert (schedule.default_status == dg.DefaultScheduleStatus.RUNNING) == bool(days)
