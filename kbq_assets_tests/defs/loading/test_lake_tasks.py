"""Which load jobs run on Spark: large ones of a lake that Spark's workers can reach, in `kbq load` and in Dagster."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kbq_assets.defs.extraction.engine import ENGINE, PYSPARK
from kbq_assets.ports.load_tasks import LoadsByTasks, RunTasks, WriteTask, WrittenFiles
from kbq_assets.ports.warehouse import LoadJob, Warehouse
from kbq_assets_tests.defs.extraction.test_spark import UsersSpark
from kbq_assets_tests.defs.world import TABLE, PlatformWorld
from kbq_assets_tests.fakes.warehouse import FakeWarehouse


class TaskedWarehouse(FakeWarehouse):
    """Runs an empty task before each job."""

    from_bytes: int | None = None
    run: RunTasks | None = None

    def by_tasks(self, run: RunTasks, from_bytes: int) -> Warehouse:
        """Note from which size on."""
        self.from_bytes = from_bytes
        other = copy.copy(self)
        other.run = run
        return other

    def insert_job(self, job: LoadJob) -> None:
        if self.run is not None:
            self.run([WriteTask(job, "")])
        super().insert_job(job)


class Opened:
    """Counts what opens and closes."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def __call__(self) -> Iterator[RunTasks]:
        def run(tasks: Sequence[WriteTask]) -> list[WrittenFiles]:
            self.log.append(f"{len(tasks)} task")
            return []

        self.log.append("opened")
        yield run
        self.log.append("closed")


def world_of(folder: Path, **environ: str) -> PlatformWorld:
    settings: dict[str, Any] = {"KBQ_WAREHOUSE": f"iceberg:{folder}/lake", **environ}
    world = PlatformWorld(folder, **settings)
    world.warehouse = TaskedWarehouse(world.store, world.store.path_of)
    assert isinstance(world.warehouse, LoadsByTasks)
    return world


def extracted(world: PlatformWorld) -> PlatformWorld:
    world.produce(1)
    with dg.DagsterInstance.ephemeral() as instance:
        assert world.run("extract_job", instance).success
    return world


def test_spark_opens_with_the_first_large_job_and_closes_with_the_run(tmp_path: Path) -> None:
    world, opened = world_of(tmp_path), Opened()
    loader = replace(world.parts.loader, open_tasks=opened)
    loader.load()
    assert opened.log == []  # nothing to load
    extracted(world)
    assert [str(table.table) for table in loader.load().tables if table.rows] == [TABLE]
    assert opened.log == ["opened", "1 task", "closed"]


@pytest.mark.parametrize(
    ("environ", "from_bytes"),
    [
        ({}, 256 << 20),
        ({"KBQ_LAKE_SPARK_MB": "64"}, 64 << 20),
        ({"KBQ_LAKE_SPARK_MB": "0"}, None),
        ({"KBQ_SPARK_MASTER": "spark://host:7077"}, None),  # its workers may not have this folder
        (
            {
                "KBQ_SPARK_MASTER": "spark://host:7077",
                "KBQ_STAGING": "gs://bucket/staging",
                "KBQ_WAREHOUSE": "iceberg:gs://bucket/lake",
            },
            256 << 20,
        ),
    ],
)
def test_settings_say_which_jobs_are_large(
    tmp_path: Path, environ: dict[str, str], from_bytes: int | None
) -> None:
    world = world_of(tmp_path, **environ)
    world.parts.loader.load()
    assert isinstance(world.warehouse, TaskedWarehouse)
    assert world.warehouse.from_bytes == from_bytes


@pytest.mark.parametrize("job", ["load_job", "tables"])
def test_in_dagster_it_is_the_pyspark_resource(tmp_path: Path, job: str) -> None:
    world = extracted(world_of(tmp_path))
    engine = dg.ResourceDefinition.hardcoded_resource(world.engine)
    resources: dict[str, Any] = {ENGINE: engine, PYSPARK: UsersSpark()}
    definitions = world.parts.definitions(resources=resources)
    with dg.DagsterInstance.ephemeral() as instance:
        if job == "tables":
            asset = definitions.resolve_assets_def(dg.AssetKey(TABLE.split(".")))
            result = dg.materialize([asset], instance=instance, raise_on_error=False)
        else:
            resolved = definitions.resolve_job_def(job)
            result = resolved.execute_in_process(instance=instance, raise_on_error=False)
        [failed] = [event for event in result.all_events if event.is_step_failure]
    assert "the user's Spark was asked" in str(failed.step_failure_data.error)
