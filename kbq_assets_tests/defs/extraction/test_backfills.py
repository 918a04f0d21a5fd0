"""Backfills: a single run does the work for any selection, Spark starts once, and nothing is read twice."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

import kbq_assets.defs
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference, commit_path
from kbq_assets.defs.extraction.backfills import WHOLE_TAG
from kbq_assets.defs.instance.orchestrator import DagsterOrchestrator
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.defs import served_backfill
from kbq_assets_tests.defs.test_runs import materialise
from kbq_assets_tests.defs.test_sensors import origin
from kbq_assets_tests.defs.world import PlatformWorld
from kbq_assets_tests.fixtures.local_stack import REPOSITORY

TABLE = dg.AssetKey(["nyc", "Flight"])
WORKSPACE = f"""
load_from:
  - python_module:
      module_name: kbq_assets_tests.defs.served_backfill
      attribute: defs
      location_name: kbq
      working_directory: {REPOSITORY}
"""
SCATTERED = [served_backfill.KEYS[number] for number in (1, 4, 6, 9)]


@pytest.fixture
def orchestrator(tmp_path: Path) -> Iterator[DagsterOrchestrator]:
    """Dagster with its daemon, on the served platform."""
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    shutil.copy(Path(kbq_assets.defs.__file__).parent / "home" / "dagster.yaml", configuration)
    (configuration / "workspace.yaml").write_text(WORKSPACE)
    found = DagsterOrchestrator(
        tmp_path, os.environ, lambda: served_backfill.definitions(tmp_path), configuration
    )
    yield found
    found.stop()


def staged(key: str) -> dg.AssetKey:
    """The asset of a partition key."""
    return dg.AssetKey(["staged", key.split("/", maxsplit=1)[0]])


def register(instance: dg.DagsterInstance, keys: list[str]) -> None:
    """Register keys, as an extraction does."""
    for key in keys:
        instance.add_dynamic_partitions(f"staged/{key.split('/')[0]}", [key])


def request(
    instance: dg.DagsterInstance,
    definitions: dg.Definitions,
    name: str,
    *assets: dg.AssetKey,
    keys: list[str] | None = None,
) -> None:
    """Ask for a backfill of these partitions, or of all, as the UI does."""
    instance.add_backfill(
        PartitionBackfill.from_asset_partitions(
            backfill_id=name,
            asset_graph=definitions.resolve_asset_graph(),
            partition_names=keys,
            asset_selection=assets,
            backfill_timestamp=time.time(),
            tags={},
            dynamic_partitions_store=instance,
            all_partitions=keys is None,
            title=None,
            description=None,
            run_config=None,
        )
    )


def status(instance: dg.DagsterInstance, name: str) -> BulkActionStatus:
    found = instance.get_backfill(name)
    assert found is not None
    return found.status


def wait_for_end(instance: dg.DagsterInstance, name: str) -> BulkActionStatus:
    deadline = time.monotonic() + 900
    while (now := status(instance, name)) == BulkActionStatus.REQUESTED:
        assert time.monotonic() < deadline, f"backfill {name} does not end"
        time.sleep(0.5)
    return now


def run_of(
    world: PlatformWorld, instance: dg.DagsterInstance, key: str, **tags: str
) -> dg.ExecuteInProcessResult:
    """A run of the backfill `b`, for one key."""
    return materialise(world, instance, key, key, **{"dagster/backfill": "b", **tags})


def materialised(result: dg.ExecuteInProcessResult) -> list[str]:
    events = [e for e in result.all_events if e.is_step_materialization]
    return sorted(e.step_materialization_data.materialization.partition or "" for e in events)


def queued(instance: dg.DagsterInstance, *assets: dg.AssetKey, **tags: str) -> str:
    """A run that waits."""
    run = dg.DagsterRun(
        job_name="__ASSET_JOB",
        asset_selection=frozenset(assets),
        status=dg.DagsterRunStatus.QUEUED,
        tags=tags,
        remote_job_origin=origin("__ASSET_JOB"),
    )
    return instance.add_run(run).run_id


@pytest.fixture
def backfill(world: PlatformWorld, instance: dg.DagsterInstance) -> list[str]:
    """A backfill `b` of three topics with a record each: its keys."""
    topics = ["other.a", "other.b", "other.c"]
    with world.sources() as sources:
        sources.writelines(f"{topic} dataset=nyc route=record_name\n" for topic in topics)
    for topic in topics:
        world.kafka.create_topic(topic)
        world.produce(1, topic=topic)
    keys = [f"{topic}/0/nyc.Flight" for topic in topics]
    register(instance, keys)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        request(instance, world.reopened().definitions, "b", *map(staged, keys))
    return keys


def test_the_first_run_of_a_backfill_does_it_all_and_the_next_ends_at_once(
    world: PlatformWorld, instance: dg.DagsterInstance, backfill: list[str]
) -> None:
    assert materialised(run_of(world, instance, backfill[1])) == backfill
    world.produce(1, topic="other.a")
    tasks = world.engine.tasks
    waiting = queued(instance, staged(backfill[2]), **{"dagster/backfill": "b"})
    result = run_of(world, instance, backfill[0])
    assert (result.success, materialised(result), world.engine.tasks) == (True, [], tasks)
    assert instance.get_run_by_id(waiting) is None


def test_runs_that_wait_for_the_same_are_removed_and_no_others(
    world: PlatformWorld, instance: dg.DagsterInstance, backfill: list[str]
) -> None:
    here = staged(backfill[0])
    gone = queued(instance, here, **{"dagster/backfill": "b"})
    kept = [
        queued(instance, here, **{"dagster/backfill": "another"}),
        queued(instance, TABLE, **{"dagster/backfill": "b"}),
        queued(instance, here, TABLE, **{"dagster/backfill": "b"}),
        queued(instance, here),
    ]
    run_of(world, instance, backfill[0])
    assert instance.get_run_by_id(gone) is None
    assert all(instance.get_run_by_id(run_id) for run_id in kept)


def test_a_backfill_that_fails_fails_once(
    world: PlatformWorld, instance: dg.DagsterInstance, backfill: list[str]
) -> None:
    waiting = queued(instance, staged(backfill[1]), **{"dagster/backfill": "b"})
    world.registry.down = True
    failed = run_of(world, instance, backfill[0])
    assert (failed.success, materialised(failed)) == (False, [])
    assert instance.get_run_by_id(waiting) is None
    world.registry.down = False
    assert materialised(run_of(world, instance, backfill[2])) == backfill


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources`:DeprecationWarning")
def test_scattered_choices_and_several_topics_are_one_runs_work(
    orchestrator: DagsterOrchestrator, tmp_path: Path
) -> None:
    first, second = (dg.AssetKey(["staged", topic]) for topic in served_backfill.TOPICS)
    with orchestrator.working():
        definitions = served_backfill.definitions(tmp_path)
        with dg.DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
            register(instance, served_backfill.KEYS)
            request(instance, definitions, "scattered", first, keys=SCATTERED)
            assert wait_for_end(instance, "scattered") == BulkActionStatus.COMPLETED_SUCCESS
            assert set(instance.get_materialized_partitions(first)) >= set(SCATTERED)
            request(instance, definitions, "topics", first, second)
            assert wait_for_end(instance, "topics") == BulkActionStatus.COMPLETED_SUCCESS
            for name in ("scattered", "topics"):
                runs = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": name}))
                assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
                assert len([run for run in runs if WHOLE_TAG in run.tags]) == 1
            everything = {
                key for asset in (first, second) for key in instance.get_materialized_partitions(asset)
            }
            assert everything == set(served_backfill.KEYS)
    assert served_backfill.engine_starts(tmp_path) == 2
    store = LocalObjectStore(tmp_path / "staging")
    for topic in served_backfill.TOPICS:
        commit = state.read(store, Commit, commit_path(topic, 0)).value
        assert {p.totals.records for p in commit.partitions.values()} == {served_backfill.RECORDS}


@pytest.mark.slow
def test_a_run_of_a_parked_table_materializes_nothing(
    orchestrator: DagsterOrchestrator, tmp_path: Path
) -> None:
    table, store = TableReference("nyc", "Flight"), LocalObjectStore(tmp_path / "staging")
    state.create_table_states(store, {table: "0123456789abcdef"})
    operate.propose_park_table(store, table).apply()
    with orchestrator.working():
        definitions = served_backfill.definitions(tmp_path)
        with dg.DagsterInstance.from_config(str(tmp_path / "dagster")) as instance:
            request(instance, definitions, "parked", TABLE)
            assert wait_for_end(instance, "parked") == BulkActionStatus.COMPLETED_FAILED
            [run] = instance.get_runs(dg.RunsFilter(tags={"dagster/backfill": "parked"}))
            assert run.status == dg.DagsterRunStatus.SUCCESS
            assert instance.get_latest_materialization_event(TABLE) is None
