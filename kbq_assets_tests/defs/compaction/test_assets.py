"""A lake's tables have an asset `compacted` with a partition per hour or day, as the table, and the lake has an hourly
job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

from kbq_assets.core.compaction.model import MIN_AGE, MIN_FILES
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.defs.compaction import assets
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.adapters.iceberg.test_warehouse import HOUR, TIMED
from kbq_assets_tests.defs.test_sensors import evaluate, reason
from kbq_assets_tests.defs.world import TABLE, PlatformWorld

KEY = dg.AssetKey(["nyc", "flights", "compacted"])
FIRST_HOUR = 19_000 * 24 + 21
HOURS = ("2022-01-08-21:00", "2022-01-08-22:00", "2022-01-08-23:00")
DAYS = ("2022-01-08", "2022-01-09", "2022-01-10")


def opened(tmp_path: Path, unit: str) -> PlatformWorld:
    """A world whose table has partitions of this unit."""
    world = PlatformWorld(tmp_path, KBQ_WAREHOUSE=f"iceberg:{tmp_path}/lake")
    topics = tmp_path / "topics.txt"
    topics.write_text(topics.read_text().replace("table=flights", f"table=flights partitioning={unit}"))
    return world.reopened()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PlatformWorld]:
    """By day."""
    yield opened(tmp_path, "day")
    assert not (tmp_path / "spark-events").exists(), "small plans start no Spark"


@pytest.fixture
def lake(tmp_path: Path, world: PlatformWorld) -> Lake:
    """Two files of each of three days, written now."""
    lake = Lake(tmp_path, reference=TableReference.parse(TABLE))
    for job in range(6):
        lake.load(job, event_date=19_000 + job % 3)
    world.warehouse = lake.warehouse  # type: ignore[assignment]
    world.clock.skew_ms = int(datetime.now(UTC).timestamp() * 1000) - world.clock.now_ms()
    return lake


@pytest.fixture
def lake_by_hour(tmp_path: Path) -> Lake:
    """Two files of each of three hours, written now."""
    lake = Lake(tmp_path, TIMED, reference=TableReference.parse(TABLE))
    for job in range(6):
        load_hour(lake, job, FIRST_HOUR + job % 3)
    return lake


def load_hour(lake: Lake, job: int, hour: int) -> None:
    lake.load(job, event_date=hour // 24, _event_time=hour * HOUR)


@pytest.fixture
def hourly(tmp_path: Path, lake_by_hour: Lake) -> PlatformWorld:
    """A world with that lake."""
    world = PlatformWorld(tmp_path, KBQ_WAREHOUSE=f"iceberg:{tmp_path}/lake")
    world.warehouse = lake_by_hour.warehouse  # type: ignore[assignment]
    world.clock.skew_ms = int(datetime.now(UTC).timestamp() * 1000) - world.clock.now_ms()
    return world


def files_by_hour(lake: Lake) -> dict[str, int]:
    """How many files each hour of the day has."""
    view = lake.compaction.view(lake.reference)
    assert view is not None
    hours = [f"{file.hour % 24}" for file in view.files if file.hour is not None]
    return {hour: hours.count(hour) for hour in sorted(hours)}


def files_by_day(lake: Lake) -> dict[int, int]:
    """How many files each day has."""
    view = lake.compaction.view(lake.reference)
    assert view is not None
    days = [file.day for file in view.files]
    return {day: days.count(day) for day in sorted(filter(None, days))}


def asset_of(world: PlatformWorld) -> dg.AssetsDefinition:
    return world.definitions.resolve_assets_def(KEY)


def test_a_table_of_a_lake_has_an_asset_downstream_with_a_partition_per_day(world: PlatformWorld) -> None:
    asset = asset_of(world)
    assert asset.asset_deps[KEY] == {dg.AssetKey(["nyc", "flights"])}
    assert isinstance(asset.partitions_def, dg.DailyPartitionsDefinition)
    schedule = world.definitions.resolve_schedule_def("compact_job_schedule")
    assert (schedule.job_name, schedule.default_status) == ("compact_job", dg.DefaultScheduleStatus.RUNNING)


@pytest.mark.parametrize(
    ("unit", "kind"),
    [
        ("auto", dg.HourlyPartitionsDefinition),
        ("hour", dg.HourlyPartitionsDefinition),
        ("month", dg.DailyPartitionsDefinition),
    ],
)
def test_the_partitions_are_those_of_the_table(tmp_path: Path, unit: str, kind: type) -> None:
    """A month is compacted with its last day."""
    assert isinstance(asset_of(opened(tmp_path, unit)).partitions_def, kind)


def test_partitions_and_job_of_a_further_lake_share_its_pool(tmp_path: Path) -> None:
    warehouses = f"db=duckdb:{tmp_path}/w.duckdb,more=iceberg:{tmp_path}/lake"
    world = PlatformWorld(tmp_path, KBQ_WAREHOUSE=warehouses)
    asset = world.definitions.resolve_assets_def(dg.AssetKey([*KEY.path, "more"]))
    job = world.definitions.resolve_job_def("compact_more_job")
    [step] = job.all_node_defs
    assert isinstance(step, dg.OpDefinition)
    assert asset.op.pool == step.pool == "kbq_compact_more"


@pytest.mark.thorough
def test_a_backfill_compacts_its_hours_in_one_run(hourly: PlatformWorld, lake_by_hour: Lake) -> None:
    with dg.DagsterInstance.local_temp() as instance:
        result = dg.materialize(
            [asset_of(hourly)],
            instance=instance,
            tags={
                "dagster/asset_partition_range_start": HOURS[0],
                "dagster/asset_partition_range_end": HOURS[1],
            },
        )
        assert result.success
        assert files_by_hour(lake_by_hour) == {"21": 1, "22": 1, "23": 2}
        assert instance.get_materialized_partitions(KEY) == set(HOURS[:2])
        assert dg.materialize([asset_of(hourly)], instance=instance, partition_key=HOURS[2]).success
        assert instance.get_materialized_partitions(KEY) == set(HOURS)
    assert files_by_hour(lake_by_hour) == {"21": 1, "22": 1, "23": 1}


@pytest.mark.thorough
def test_late_rows_of_an_hour_are_joined_when_it_is_materialized_again(
    hourly: PlatformWorld, lake_by_hour: Lake
) -> None:
    def join() -> None:
        assert dg.materialize([asset_of(hourly)], partition_key=HOURS[0]).success
        assert files_by_hour(lake_by_hour) == {"21": 1, "22": 2, "23": 2}

    join()
    join()  # with nothing to join
    load_hour(lake_by_hour, 6, FIRST_HOUR)
    assert files_by_hour(lake_by_hour)["21"] == 2
    join()


@pytest.mark.thorough
def test_a_table_that_changes_from_days_to_hours_keeps_its_asset(
    tmp_path: Path, world: PlatformWorld, lake: Lake
) -> None:
    """Dagster forgets the days that were materialized. Files of days count as their last hour."""
    with dg.DagsterInstance.local_temp() as instance:
        assert dg.materialize([asset_of(world)], instance=instance, partition_key=DAYS[0]).success
        by_day = asset_of(world).partitions_def
        assert materialized(instance, by_day) == set(DAYS[:1])
        topics = tmp_path / "topics.txt"
        topics.write_text(topics.read_text().replace("partitioning=day", "partitioning=hour"))
        changed = asset_of(world.reopened())
        assert materialized(instance, changed.partitions_def) == set()
        for hour, files in ((f"{DAYS[1]}-22:00", 2), (f"{DAYS[1]}-23:00", 1)):
            assert dg.materialize([changed], instance=instance, partition_key=hour).success
            assert files_by_day(lake) == {19_000: 1, 19_001: files, 19_002: 2}
        assert len(materialized(instance, changed.partitions_def)) == 2
        assert materialized(instance, by_day) == set(DAYS[:1])


def materialized(instance: dg.DagsterInstance, partitions: dg.PartitionsDefinition[str] | None) -> set[str]:
    """The partitions that the asset's page shows as materialized."""
    shown = get_and_update_asset_status_cache_value(instance, KEY, partitions, instance)
    return set(shown.deserialize_materialized_partition_subsets(partitions).get_partition_keys())  # type: ignore[union-attr,arg-type]


