"""What every ExtractionEngine promises (`kbq_assets.ports.engine`). Subclass it and give the fixture."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.engine import ExtractionEngine

SLOTS = 2


def unit(what: str = "reads", number: int = 0) -> Unit:
    """A unit that `task` treats as its topic says."""
    return Unit(OffsetRange(TopicPartition(what, number), 0, 5), 1, TopicSettings())


def task(units: tuple[Unit, ...]) -> list[UnitOutcome]:
    """The task of the engines under test. A topic that is a path waits for that file."""
    for each in units:
        topic = each.range.topic_partition.topic
        if topic == "raises":
            raise LookupError("no such thing")
        if topic == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while topic.startswith("/") and not Path(topic).exists():
            time.sleep(0.01)
    return [UnitOutcome(each) for each in units]


def outcomes(engine: ExtractionEngine, count: int) -> list[UnitOutcome]:
    """The next outcomes, by partition."""
    found: list[UnitOutcome] = []
    while len(found) < count:
        found += engine.next_outcomes(60)
    assert len(found) == count
    return sorted(found, key=lambda outcome: outcome.unit.range.topic_partition.partition)


class EngineContract:
    """``engine`` runs `task`, `SLOTS` at a time."""

    def test_every_unit_has_one_outcome(self, engine: ExtractionEngine) -> None:
        assert engine.idle_slots == SLOTS
        first, second, third = unit(number=1), unit(number=2), unit(number=3)
        engine.submit((first, second))
        engine.submit((third,))
        assert engine.idle_slots == 0
        assert outcomes(engine, 3) == [UnitOutcome(first), UnitOutcome(second), UnitOutcome(third)]
        assert (engine.idle_slots, engine.next_outcomes(0)) == (SLOTS, [])

    def test_a_task_that_raises_fails_alone(self, engine: ExtractionEngine) -> None:
        engine.submit((unit("raises", 1), unit(number=2)))
        engine.submit((unit(number=3),))
        *failed, good = outcomes(engine, 3)
        assert good == UnitOutcome(unit(number=3))
        assert all("LookupError: no such thing" in each.failure and not each.has_died for each in failed)

    def test_a_task_that_dies_fails_alone_and_the_next_ones_run(
        self, engine: ExtractionEngine, tmp_path: Path
    ) -> None:
        waiting = unit(str(tmp_path / "go"), 2)
        engine.submit((waiting,))
        engine.submit((unit("dies", 1),))
        [dead] = outcomes(engine, 1)
        assert (dead.unit, dead.has_died, dead.failure != "") == (unit("dies", 1), True, True)
        engine.submit((unit(number=3),))
        assert outcomes(engine, 1) == [UnitOutcome(unit(number=3))]
        (tmp_path / "go").touch()
        assert outcomes(engine, 1) == [UnitOutcome(waiting)]

    def test_cancelled_tasks_come_back_once_and_the_next_ones_run(
        self, engine: ExtractionEngine, tmp_path: Path
    ) -> None:
        waiting = [unit(str(tmp_path / "go"), number) for number in range(SLOTS)]
        for each in waiting:
            engine.submit((each,))
        engine.cancel("time is up")
        assert outcomes(engine, SLOTS) == [UnitOutcome(each, failure="time is up") for each in waiting]
        assert engine.idle_slots == SLOTS
        (tmp_path / "go").touch()
        engine.submit((unit(number=9),))
        assert outcomes(engine, 1) == [UnitOutcome(unit(number=9))]

    def test_a_wait_without_outcomes_ends(self, engine: ExtractionEngine, tmp_path: Path) -> None:
        engine.submit((unit(str(tmp_path / "go")),))
        assert engine.next_outcomes(0.01) == []
        (tmp_path / "go").touch()
        assert len(outcomes(engine, 1)) == 1

    def test_a_running_task_is_no_reason_to_complain(self, engine: ExtractionEngine) -> None:
        assert engine.complaint() == ""
        engine.submit((unit(),))
        assert engine.complaint() == ""
        outcomes(engine, 1)
