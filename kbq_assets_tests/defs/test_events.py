"""Events in batches: none is lost, whatever the batch, and the product turns them on."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE
from kbq_assets_tests.defs.test_definitions import python
from kbq_assets_tests.defs.world import TABLE, TOPIC, PlatformWorld
from kbq_assets_tests.fixtures.variables import Variables

STAGED = dg.AssetKey(["staged", TOPIC])


@pytest.mark.parametrize("size", ["0", "1", "3", "500"])
def test_every_changed_partition_is_told_whatever_the_batch(
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


def test_what_dagster_loads_writes_in_batches_unless_told_otherwise(tmp_path: Path) -> None:
    code = f"import os, kbq_assets.definitions as d; d.defs; print(os.environ[{BATCH_VARIABLE!r}])"
    sources = tmp_path / "topics.txt"
    sources.write_text("")
    environ = {"KBQ_HOME": str(tmp_path), "KBQ_SOURCE_TOPICS": str(sources)}
    assert python(code, **environ).stdout == f"{BATCH_SIZE}\n"
    assert python(code, **environ, **{BATCH_VARIABLE: "7"}).stdout == "7\n"
