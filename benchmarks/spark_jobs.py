"""Compares one Spark job per unit of extraction with one job of many tasks: ``python -m benchmarks.spark_jobs``.

Tasks sleep instead of reading, so that other programs on the machine have little influence. There are 23 short units
and a long one, in the order of a plan that does not know their length. Takes a minute on ``local[2]``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from kbq_assets.adapters.spark.engine import SparkEngine
from kbq_assets.adapters.spark.session import spark_context
from kbq_assets.core.config.parts import SparkSettings
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.options import TopicSettings

SHORT, LONG, UNITS, EMPTY = 0.5, 12.0, 24, 200


def units(seconds: list[float]) -> list[Unit]:
    """Units whose tasks take the given seconds. A unit's partition is its index."""
    return [
        Unit(OffsetRange(TopicPartition("t", number), 0, 1), 1, TopicSettings(), seconds=each)
        for number, each in enumerate(seconds)
    ]


def task(batch: tuple[Unit, ...]) -> list[UnitOutcome]:
    """Sleep as long as the units take."""
    for unit in batch:
        time.sleep(unit.seconds)
    return [UnitOutcome(unit) for unit in batch]


def one_task_jobs(context: Any, work: list[Unit]) -> list[float]:
    """Seconds until each unit could be published, with a job per unit as in KBQ."""
    engine, waiting, begun, ended = SparkEngine(context, task), list(work), time.monotonic(), []
    while len(ended) < len(work):
        while waiting and engine.idle_slots > 0:
            engine.submit((waiting.pop(0),))
        ended += [time.monotonic() - begun for _ in engine.next_outcomes(1.0)]
    return ended


def one_job(context: Any, work: list[Unit]) -> list[float]:
    """The same if all units are tasks of a single job, whose outcomes arrive together."""
    begun = time.monotonic()
    outcomes = context.parallelize([(unit,) for unit in work], len(work)).map(task).collect()
    return [time.monotonic() - begun] * len(outcomes)


def main() -> None:
    """Measure and print."""
    skewed = units([LONG if number == 2 else SHORT for number in range(UNITS)])
    with (
        tempfile.TemporaryDirectory() as home,
        spark_context(SparkSettings("local[2]"), Path(home)) as context,
    ):
        one_task_jobs(context, units([0.0] * 4))  # starts the Python workers
        for name, run in (("a job per unit", one_task_jobs), ("one job", one_job)):
            ended = run(context, skewed)
            empty = max(run(context, units([0.0] * EMPTY)))
            print(
                f"{name}: a unit is published after {sum(ended) / len(ended):.1f} s on average, the first after "
                f"{min(ended):.1f} s, all after {max(ended):.1f} s; {EMPTY} empty units take {empty:.1f} s"
            )


if __name__ == "__main__":
    main()
