"""Events in batches: none is lost with any batch size, and the product enables them."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dagster import serialize_value

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets_tests.defs.test_definitions import python
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fixtures.variables import Variables

STAGED = dg.AssetKey(["staged", TOPIC])


@pytest.mark.parametrize("size", ["0", "1", "3", "500"])
def test_every_changed_partition_is_reported_whatever_the_batch(
    tmp_path: Path, instance: dg.DagsterInstance, variables: Variables, size: str
) -> None:
    variables[BATCH_VARIABLE] = size
    world = PlatformWorld(tmp_path, partitions=7)
    for partition in range(7):
        world.produce(1, partition)
    assert world.run("extract_job", instance).success
    records = instance.fetch_materializations(STAGED, limit=20).records
    assert sorted(record.partition_key or "" for record in records) == [
        f"{TOPIC}/{partition}/{TABLE}" for partition in range(7)
    ]


def test_a_run_without_changes_leaves_no_batch_open(
    world: PlatformWorld, instance: dg.DagsterInstance, variables: Variables
) -> None:
    variables[BATCH_VARIABLE] = "500"
    assert world.run("extract_job", instance).success
    assert instance.fetch_materializations(STAGED, limit=1).records == []


@pytest.mark.thorough
def test_what_dagster_loads_writes_in_batches_unless_a_variable_says_otherwise(tmp_path: Path) -> None:
    code = f"""
import os, kbq_assets.definitions as d
for reported in ({{}}, {{{BATCH_VARIABLE!r}: "7"}}):
    os.environ.pop({BATCH_VARIABLE!r}, None)
    os.environ.update(reported)
    d.defs
    print(os.environ[{BATCH_VARIABLE!r}])
"""
    sources = tmp_path / "topics.txt"
    sources.write_text("")
    environ = {"KBQ_HOME": str(tmp_path), "KBQ_SOURCE_TOPICS": str(sources)}
    assert python(code, **environ).stdout == f"{BATCH_SIZE}\n7\n"


def events_of(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> tuple[int, int]:
    """How many events of assets and checks a run has written, and their bytes."""
    kinds = (
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_OBSERVATION,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    )
    found = [serialize_value(entry) for kind in kinds for entry in instance.all_logs(result.run_id, kind)]
    return len(found), sum(map(len, found))


def cycle(tmp_path: Path, instance: dg.DagsterInstance, partitions: int) -> tuple[int, int]:
    """Events and bytes of the second extraction of the given number of partitions, all of which have new records."""
    home = tmp_path / str(partitions)
    home.mkdir()
    world = PlatformWorld(home, partitions, KBQ_PARTITION_EVENTS="3")
    for _ in range(2):
        for partition in range(partitions):
            world.produce(1, partition)
        result = world.run("extract_and_load", instance)
        assert result.success
    return events_of(instance, result)


def test_above_a_number_of_partitions_a_cycle_costs_hardly_more_for_four_times_as_many(
    tmp_path: Path,
) -> None:
    costs = []
    for partitions in (6, 24):
        with dg.DagsterInstance.ephemeral() as instance:
            costs.append(cycle(tmp_path, instance, partitions))
    (events, size), (more_events, more_size) = costs
    assert more_events == events
    assert (more_size - size) / 18 < 60, "bytes for each further partition"


def test_a_summary_names_the_first_of_neighboring_partitions(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    world = PlatformWorld(tmp_path, 6, KBQ_PARTITION_EVENTS="1")
    for partition, count in ((0, 3), (1, 1), (3, 2), (5, 4)):
        world.produce(count, partition)
    world.kafka.produce(TopicPartition(TOPIC, 3), b"no Avro")
    world.run("extract_job", instance)
    [record] = instance.fetch_observations(STAGED, limit=1).records
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["changed"].value == {
        TABLE: {"0": [3, 1], "3": [[2, 1, 0]], "5": [4]},
        "nyc.kbq_errors": {"3": [[1, 1, 0]]},
    }


def test_in_a_summary_partitions_are_marked_when_their_state_changes(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    world = PlatformWorld(tmp_path, 3, KBQ_PARTITION_EVENTS="1")
    keys = [f"{TOPIC}/{partition}/{TABLE}" for partition in range(3)]

    def extracted() -> set[str | None]:
        for partition in range(3):
            world.produce(2, partition)
        result = world.run("extract_job", instance)
        return {event.partition for event in result.get_asset_materialization_events()}

    assert extracted() == set(keys), "their first data"
    assert extracted() == set()
    [record] = instance.fetch_observations(STAGED, limit=1).records
    assert record.asset_observation is not None
    changed = record.asset_observation.metadata["changed"].value
    assert changed == {TABLE: {"0": [2, 2, 2]}}
    world.produce(4)
    world.kafka.delete_before(TopicPartition(TOPIC, 0), 6)
    assert extracted() == set()
    stopped = [
        (record.partition_key, record.asset_observation and record.asset_observation.metadata["state"].value)
        for record in instance.fetch_observations(STAGED, limit=9).records
        if record.partition_key
    ]
    assert stopped == [(keys[0], "stopped")]
    assert extracted() == set()
    assert len([r for r in instance.fetch_observations(STAGED, limit=9).records if r.partition_key]) == 1
    operate.propose_accept_gap(world.store, world.kafka, TopicPartition(TOPIC, 0)).apply()
    assert extracted() == {keys[0]}
    chosen = {"ops": {"extract": {"config": {"keys": [keys[1]]}}}}
    for partition in range(3):
        world.produce(1, partition)
    result = world.run("extract_job", instance, config=chosen)
    assert {event.partition for event in result.get_asset_materialization_events()} == {keys[1]}


def test_a_topic_that_cannot_be_read_shows_its_last_error(
    world: PlatformWorld, instance: dg.DagsterInstance
) -> None:
    world.produce(1)
    world.registry.down = True
    assert not world.run("extract_job", instance).success
    [record] = instance.fetch_observations(STAGED, limit=1).records
    assert record.asset_observation is not None
    assert f"{TOPIC}[0]: " in str(record.asset_observation.metadata["last_error"].value)
