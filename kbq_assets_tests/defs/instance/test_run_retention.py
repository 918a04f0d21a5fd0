"""Dagster's history: old runs are deleted with everything that they left, except what assets' pages need."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy
from dagster._core.storage.event_log import SqlEventLogStorage, sql_event_log
from dagster._serdes import deserialize_value

from kbq_assets.defs.instance import reports, run_retention
from kbq_assets.defs.instance.reports import delete_old_reports
from kbq_assets.defs.instance.run_retention import build_history, delete_old_runs
from kbq_assets_tests.defs.instance.postgres import postgres

PARTITIONS = dg.DynamicPartitionsDefinition(name="keys")
ASSET = dg.AssetKey("hours")
CHECK = dg.AssetCheckKey(ASSET, "fresh")


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


@pytest.mark.thorough
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


@pytest.fixture(params=["sqlite", "postgres"])
def reported_to(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with each of the databases, to which sensors have reported twice."""
    with ExitStack() as stack:
        overrides = {}
        if request.param == "postgres":
            url = stack.enter_context(postgres()).replace("postgresql:", "postgresql+psycopg2:")
            overrides = {"storage": {"postgres": {"postgres_url": url}}}
        instance = stack.enter_context(dg.DagsterInstance.local_temp(str(tmp_path), overrides))
        for number in range(3):
            for key in ("a", "b", None):
                report(instance, number, key)
        yield instance


def report(instance: dg.DagsterInstance, number: int, partition: str | None) -> None:
    """What a look reports: a partition is made and seen, and a check evaluated."""
    metadata = {"number": number}
    tags = {"dagster/data_version": str(number)}
    made = dg.AssetMaterialization(ASSET, partition=partition, metadata=metadata, tags=tags)
    instance.report_runless_asset_event(made)
    instance.report_runless_asset_event(dg.AssetObservation(ASSET, partition=partition, metadata=metadata))
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(ASSET, "fresh", passed=number % 2 == 0, metadata=metadata)
    )


@pytest.mark.thorough
def test_looking_for_old_runs_reads_no_more_events_however_many_there_are(
    home: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the newest of each key; the database finds these."""
    run_of(home)
    read = list[object]()

    def noted(*args: Any, **named: Any) -> object:
        read.append(args)
        return deserialize_value(*args, **named)

    def events_read(reports: int) -> int:
        for number in range(reports):
            for key in ("a", "b", None):
                report(home, number, key)
        read.clear()
        with monkeypatch.context() as patched:
            patched.setattr(sql_event_log, "deserialize_value", noted)
            run_retention.delete_old_runs(home, now())
        run_of(home)
        return len(read)

    few, many = events_read(5), events_read(15)
    assert few == many > 0


def rows(instance: dg.DagsterInstance, table: str) -> int:
    """Rows of one of Dagster's tables, of SQLite's index."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)
    with storage.index_connection() as connection:
        return int(connection.execute(sqlalchemy.text(f"SELECT count(*) FROM {table}")).scalar() or 0)


def seen(instance: dg.DagsterInstance) -> dict[str | None, object]:
    """The number that each partition's page shows, by all that are left."""
    records = instance.fetch_materializations(ASSET, limit=100, ascending=True).records
    return {
        r.partition_key: found.metadata["number"].value for r in records if (found := r.asset_materialization)
    }


@pytest.mark.slow
def test_old_reports_of_sensors_go_but_the_latest_of_each_partition_and_check(
    reported_to: dg.DagsterInstance,
) -> None:
    before = rows(reported_to, "event_logs")
    assert delete_old_reports(reported_to, datetime.now(UTC) - timedelta(days=1)) == 0
    assert rows(reported_to, "event_logs") == before == 27
    assert delete_old_reports(reported_to, now()) > 0
    assert seen(reported_to) == {"a": 2, "b": 2, None: 2}
    assert len(reported_to.fetch_materializations(ASSET, limit=100).records) == 3
    assert len(reported_to.fetch_observations(ASSET, limit=100).records) == 3
    assert rows(reported_to, "event_logs") == 7  # of evaluations the asset's last
    tags = rows(reported_to, "asset_event_tags")
    assert tags == 3
    latest = reported_to.get_latest_materialization_event(ASSET)
    assert latest is not None and latest.asset_materialization is not None
    assert reported_to.get_materialized_partitions(ASSET) == {"a", "b"}
    checked = reported_to.event_log_storage.get_latest_asset_check_execution_by_key([CHECK])[CHECK]
    assert checked.event is not None
    assert rows(reported_to, "asset_check_executions") == 2  # the last that passed, and that failed
    assert delete_old_reports(reported_to, now()) == 0
    report(reported_to, 3, "a")
    assert seen(reported_to) == {"a": 3, "b": 2, None: 2}


@pytest.mark.slow
def test_what_runs_made_is_not_touched_and_supersedes_reports(home: dg.DagsterInstance) -> None:
    home.report_runless_asset_event(dg.AssetMaterialization("asset", partition="a"))
    run = run_of(home, "a b")
    home.report_runless_asset_event(dg.AssetMaterialization("asset", partition="b"))
    assert delete_old_reports(home, now()) == 1
    left = home.fetch_materializations(dg.AssetKey("asset"), limit=10, ascending=True).records
    assert [(r.partition_key, r.run_id) for r in left] == [("a", run), ("b", run), ("b", "")]


def test_a_day_deletes_so_many_rows_and_the_next_day_goes_on(
    home: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "ROWS_AT_ONCE", 3)
    for _ in range(5):
        home.report_runless_asset_event(dg.AssetMaterialization("asset", partition="a"))
    assert [delete_old_reports(home, now()) for _ in range(3)] == [3, 1, 0]


def test_the_copy_that_sqlite_keeps_in_the_runs_file_goes_too(home: dg.DagsterInstance) -> None:
    for _ in range(3):
        home.report_runless_asset_event(dg.AssetMaterialization("asset", partition="a"))
    delete_old_reports(home, now())
    assert len(home.event_log_storage.get_records_for_run("").records) == 1


def test_the_job_deletes_old_reports(home: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        home.report_runless_asset_event(dg.AssetMaterialization("asset", partition="a"))
    monkeypatch.setattr(run_retention, "datetime", _InThirtyDays)
    job, _ = build_history(30)
    assert job.execute_in_process(instance=home).success
    assert len(home.fetch_materializations(dg.AssetKey("asset"), limit=10).records) == 1


class _InThirtyDays(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(days=30, seconds=1)
