"""A lake's tables have an asset `compacted` with a partition per day, and the lake has an hourly job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.core.compaction.model import MIN_FILES
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake
from kbq_assets_tests.defs.test_sensors import evaluate, reason
from kbq_assets_tests.defs.world import TABLE, PlatformWorld

KEY = dg.AssetKey(["nyc", "flights", "compacted"])
DAYS = ("2022-01-08", "2022-01-09", "2022-01-10")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PlatformWorld]:
    yield PlatformWorld(tmp_path, KBQ_WAREHOUSE=f"iceberg:{tmp_path}/lake")
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
    assert asset.backfill_policy == dg.BackfillPolicy.single_run()
    schedule = world.definitions.resolve_schedule_def("compact_job_schedule")
    assert (schedule.job_name, schedule.default_status) == ("compact_job", dg.DefaultScheduleStatus.RUNNING)


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
        change.set_properties({MIN_FILES: "2", "kbq.compaction.min-age-ms": "-1000"})
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
