"""A request to read a range again is shown, and only then executed."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld


def reprocess(
    world: PlatformWorld, instance: dg.DagsterInstance, topic: str = TOPIC, **config: Any
) -> tuple[dg.ExecuteInProcessResult, str]:
    """Run the job; its result, and what it says it does."""
    ops = {"ops": {"reprocess": {"config": {"topic": topic, **config}}}}
    result = world.run("reprocess_job", instance, config=ops)
    outputs = [e.step_output_data.metadata for e in result.all_events if e.is_successful_output]
    return result, str(outputs[0]["proposal"].value) if outputs else ""


def epoch(world: PlatformWorld) -> int:
    return state.read(world.store, Commit, commit_path(TOPIC, 0)).value.epoch


@pytest.fixture
def loaded(world: PlatformWorld, instance: dg.DagsterInstance) -> PlatformWorld:
    """A world whose five records are in their table."""
    world.produce(5)
    world.run("extract_and_load", instance)
    return world


def test_a_proposal_alone_changes_nothing(loaded: PlatformWorld, instance: dg.DagsterInstance) -> None:
    result, proposal = reprocess(loaded, instance, from_offset=3, partition=0)
    assert (result.success, epoch(loaded)) == (True, 1)
    assert f"- {TOPIC}[0]: position 5 -> 3" in proposal


def test_applied_the_range_is_read_again_and_distinguished(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    reprocess(loaded, instance, from_offset=3, partition=0, apply=True)
    loaded.run("extract_and_load", instance)
    rows = [(row.epoch, row.offset) for row in loaded.warehouse.rows(TableReference.parse(TABLE))]
    assert rows == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4)]


@pytest.mark.parametrize(
    "config",
    [{"from_offset": 9}, {"from_time": "yesterday"}, {"from_offset": 1, "from_time": "0"}, {"partition": 7}],
)
def test_what_cannot_be_done_is_reported_and_changes_nothing(
    loaded: PlatformWorld, instance: dg.DagsterInstance, config: dict[str, Any]
) -> None:
    result, _ = reprocess(loaded, instance, apply=True, **config)
    assert (result.success, epoch(loaded)) == (False, 1)


def test_rows_that_are_not_loaded_are_not_given_up_unasked(
    loaded: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    loaded.produce(2)
    loaded.run("extract_job", instance)
    assert not reprocess(loaded, instance, apply=True)[0].success
    assert reprocess(loaded, instance, apply=True, give_up_pending=True)[0].success


@pytest.mark.parametrize("option", ["order=offset", "load=insert_new key=x"])
def test_ordered_tables_and_statements_are_applied_again_from_an_offset_on(
    world: PlatformWorld, instance: dg.DagsterInstance, option: str
) -> None:
    with world.sources() as sources:
        sources.write(f"again.v1 dataset=nyc table=again {option}\n")
    world.kafka.create_topic("again.v1")
    world = world.reopened()
    world.produce(5, topic="again.v1")
    world.run("extract_and_load", instance)
    reprocess(world, instance, "again.v1", from_offset=3, apply=True)
    assert world.run("extract_and_load", instance).success
    table = TableReference("nyc", "again")
    rows = [(row.epoch, row.offset) for row in world.warehouse.rows(table)]
    assert rows == [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4)]
    found = state.read(world.store, TableState, table_state_path(table)).value
    assert found.order.settled == 2 or found.definition.statements.applied == 2


def test_dagster_does_not_reset_again_after_a_worker_died(world: PlatformWorld) -> None:
    assert world.definitions.resolve_job_def("reprocess_job").tags["dagster/max_retries"] == "0"
