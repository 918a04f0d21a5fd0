"""Homes to run in: one topic, read up to different points, and the conditions at the end."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from kbq_assets.core.protocol.names import BACKLOG, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.crashes.child import Order, passed_file
from kbq_assets_tests.crashes.forks import Forks
from kbq_assets_tests.crashes.probes import Point
from kbq_assets_tests.integration.world import Producers, World

_OPTIONS = "dataset=shop route=record_name tombstones=skip keys=true"


class Homes:
    """Homes of several ages over one topic."""

    #: What runs get besides.
    environ: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path, producers: Producers, forks: Forks, sources: str) -> None:
        self.folder = folder
        self.producers = producers
        self._forks = forks
        self._sources = sources
        self._numbers = itertools.count()

    def copy(self, of: str) -> World:
        """A new home like one of these."""
        return self._world(f"{of}-{next(self._numbers)}", of)

    def points(self, run: str, of: str) -> dict[str, int]:
        """The points that a run in such a home passes, by kind."""
        world = self.copy(of)
        assert self._forks.run(order(world, run)).code == 0, log(world, run)
        passed: dict[str, int] = json.loads(passed_file(world.folder, run).read_text())
        return passed

    def check(self, world: World) -> None:
        """Run to the end; all that was produced is there."""
        raise NotImplementedError

    def remove(self, world: World) -> None:
        """Free the disk."""
        shutil.rmtree(world.folder)

    def _world(self, name: str, of: str = "") -> World:
        folder = self.folder / name
        if of:
            # With their times: an object's generation is its time of change.
            shutil.copytree(self.folder / of, folder, copy_function=shutil.copy2)
        return World(folder, self.producers, sources=self._sources, environ=self.environ)

    def _age(self, name: str, of: str, run: str) -> World:
        world = self._world(name, of)
        if run:
            assert self._forks.run(order(world, run)).code == 0, log(world, run)
        return world


class Scenes(Homes):
    """Homes over one topic of two partitions, two tables, poison, tombstones and gaps.

    ``fresh``: nothing was done. ``extracted``: the first records are staged. ``loaded``: and in their tables.
    ``grown``: the same, when more records and a new schema have come. ``staged``: those are staged too.
    ``littered``: three extractions died, and a loader between. ``parked``: like ``staged``, but one table is held.
    ``backlog``: and an extraction has set its files aside, and it may go on.
    """

    #: Windows of some 16 records: several a partition, several files each.
    environ = {"KBQ_WINDOW_RECORDS": "12"}

    def __init__(self, folder: Path, producers: Producers, forks: Forks) -> None:
        topic = producers.broker.create_topic(2)
        super().__init__(folder, producers, forks, f"{topic} {_OPTIONS}\n")
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        subject = f"{topic}-apple"
        apple = producers.register(("x", "long"), name="Apple", subject=subject)
        pear = producers.register(("y", "string"), name="Pear")
        for tp in partitions:
            producers.produce(tp, [apple.value(x=n) for n in range(10)], "row:shop.Apple")
            producers.transaction(tp, [pear.value(y="no")] * 2, "", commit=False)
            producers.produce(tp, [pear.value(y="yes") for n in range(12)], "row:shop.Pear")
            producers.produce(tp, [b"\x01poison", b""], "error")
        self._world("fresh")
        for name, run in (("extracted", "extract"), ("loaded", "load")):
            self._age(name, "fresh" if run == "extract" else "extracted", run)
        apple = producers.register(("x", "long"), ("note", ["null", "string"]), name="Apple", subject=subject)
        for tp in partitions:
            producers.produce(tp, [apple.value(x=n, note="new") for n in range(12)], "row:shop.Apple")
            producers.produce(tp, [None], "skip")
            producers.produce(tp, [pear.value(y="yes") for n in range(8)], "row:shop.Pear")
        self._age("grown", "loaded", "")
        self._age("staged", "grown", "extract")
        self._litter()
        self._park()

    def check(self, world: World) -> None:
        """Run to the end; all that was produced is there exactly once."""
        _resume_all(world)
        totals = world.finish().totals()
        outcomes = [outcome for offsets in self.producers.log.values() for outcome in offsets.values()]
        rows = sum(outcome.startswith("row:") for outcome in outcomes)
        assert totals == {
            "produced": len(outcomes),
            "staged": rows,
            "loaded": rows,
            "errors": outcomes.count("error"),
            "skipped": outcomes.count("skip"),
        }

    def _park(self) -> None:
        world = self._world("parked", "staged")
        operate.propose_park_table(world.parts.deployment.store, TableReference("shop", "Pear")).apply()
        world = self._world("backlog", "parked")
        assert self._forks.run(order(world, "extract")).code == 0, log(world, "extract")
        assert any(True for _ in world.parts.deployment.store.list(BACKLOG))
        _resume_all(world)

    def _litter(self) -> None:
        world = self._world("littered", "grown")
        for run, point in (
            ("extract", Point("writer staging.close, before", 3)),
            ("extract", Point("store.swap commits, before", 1)),
            ("extract", Point("store.swap commits, after", 1)),
            ("load", Point("store.swap tables, after", 2)),
        ):
            assert self._forks.run(order(world, run, point, signal.SIGKILL)).code == -signal.SIGKILL


def _resume_all(world: World) -> None:
    store = world.parts.deployment.store
    for table, found in state.read_table_states(store).items():
        if found.value.parked is not None:
            operate.propose_resume_table(store, table).apply()


def order(world: World, run: str, point: Point | None = None, number: int = 0) -> Order:
    """A run in a home."""
    return Order(run, world.environ, point, number)


def log(world: World, run: str) -> str:
    """What the runs of a kind in a home have said."""
    return (world.folder / f"{run}.log").read_text()
