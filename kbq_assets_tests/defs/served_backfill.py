"""Definitions for the test of backfills: topics with records to read, state in a folder, an engine that counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import dagster as dg

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.defs.world import PlatformWorld
from kbq_assets_tests.fakes.engine import InProcessEngine

TOPICS: Final = ["other.a", "other.b"]
PARTITIONS: Final = 10
KEYS: Final = [f"{topic}/{partition}/nyc.Flight" for topic in TOPICS for partition in range(PARTITIONS)]
RECORDS: Final = 3


def engine_starts(home: Path) -> int:
    """How often Spark would have been started."""
    log = home / "engine-starts"
    return len(log.read_text().splitlines()) if log.exists() else 0


def definitions(home: Path) -> dg.Definitions:
    """The platform's assets, without its sensors, over the folder's state."""
    folder = home / "world"
    folder.mkdir(exist_ok=True)
    world = PlatformWorld(folder)
    with world.sources() as sources:
        sources.writelines(f"{topic} dataset=nyc route=record_name\n" for topic in TOPICS)
    store = LocalObjectStore(home / "staging")
    world.store = store  # type: ignore[assignment]  # shared by the processes of all runs
    for topic in TOPICS:
        world.kafka.create_topic(topic, PARTITIONS)
        for partition in range(PARTITIONS):
            world.produce(RECORDS, partition, topic)

    def started() -> ExtractionEngine:
        with (home / "engine-starts").open("a") as log:
            log.write(f"{os.getpid()}\n")
        return InProcessEngine(WorkerPorts(store, world.kafka, world.registry, world.clock))

    engine = dg.ResourceDefinition(lambda context: OnDemandEngine(started))
    found = world.reopened().parts.definitions(resources={ENGINE: engine})
    return dg.Definitions(assets=found.assets, resources=found.resources, executor=dg.in_process_executor)


def __getattr__(name: str) -> Any:
    if name == "defs":
        return definitions(Path(os.environ["DAGSTER_HOME"]).parent)
    raise AttributeError(name)


def __dir__() -> list[str]:
    return [*globals(), "defs"]
