"""Complete hours in Dagster: each is reported once, runs are per hour, and declarative automation depends on them."""

from __future__ import annotations

import dataclasses
import json
from unittest.mock import patch

import dagster as dg
import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.defs.loading.completeness import MOST_RUNS, hours_complete_sensor
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import StoredObject
from kbq_assets_tests.defs.test_sensors import evaluate, reason
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld

HOUR = 480_000
#: 2024-10-26 23:00 UTC
AUTUMN = 480_551
COMPLETE_HOURS = dg.AssetKey("complete_hours")


@dg.job
def refresh() -> None:
    """Nothing: what starts it is tested."""


@pytest.fixture
def loaded(world: PlatformWorld, instance: dg.DagsterInstance) -> PlatformWorld:
    """A world with rows in one table."""
    world.produce(2)
    world.run("extract_and_load", instance)
    return world


def _complete(world: PlatformWorld, until: int, table: str = TABLE) -> None:
    """Hours of a table are complete, as a load would find them."""
    path = table_state_path(TableReference.parse(table))

    def change(current: TableState) -> TableState:
        hours = dataclasses.replace(current.hours, until=until, rows={until - 1: 5})
        return dataclasses.replace(current, hours=hours)

    if path not in world.store.objects:
        state.create_table_state(world.store, TableReference.parse(table), "u")
    state.change(world.store, TableState, path, change)


def _tick(sensor: dg.SensorDefinition, instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance, cursor=cursor) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    return result


def _runs(result: dg.SensorResult) -> list[tuple[str | None, str | None]]:
    return [(run.tags.get("kbq/table"), run.tags["kbq/hour"]) for run in result.run_requests or ()]


