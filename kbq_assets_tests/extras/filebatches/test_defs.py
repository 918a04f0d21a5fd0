"""Batches of files in Dagster: assets, partitions, checks, the job and its sensor, over fakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.filebatches.prefix_registry import file_state_path
from kbq_assets.core.observation.check_names import BATCHES_APPLY
from kbq_assets.definitions import parts
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.extras.filebatches.defs import definitions_of, file_definitions, partition_key
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.defs.extraction.test_backfills import request
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld

KEY = dg.AssetKey(["files", "shop", "orders"])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return parse_settings({"KBQ_HOME": str(tmp_path), "KBQ_FILES": str(tmp_path / "arrivals")})


@pytest.fixture
def world() -> FilesWorld:
    world = FilesWorld(order_per_table=True)
    world.batch("shop/orders/historical/1")
    world.run()
    return world


def definitions(settings: Settings, world: FilesWorld, process: str = "") -> dg.Definitions:
    return definitions_of(settings, AssetTranslator(), lambda: world.batches(process))


def executed(found: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = found.resolve_job_def("files_job")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def tick(found: dg.Definitions, instance: dg.DagsterInstance) -> dg.SensorResult:
    with dg.build_sensor_context(instance=instance) as context:
        result = found.resolve_sensor_def("file_batch_sensor")(context)
    assert isinstance(result, dg.SensorResult)
    return result


def test_without_a_place_of_batches_dagster_has_nothing_of_them(tmp_path: Path) -> None:
    deployment = parts({"KBQ_HOME": str(tmp_path)}).deployment
    found = file_definitions(deployment, None, AssetTranslator())
    assert not found.assets and not found.jobs and not found.sensors


def test_a_table_is_an_asset_with_a_partition_per_batch(settings: Settings, world: FilesWorld) -> None:
    world.batch("shop/orders/incremental/2")
    world.batch("shop/orders/incremental/3")
    with dg.DagsterInstance.ephemeral() as instance:
        found = definitions(settings, world)
        assert found.resolve_asset_graph().get(KEY).partitions_def is not None
        result = executed(found, instance)
        assert result.success
        events = [each.materialization for each in result.get_asset_materialization_events()]
        assert [(each.asset_key, each.partition) for each in events] == [
            (KEY, "incremental/2"),
            (KEY, "incremental/3"),
        ]
        assert instance.get_dynamic_partitions("files/shop/orders") == ["incremental/2", "incremental/3"]
        assert events[0].metadata["rows"].value == 1 and events[0].metadata["backlog"].value == 0


def test_a_batch_that_waits_for_a_person_is_a_failed_check_and_no_failed_run(
    settings: Settings, world: FilesWorld
) -> None:
    world.batch("shop/orders/incremental/2")
    world.warehouse.bad["incremental/2"] = JobError("invalid", "bad row", transient=False)
    with dg.DagsterInstance.ephemeral() as instance:
        found = definitions(settings, world)
        result = executed(found, instance)
        assert result.success
        [check] = result.get_asset_check_evaluations()
        assert (check.asset_key, check.check_name, check.passed) == (KEY, BATCHES_APPLY, False)
        assert "bad row" in (check.description or "")
        # The sensor requests no run for it.
        assert "1 batch waits:" in str(tick(found, instance).skip_reason)


def test_the_check_can_be_run_alone(settings: Settings, world: FilesWorld) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        found = definitions(settings, world)
        only = dg.define_asset_job("only", selection=dg.AssetSelection.checks_for_assets(KEY))
        job = dg.Definitions.merge(found, dg.Definitions(jobs=[only])).resolve_job_def("only")
        [evaluation] = job.execute_in_process(instance=instance).get_asset_check_evaluations()
        assert evaluation.passed


def test_the_sensor_requests_a_run_for_a_new_success_object(settings: Settings, world: FilesWorld) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        found = definitions(settings, world)
        assert "no batch is ready" in str(tick(found, instance).skip_reason)
        world.batch("shop/orders/incremental/2")
        assert len(tick(found, instance).run_requests or ()) == 1


def test_a_source_that_is_away_fails_no_tick_and_no_definitions(
    settings: Settings, world: FilesWorld
) -> None:
    world.source.faults = lambda call: Outcome.UNAVAILABLE
    with dg.DagsterInstance.ephemeral() as instance:
        found = definitions(settings, world, "daemon")
        assert tick(found, instance).skip_reason
    world.store.faults = lambda call: Outcome.UNAVAILABLE
    assert not definitions(settings, world, "daemon").assets
    with pytest.raises(Unavailable):
        world.batches("runner").run()


def test_a_lost_state_fails_the_run_after_the_other_tables(settings: Settings, world: FilesWorld) -> None:
    world.batch("shop/customers/1")
    world.store.delete(file_state_path("shop/orders"))
    with dg.DagsterInstance.ephemeral() as instance:
        result = executed(definitions(settings, world), instance)
        assert not result.success
        assert world.loaded[-1] == "shop/customers/1"


@pytest.mark.parametrize(
    ("batch", "key"),
    [("shop/orders/historical/1", "historical/1"), ("shop/orders", "."), ("shop/orders/a...b", "a..%2Eb")],
)
def test_partition_keys_are_paths_below_the_table(batch: str, key: str) -> None:
    assert partition_key("shop/orders", batch) == key


def test_a_job_applies_batches_again_from_one_on(settings: Settings, world: FilesWorld) -> None:
    for number in (2, 3):
        world.batch(f"shop/orders/incremental/{number}")
    world.run()
    config = {
        "table_prefix": "shop/orders",
        "first_batch": "shop/orders/incremental/2",
        "reason": "new rates",
    }
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions(settings, world).resolve_job_def("files_again_job")
        ops = {"ops": {"apply_file_batches_again": {"config": config}}}
        result = job.execute_in_process(instance=instance, run_config=ops)
        events = [each.materialization for each in result.get_asset_materialization_events()]
        assert [each.partition for each in events] == ["incremental/2", "incremental/3"]
        assert world.loaded[3:] == ["shop/orders/incremental/2", "shop/orders/incremental/3"]
        [decision] = world.batches().decisions("shop/orders")
        assert (decision.reason, decision.by) == ("new rates", f"Dagster run {result.run_id}")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as found:
        yield found


def with_partitions(settings: Settings, world: FilesWorld, instance: dg.DagsterInstance) -> dg.Definitions:
    """Batches that Dagster's own job applied, each a partition."""
    found = definitions(settings, world)
    for number in range(2, 5):
        world.batch(f"shop/orders/incremental/{number}")
    assert executed(found, instance).success
    return found