def test_a_long_backfill_is_several_runs_and_the_job_reports_the_newest_partitions(
    hourly: PlatformWorld, lake_by_hour: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asset_of(hourly).backfill_policy == dg.BackfillPolicy.multi_run(1_000)
    monkeypatch.setattr(assets, "_MOST_REPORTED", 2)
    with lake_by_hour.table.transaction() as change:
        change.set_properties({MIN_FILES: "2", MIN_AGE: "-1000"})
    result = hourly.definitions.resolve_job_def("compact_job").execute_in_process()
    events = result.asset_materializations_for_node("compact")
    assert [event.partition for event in events] == list(HOURS[1:])
    assert files_by_hour(lake_by_hour) == {"21": 1, "22": 1, "23": 1}


def test_the_job_and_the_sensor_know_hours(hourly: PlatformWorld, lake_by_hour: Lake) -> None:
    reference = lake_by_hour.reference
    with lake_by_hour.table.transaction() as change:
        change.set_properties({MIN_FILES: "2"})
    state.create_table_state(hourly.store, reference, "u")
    until = FIRST_HOUR + 2
    state.change(
        hourly.store,
        TableState,
        table_state_path(reference),
        lambda now: replace(now, hours=replace(now.hours, until=until)),
    )
    lake_by_hour.warehouse.mark_complete(reference, until)
    with dg.DagsterInstance.local_temp() as instance:
        found = evaluate(hourly, "compaction_sensor", instance)
        assert [(run.partition_key, run.asset_selection) for run in found.run_requests or ()] == [
            (hour, [KEY]) for hour in HOURS[:2]
        ]
        job = hourly.definitions.resolve_job_def("compact_job")
        assert job.execute_in_process(instance=instance).success
        assert instance.get_materialized_partitions(KEY) == set(HOURS[:2])
    assert files_by_hour(lake_by_hour) == {"21": 1, "22": 1, "23": 2}


def test_a_backfill_compacts_its_days_in_one_run(world: PlatformWorld, lake: Lake) -> None:
    result = dg.materialize(
        [asset_of(world)],
        tags={
            "dagster/asset_partition_range_start": DAYS[0],
            "dagster/asset_partition_range_end": DAYS[1],
        },
    )
    assert result.success
    assert files_by_day(lake) == {19_000: 1, 19_001: 1, 19_002: 2}
    events = result.asset_materializations_for_node("nyc__flights__compacted")
    assert {event.partition for event in events} == set(DAYS[:2])
    assert events[0].metadata["files_after"].value == 4
    assert lake.offsets() == list(range(6))


def test_the_job_compacts_by_the_policy_and_reports_each_day(world: PlatformWorld, lake: Lake) -> None:
    with lake.table.transaction() as change:
        change.set_properties({MIN_FILES: "2", MIN_AGE: "-1000"})
    lake.load(6, event_date=19_003)
    job = world.definitions.resolve_job_def("compact_job")
    result = job.execute_in_process()
    assert result.success
    assert files_by_day(lake) == dict.fromkeys(range(19_000, 19_004), 1)
    events = result.asset_materializations_for_node("compact")
    assert {event.partition for event in events} == set(DAYS)
    assert {event.asset_key for event in events} == {KEY}


def test_the_sensor_requests_the_days_that_the_policy_asks_for_once_more_hours_are_complete(
    world: PlatformWorld, lake: Lake
) -> None:
    instance = dg.DagsterInstance.ephemeral()
    reference = TableReference.parse(TABLE)
    state.create_table_state(world.store, reference, "u")
    path = table_state_path(reference)

    def complete(until: int, *, tells_the_lake: bool = True) -> None:
        """As a load finds it."""
        state.change(
            world.store, TableState, path, lambda now: replace(now, hours=replace(now.hours, until=until))
        )
        if tells_the_lake:
            lake.warehouse.mark_complete(reference, until)

    assert reason(evaluate(world, "compaction_sensor", instance)) == "no complete hour has many small files"
    complete(19_000 * 24)
    idle = evaluate(world, "compaction_sensor", instance)
    assert reason(idle) == "no complete hour has many small files"
    with lake.table.transaction() as change:
        change.set_properties({MIN_FILES: "2"})
    complete(19_002 * 24, tells_the_lake=False)
    late = evaluate(world, "compaction_sensor", instance, idle.cursor)
    assert reason(late) == "no complete hour has many small files"
    complete(19_002 * 24)
    found = evaluate(world, "compaction_sensor", instance, late.cursor)
    assert [(run.partition_key, run.asset_selection) for run in found.run_requests or ()] == [
        (day, [KEY]) for day in DAYS[:2]
    ]  # not the day whose hours are not complete, and whose files are young
    assert reason(evaluate(world, "compaction_sensor", instance, found.cursor))
    [first, *_] = found.run_requests or ()
    assert dg.materialize([asset_of(world)], partition_key=first.partition_key).success
    assert files_by_day(lake)[19_000] == 1


def test_a_partition_that_failed_fails_the_run_and_not_the_others(world: PlatformWorld, lake: Lake) -> None:
    view = lake.compaction.view(lake.reference)
    assert view is not None
    lost = next(file for file in view.files if file.day == 19_001)
    Path(lost.path.removeprefix("file://")).unlink()
    result = dg.materialize(
        [asset_of(world)],
        tags={
            "dagster/asset_partition_range_start": DAYS[0],
            "dagster/asset_partition_range_end": DAYS[2],
        },
        raise_on_error=False,
    )
    assert not result.success
    assert files_by_day(lake) == {19_000: 1, 19_001: 2, 19_002: 1}


def test_each_lake_besides_the_first_warehouse_has_its_own(tmp_path: Path) -> None:
    url = f"db=duckdb:{tmp_path}/kbq.duckdb,lake=iceberg:{tmp_path}/lake"
    definitions = PlatformWorld(tmp_path, KBQ_WAREHOUSE=url).definitions
    assert definitions.resolve_assets_def(dg.AssetKey([*KEY.path, "lake"]))
    assert definitions.resolve_job_def("compact_lake_job")


def test_other_warehouses_have_none(tmp_path: Path) -> None:
    definitions = PlatformWorld(tmp_path).definitions
    assert not [each.name for each in definitions.jobs or () if "compact" in each.name]
    assert not [schedule for schedule in definitions.schedules or () if "compact" in str(schedule)]