def test_hours_that_become_complete_are_materialised_once(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    cursor = evaluate(loaded, "completeness_sensor", instance).cursor
    _complete(loaded, HOUR)
    first = evaluate(loaded, "completeness_sensor", instance, cursor)
    [event] = first.asset_events
    assert isinstance(event, dg.AssetMaterialization)
    assert (event.asset_key, event.partition) == (COMPLETE_HOURS, TABLE)
    _complete(loaded, HOUR + 3)
    again = evaluate(loaded, "completeness_sensor", instance, first.cursor)
    [event] = again.asset_events
    assert isinstance(event, dg.AssetMaterialization)
    assert event.metadata["complete_until"].value == (HOUR + 3) * HOUR_MS / 1000
    assert (event.metadata["hours"].value, event.metadata["rows"].value) == (3, 5)
    nothing = evaluate(loaded, "completeness_sensor", instance, again.cursor)
    assert (list(nothing.asset_events), nothing.cursor) == ([], again.cursor)


def test_a_table_that_dagster_has_not_loaded_gets_its_partition(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    _complete(world, HOUR)
    [request] = evaluate(world, "completeness_sensor", instance).dynamic_partitions_requests or ()
    assert list(request.partition_keys) == [TABLE]


def test_a_store_that_is_down_reports_nothing_and_forgets_nothing(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    loaded.store.down = True
    sensor = hours_complete_sensor(loaded.parts.observer, job=refresh, tables=[TABLE])
    for result in (evaluate(loaded, "completeness_sensor", instance, "c"), _tick(sensor, instance, "c")):
        assert (result.cursor, list(result.asset_events), _runs(result)) == ("c", [], [])


def test_known_hours_are_reported_although_no_further_one_can_be_judged(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    cursor = evaluate(loaded, "completeness_sensor", instance).cursor
    _complete(loaded, HOUR)
    read = loaded.store.get

    def get(path: str) -> StoredObject:
        if path == commit_path(TOPIC, 0):
            raise Unavailable("no answer")
        return read(path)

    loaded.produce(1)
    loaded.run("extract_job", instance)  # so no cache has the commit
    with patch.object(loaded.store, "get", get):
        first = evaluate(loaded, "completeness_sensor", instance, cursor)
        assert len(first.asset_events) == 1
        said = f"no further hour was judged: the tables of {commit_path(TOPIC, 0)} wait: no answer"
        assert said in reason(evaluate(loaded, "completeness_sensor", instance, first.cursor))


def test_a_job_runs_once_for_each_hour_of_each_table(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    sensor = hours_complete_sensor(loaded.parts.observer, job=refresh, tables=[TABLE, "d.other"])
    _complete(loaded, HOUR)
    first = _tick(sensor, instance, None)
    assert _runs(first) == []  # it begins with hours to come
    _complete(loaded, HOUR + 2)
    _complete(loaded, HOUR + 1, "d.other")
    second = _tick(sensor, instance, first.cursor)
    assert _runs(second) == [(TABLE, "2024-10-04T00:00"), (TABLE, "2024-10-04T01:00")]
    _complete(loaded, HOUR + 2, "d.other")
    third = _tick(sensor, instance, second.cursor)
    assert _runs(third) == [("d.other", "2024-10-04T01:00")]
    assert _runs(_tick(sensor, instance, third.cursor)) == []
    keys = [run.run_key for run in (*(second.run_requests or ()), *(third.run_requests or ()))]
    assert len(set(keys)) == 3


def test_together_means_when_all_have_the_hour(loaded: PlatformWorld, instance: dg.DagsterInstance) -> None:
    sensor = hours_complete_sensor(
        loaded.parts.observer, job=refresh, tables=[TABLE, "d.other"], together=True, partitioned=True
    )
    _complete(loaded, HOUR)
    assert json.loads(_tick(sensor, instance, None).cursor or "") == {}
    _complete(loaded, HOUR, "d.other")
    first = _tick(sensor, instance, "{}")
    _complete(loaded, HOUR + 2)
    waits = _tick(sensor, instance, first.cursor)
    assert _runs(waits) == []
    _complete(loaded, HOUR + 1, "d.other")
    done = _tick(sensor, instance, waits.cursor)
    assert _runs(done) == [(None, "2024-10-04T00:00")]
    assert [run.partition_key for run in done.run_requests or ()] == ["2024-10-04-00:00"]


@pytest.mark.parametrize("of_assets", [True, False])
def test_the_partition_of_an_hour_has_the_time_zone_of_the_job(
    loaded: PlatformWorld, instance: dg.DagsterInstance, *, of_assets: bool
) -> None:
    """At 01:00 UTC, Berlin's summer time ends: two hours there have the same name."""
    hours = dg.HourlyPartitionsDefinition("2024-10-01-00:00", timezone="Europe/Berlin")

    @dg.asset(partitions_def=hours)
    def report() -> None:
        """Nothing."""

    @dg.job(partitions_def=hours)
    def refresh_there() -> None:
        """Nothing."""

    job = dg.define_asset_job("report_job", [report]) if of_assets else refresh_there
    observer = loaded.parts.observer
    sensor = hours_complete_sensor(observer, job=job, tables=[TABLE], partitioned=True)
    definitions = dg.Definitions(assets=[report], jobs=[job], sensors=[sensor])
    _complete(loaded, AUTUMN)
    first = _tick(sensor, instance, None)
    _complete(loaded, AUTUMN + 3)
    with dg.build_sensor_context(instance=instance, cursor=first.cursor, definitions=definitions) as context:
        result = sensor(context)
    assert isinstance(result, dg.SensorResult)
    keys = [run.partition_key or "" for run in result.run_requests or ()]
    starts = [hours.start_time_for_partition_key(key).timestamp() for key in keys]
    assert starts == [(AUTUMN + each) * HOUR_MS / 1000 for each in range(3)]
    assert keys[0] == "2024-10-27-01:00"


def test_a_long_pause_is_made_up_for_in_order(loaded: PlatformWorld, instance: dg.DagsterInstance) -> None:
    sensor = hours_complete_sensor(loaded.parts.observer, job=refresh, tables=[TABLE])
    _complete(loaded, HOUR)
    cursor, hours = _tick(sensor, instance, None).cursor, []
    _complete(loaded, HOUR + MOST_RUNS + 7)
    for expected in (MOST_RUNS, 7, 0):
        result = _tick(sensor, instance, cursor)
        cursor = result.cursor
        hours += [hour for _, hour in _runs(result)]
        assert len(_runs(result)) == expected
    assert hours == sorted({hour or "" for hour in hours})


def test_declarative_automation_hangs_on_complete_hours(loaded: PlatformWorld) -> None:
    """With a real instance: what depends on complete hours is requested when they are reported, for that table."""
    spec = next(s for s in loaded.definitions.resolve_all_asset_specs() if s.key == COMPLETE_HOURS)

    @dg.asset(
        deps=[COMPLETE_HOURS],
        partitions_def=spec.partitions_def,
        automation_condition=dg.AutomationCondition.any_deps_updated(),
    )
    def report() -> None:
        """Stands for any asset that needs complete hours."""

    definitions = dg.Definitions([spec, report])
    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions("warehouse_tables", [TABLE, "d.other"])
        before = dg.evaluate_automation_conditions(definitions, instance)
        _complete(loaded, HOUR)
        for event in evaluate(loaded, "completeness_sensor", instance).asset_events:
            assert isinstance(event, dg.AssetMaterialization)
            instance.report_runless_asset_event(event)
        after = dg.evaluate_automation_conditions(definitions, instance, cursor=before.cursor)
        requested = after.get_requested_partitions(report.key)
    assert (before.total_requested, requested) == (0, {TABLE})


def test_a_load_shows_until_when_its_tables_are_complete(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    _complete(loaded, HOUR)
    loaded.produce(1)
    result = loaded.run("extract_and_load", instance)
    key = dg.AssetKey(TABLE.split("."))
    [event] = [e for e in result.get_asset_materialization_events() if e.asset_key == key]
    metadata = event.materialization.metadata
    assert metadata["complete_until"].value == HOUR * 3600
    assert metadata["late_rows"].value == 1
    assert "nyc.flights.v1[" in str(metadata["held_back_by"].value)


def test_hours_of_idle_tables_become_complete_without_a_load(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    before = evaluate(loaded, "completeness_sensor", instance)
    assert list(before.asset_events) == []
    for _ in range(2):
        loaded.clock.seconds += 1800
        loaded.store.time_ms += 1_800_000
        # Nothing is produced: no run is requested, and the look marks the log ends.
        assert not evaluate(loaded, "extraction_sensor", instance).run_requests
    [event] = evaluate(loaded, "completeness_sensor", instance, before.cursor).asset_events
    assert event.partition == TABLE
    loaded.clock.seconds += 3600
    loaded.store.time_ms += 3_600_000
    loaded.run("extract_job", instance)
    tags = {"kbq/load": loaded.parts.deployment.settings.staging_url}
    instance.add_run(dg.DagsterRun(job_name="load_job", status=dg.DagsterRunStatus.STARTED, tags=tags))
    assert evaluate(loaded, "completeness_sensor", instance, before.cursor).asset_events == [event]