def materialized(
    found: dg.Definitions,
    instance: dg.DagsterInstance,
    *keys: str,
    table: str = "orders",
    **tags: str,
) -> dg.ExecuteInProcessResult:
    """A run of a range of partitions, as the UI and backfills make it."""
    ends = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
    return dg.materialize(
        [found.resolve_assets_def(dg.AssetKey(["files", "shop", table]))],
        instance=instance,
        run_config={"ops": {f"files__shop__{table}__again": {"config": {"reason": "new rates"}}}},
        tags={**ends, **tags},
        raise_on_error=False,
    )


def partitions_of(result: dg.ExecuteInProcessResult) -> list[str | None]:
    return [each.materialization.partition for each in result.get_asset_materialization_events()]


def test_a_run_of_partitions_applies_their_batches_again(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance
) -> None:
    found = with_partitions(settings, world, instance)
    result = materialized(found, instance, "incremental/3", "incremental/4")
    assert (result.success, partitions_of(result)) == (True, ["incremental/3", "incremental/4"])
    assert world.loaded[4:] == ["shop/orders/incremental/3", "shop/orders/incremental/4"]
    [check] = result.get_asset_check_evaluations()
    assert check.passed
    [decision] = world.batches().decisions("shop/orders")
    assert (decision.action, decision.batch, decision.reason, decision.by) == (
        "again", "shop/orders/incremental/3", "new rates", f"Dagster run {result.run_id}",
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")
def test_a_backfill_from_a_batch_on_is_one_runs_work(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance
) -> None:
    found = with_partitions(settings, world, instance)
    keys = [f"incremental/{number}" for number in (2, 3, 4)]
    request(instance, found, "b", KEY, keys=keys)
    # The daemon may make a run of each range of keys; the first one does the work of all.
    first = materialized(found, instance, "incremental/3", **{"dagster/backfill": "b"})
    assert (first.success, partitions_of(first)) == (True, keys)
    second = materialized(found, instance, "incremental/2", **{"dagster/backfill": "b"})
    assert (second.success, partitions_of(second)) == (True, [])
    assert world.loaded[4:] == [f"shop/orders/{key}" for key in keys]


@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")
@pytest.mark.parametrize("swap", [4, 7], ids=["a batch in flight", "all applied"])
def test_after_a_backfills_run_failed_its_other_runs_apply_only_what_is_left(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance, swap: int
) -> None:
    with_partitions(settings, world, instance)
    found = definitions(settings, world, "worker")
    keys = [f"incremental/{number}" for number in (2, 3, 4)]
    request(instance, found, "b", KEY, keys=keys)
    world.store.faults = Script("swap", file_state_path("shop/orders"), Outcome.CRASH_AFTER, swap)
    assert not materialized(found, instance, "incremental/3", **{"dagster/backfill": "b"}).success
    world.store.faults = lambda call: Outcome.OK
    assert materialized(found, instance, "incremental/2", **{"dagster/backfill": "b"}).success
    assert world.loaded[4:] == [f"shop/orders/{key}" for key in keys]
    [decision] = world.batches().decisions("shop/orders")
    assert decision.by == "Dagster backfill b"
    # Another backfill is another decision.
    request(instance, found, "c", KEY, keys=keys)
    assert materialized(found, instance, *keys[::2], **{"dagster/backfill": "c"}).success
    assert world.loaded[7:] == [f"shop/orders/{key}" for key in keys]


@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")
def test_a_backfill_of_two_tables_applies_the_batches_of_both(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance
) -> None:
    world.batch("shop/customers/1")
    world.run()
    found, customers = definitions(settings, world), dg.AssetKey(["files", "shop", "customers"])
    instance.add_dynamic_partitions("files/shop/orders", ["historical/1"])
    instance.add_dynamic_partitions("files/shop/customers", ["1"])
    request(instance, found, "b", KEY, customers)
    before = len(world.loaded)
    assert materialized(found, instance, "historical/1", **{"dagster/backfill": "b"}).success
    assert materialized(found, instance, "1", table="customers", **{"dagster/backfill": "b"}).success
    assert world.loaded[before:] == ["shop/orders/historical/1", "shop/customers/1"]


@pytest.mark.parametrize("is_job", [True, False])
def test_a_run_that_dagster_retries_after_its_worker_died_applies_no_batch_twice(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance, is_job: bool
) -> None:
    with_partitions(settings, world, instance)
    found = definitions(settings, world, "worker")

    def run(*, parent: dg.ExecuteInProcessResult | None = None) -> dg.ExecuteInProcessResult:
        ids = parent and {"dagster/root_run_id": parent.run_id, "dagster/parent_run_id": parent.run_id}
        if not is_job:
            return materialized(found, instance, "incremental/2", "incremental/4", **(ids or {}))
        config = {"table_prefix": "shop/orders", "first_batch": "shop/orders/inc", "reason": "new rates"}
        return found.resolve_job_def("files_again_job").execute_in_process(
            {"ops": {"apply_file_batches_again": {"config": config}}},
            instance=instance,
            tags=ids or {},
            raise_on_error=False,
        )

    world.warehouse.faults = Script("insert", outcome=Outcome.CRASH_BEFORE, nth=2)
    first = run()
    assert not first.success
    world.warehouse.faults = lambda call: Outcome.OK
    assert run(parent=first).success
    assert world.loaded[4:] == [f"shop/orders/incremental/{number}" for number in (2, 3, 4)]
    assert len(world.batches().decisions("shop/orders")) == 1


def test_a_run_that_leaves_out_a_later_ordered_batch_applies_nothing(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance
) -> None:
    found = with_partitions(settings, world, instance)
    result = materialized(found, instance, "incremental/3")
    assert (result.success, len(world.loaded)) == (False, 4)
    [failure] = result.all_node_events[-1:]
    assert "incremental/4 comes after shop/orders/incremental/3" in str(failure.event_specific_data)


def test_nobody_applies_batches_again_without_a_reason(
    settings: Settings, world: FilesWorld, instance: dg.DagsterInstance
) -> None:
    found = with_partitions(settings, world, instance)
    with pytest.raises(dg.DagsterInvalidConfigError, match="reason"):
        dg.materialize([found.resolve_assets_def(KEY)], instance=instance, partition_key="incremental/4")
    assert len(world.loaded) == 4
