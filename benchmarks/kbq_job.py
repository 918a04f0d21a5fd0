"""Runs KBQ's own extraction as `kbq extract` does, and times its parts.

``python -m benchmarks.kbq_job TOPIC REPORT [SOURCE]``. With a source, ``kafka`` or ``backup``, it reads everything that
was extracted again for a replay, without loading it. Settings come from the environment, as usual.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kbq_assets.cli import end_quickly, rare_collections
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.definitions import Parts, parts
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.worker.engines import spare_forker

if TYPE_CHECKING:
    from kbq_assets.pipelines.replay.area import ReplayArea


class TimedEngine:
    """An engine that records when its first task started, and how long tasks ran."""

    def __init__(self, engine: ExtractionEngine) -> None:
        self._engine = engine
        self.first: float | None = None
        self.task_seconds: list[float] = []
        self.core_seconds = 0.0

    @property
    def idle_slots(self) -> int:
        return self._engine.idle_slots

    def submit(self, units: tuple[Unit, ...]) -> None:
        self.first = self.first or time.time()
        self._engine.submit(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        outcomes = self._engine.next_outcomes(timeout_seconds)
        self.task_seconds += [outcome.seconds for outcome in outcomes]
        self.core_seconds += sum(outcome.process.core_seconds for outcome in outcomes)
        return outcomes

    def complaint(self) -> str:
        return self._engine.complaint()

    def cancel(self, reason: str) -> None:
        self._engine.cancel(reason)


def main(topic: str, report: str, source: str = "") -> None:
    started = time.time()
    made = parts()
    area = _replayed(made, topic, source) if source else None
    extractor = area.extractor if area else made.extractor
    adapters = area.adapters if area else made.adapters
    with spare_forker(made.deployment.settings), adapters.engine() as engine:
        opened = time.time()
        timed = TimedEngine(engine)
        done = extractor.extract(timed, only=frozenset([topic]))
        ended = time.time()
    assert not done.failures and not done.stops, (done.failures, done.stops)
    measured = {
        "session": opened - started,
        "extraction": ended - opened,
        "tasks": ended - (timed.first or ended),
        "task_seconds": timed.task_seconds,
        "core_seconds": timed.core_seconds,
        "records": done.totals.records,
        "rows": sum(done.totals.rows.values()),
        "tables": len(done.totals.rows),
    }
    Path(report).write_text(json.dumps(measured))


def _replayed(made: Parts, topic: str, source: str) -> ReplayArea:
    """The staging area of a new replay of the whole topic."""
    from kbq_assets.core.replay.positions import Position
    from kbq_assets.pipelines.replay.start import create, plan_replay

    number = max((each.number for each in made.replays.list()), default=0) + 1
    ends = Position("earliest"), Position("latest")
    create(made.deployment, plan_replay(made.deployment, number, topic, ends, source))
    area = made.replays.area(made.replays.find(number))
    area.prepare()
    return area


if __name__ == "__main__":
    end_quickly()
    with rare_collections():
        main(*sys.argv[1:])
