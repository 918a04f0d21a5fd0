"""Batches of files in Dagster: assets, partitions, checks, the job and its sensor, over fakes."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.filebatches.names import file_state_path
from kbq_assets.core.observation.check_names import BATCHES_APPLY
from kbq_assets.definitions import parts
from kbq_assets.defs.translator import AssetTranslator
from kbq_assets.extras.filebatches.defs import definitions_of, file_definitions, partition_key
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Outcome
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
        assert "1 batches wait" in str(tick(found, instance).skip_reason)


def test_the_check_can_be_run_alone(settings: Settings, world: FilesWorld) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions(settings, world).resolve_implicit_global_asset_job_def()
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
