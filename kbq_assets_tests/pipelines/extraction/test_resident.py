"""A resident extraction runs cycle after cycle on one engine, whatever fails, and ends cleanly on request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError, EngineEnded, KbqError
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport
from kbq_assets.pipelines.extraction.resident import CycleEvents, Cycles, run_cycles
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


class Resident:
    """A loop over a platform of fakes. ``between`` happens in each pause, by its number, and may ask it to end."""

    def __init__(self, world: FakePlatform, limit: int = 0) -> None:
        self.world = world
        self.limit = limit
        self.between: Callable[[int], object] = lambda number: None
        self.current: Callable[[], Extractor] = lambda: world.parts.extractor
        self.open: Callable[[Settings], ExtractionEngine] | None = None
        self.renewed = ""
        self.is_draining = False
        self.reports: list[ExtractionReport] = []
        self.errors: list[KbqError] = []
        self.pauses: list[float] = []

    def run(self, *topics: str) -> str:
        def wait(seconds: float) -> None:
            self.pauses.append(seconds)
            self.world.clock.sleep(seconds)
            self.between(len(self.pauses))

        cycles = Cycles(
            self.world.clock, wait, lambda: self.is_draining, lambda: self.renewed, 60.0, self.limit
        )
        assert self.world.parts.extractor.open_engines is not None
        with self.world.parts.extractor.open_engines() as engines:
            events = CycleEvents(self.reports.append, self.errors.append)
            return run_cycles(self.current, self.open or engines, cycles, events, topics)

    @property
    def records(self) -> list[int]:
        """Records of each cycle that ended well."""
        return [report.totals.records for report in self.reports]


def test_each_cycle_reads_what_is_new_and_a_quiet_one_opens_no_engine(world: FakePlatform) -> None:
    resident = Resident(world, limit=4)
    world.produce(2)
    resident.between = lambda number: world.produce(3) if number == 2 else None
    assert resident.run() == "4 cycles are done"
    assert (resident.records, world.engines_opened) == ([2, 0, 3, 0], 2)
    assert resident.pauses == pytest.approx([60.0] * 3, abs=1)


def test_a_cycle_reads_the_catalog_and_new_topics_anew(world: FakePlatform) -> None:
    resident = Resident(world, limit=2)
    world.produce()

    def add_topic(number: int) -> None:
        world.kafka.create_topic("shop.later", 1)
        with world.source_topics.open("a") as sources:
            sources.write("shop.later dataset=shop\n")
        world.produce(4, topic="shop.later")

    resident.between = add_topic
    resident.run()
    assert resident.records == [1, 4]


def test_an_error_ends_its_cycle_and_not_the_loop(world: FakePlatform) -> None:
    resident = Resident(world, limit=3)
    world.produce()

    def fault(number: int) -> None:
        world.kafka.down = number == 1

    resident.between = fault
    resident.run()
    assert (resident.records, len(resident.errors)) == ([1, 0], 1)


def test_a_mistake_in_the_settings_shows_at_once_and_later_waits_to_be_corrected(world: FakePlatform) -> None:
    with pytest.raises(ConfigurationError, match=r"not extracted: no\.such"):
        Resident(world).run("no.such")
    resident, sources = Resident(world, limit=3), world.source_topics.read_text()

    def edit(number: int) -> None:
        world.source_topics.write_text(sources)
        if number == 1:
            world.source_topics.unlink()

    resident.between = edit
    resident.run()
    assert (len(resident.reports), len(resident.errors)) == (2, 1)


@pytest.mark.parametrize("change", ["removed", "mistaken", "deleted"])
def test_a_named_topic_that_is_gone_holds_up_no_other_topic(world: FakePlatform, change: str) -> None:
    world.kafka.create_topic("shop.later", 1)
    lines = world.source_topics.read_text()
    world.source_topics.write_text(f"{lines}shop.later dataset=shop\n")
    resident = Resident(world, limit=2)
    world.produce()

    def lose(number: int) -> None:
        if change == "deleted":
            world.kafka.delete_topic("shop.later")
        else:
            world.source_topics.write_text(lines + ("shop.later wrong=1\n" if change == "mistaken" else ""))
        world.produce(3)

    resident.between = lose
    resident.run(TOPIC, "shop.later")
    assert resident.records == [1, 3]
    [error] = resident.errors
    assert "shop.later" in str(error)


def test_a_topic_that_has_used_its_seconds_waits_for_the_next_cycle(world: FakePlatform) -> None:
    world.source_topics.write_text(f"{TOPIC} dataset=shop table=orders max_seconds=5\n")
    world.kafka.chunk_records = 2
    read = world.kafka.read

    def slowly(*args: Any) -> Iterator[RecordBatch]:
        for batch in read(*args):
            world.clock.sleep(6)
            yield batch

    world.produce(4)
    resident = Resident(world, limit=2)
    with patch.object(world.kafka, "read", slowly):
        resident.run()
    assert (resident.records, len(resident.pauses)) == ([2, 2], 1)


def test_the_loop_ends_when_the_application_is_gone(world: FakePlatform) -> None:
    def gone(settings: Settings) -> ExtractionEngine:
        raise EngineEnded("the Spark application has ended")

    resident = Resident(world)
    resident.open = gone
    world.produce()
    with pytest.raises(EngineEnded):
        resident.run()
    resident.open = None
    resident.limit = 1
    resident.run()
    assert resident.records == [1], "the next process goes on where this one ended"


def test_other_options_of_spark_and_a_new_release_need_another_process(world: FakePlatform) -> None:
    resident, extractor = Resident(world), world.parts.extractor
    spark = SparkSettings("local[7]")
    settings = dataclasses.replace(extractor.deployment.settings, spark=spark)
    changed = dataclasses.replace(
        extractor, deployment=dataclasses.replace(extractor.deployment, settings=settings)
    )
    resident.current = lambda: changed if resident.pauses else extractor
    assert resident.run() == "KBQ_SPARK_MASTER or an option of Spark has changed"
    resident = Resident(world)
    resident.renewed = "release 9 is installed"
    assert (resident.run(), len(resident.reports)) == ("release 9 is installed", 1)


def test_it_ends_after_the_cycle_in_which_it_is_asked(world: FakePlatform) -> None:
    resident = Resident(world)
    world.produce()

    def drain(number: int) -> None:
        resident.is_draining = number == 2

    resident.between = drain
    assert resident.run() == "it was asked to end"
    assert resident.records == [1, 0]
