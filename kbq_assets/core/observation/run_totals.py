"""What runs say about themselves, in `metrics/`: totals that no other swap knows, and signs of life. Best effort: a run
that is killed before its end is missing in them, and no decision depends on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.extraction.units import UnitOutcome

METRICS: Final = "metrics/"
#: Signs of life of runs.
RUNS: Final = "metrics/runs/"
EXTRACTION: Final = "extraction"
LOADING: Final = "loading"
CLEANING: Final = "cleaning"
KINDS: Final = (EXTRACTION, LOADING, CLEANING)
#: How many runs a total remembers: a swap whose reply was lost is not counted again.
_REMEMBERED: Final = 8


@dataclass(frozen=True)
class WorkerUse:
    """What one worker process did in a run: units, seconds in them, the most memory that it ever held."""

    units: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0

    def with_outcome(self, outcome: UnitOutcome) -> WorkerUse:
        """With one more unit."""
        return WorkerUse(
            self.units + 1,
            round(self.seconds + outcome.seconds, 3),
            max(self.memory_bytes, outcome.memory_bytes),
        )


def skew(workers: Iterable[WorkerUse]) -> float:
    """How much longer the busiest worker was busy than the average: 1.0 is even, 0.0 where nobody worked."""
    seconds = [worker.seconds for worker in workers]
    return max(seconds) * len(seconds) / sum(seconds) if sum(seconds) > 0 else 0.0


@dataclass(frozen=True)
class TopicCost:
    """Processor seconds of a topic so far. ``cost`` also holds what another cost function gave to former runs."""

    owner: str = ""
    cost_center: str = ""
    cost: float = 0.0
    core_seconds: float = 0.0

    def plus(self, used: Usage) -> TopicCost:
        """With one more run, whose owner counts."""
        return TopicCost(
            used.owner,
            used.cost_center,
            round(self.cost + used.core_seconds, 6),
            round(self.core_seconds + used.core_seconds, 6),
        )


@dataclass(frozen=True)
class RunTotals:
    """`metrics/<kind>.json`: the runs of one kind that came to their end.

    ``succeeded``: nothing in them failed; the last one ended at ``succeeded_ms``, the last of all at ``ended_ms``, by
    local clocks. ``lost_files`` were staged and not published, ``orphans`` and ``done_files`` deleted. ``workers``
    are those of the last run that read anything, the busiest first. ``recent`` are the last runs counted.
    """

    runs: int = 0
    succeeded: int = 0
    seconds: float = 0.0
    ended_ms: int = 0
    succeeded_ms: int = 0
    lost_files: int = 0
    orphans: int = 0
    done_files: int = 0
    costs: Mapping[str, TopicCost] = field(default_factory=dict)
    workers: tuple[WorkerUse, ...] = ()
    recent: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def plus(self, run: RunEnd) -> RunTotals:
        """With one more run; one that is counted already changes nothing."""
        if run.run in self.recent:
            return self
        costs = dict(self.costs)
        for used in run.costs:
            costs[used.topic] = costs.get(used.topic, TopicCost()).plus(used)
        return dataclasses.replace(
            self,
            runs=self.runs + 1,
            succeeded=self.succeeded + run.succeeded,
            seconds=round(self.seconds + run.seconds, 3),
            ended_ms=run.ended_ms,
            succeeded_ms=run.ended_ms if run.succeeded else self.succeeded_ms,
            lost_files=self.lost_files + run.lost_files,
            orphans=self.orphans + run.orphans,
            done_files=self.done_files + run.done_files,
            costs=costs,
            workers=run.workers or self.workers,
            recent=(*self.recent, run.run)[-_REMEMBERED:],
        )


@dataclass(frozen=True)
class RunEnd:
    """What a run adds to the totals of its kind."""

    run: str
    succeeded: bool
    seconds: float
    ended_ms: int
    lost_files: int = 0
    orphans: int = 0
    done_files: int = 0
    costs: tuple[Usage, ...] = ()
    workers: tuple[WorkerUse, ...] = ()


@dataclass(frozen=True)
class SignOfLife:
    """`metrics/runs/<run>.json`, while a run reads: how many units are in tasks now, and what workers did so far."""

    kind: str
    units: int = 0
    workers: tuple[WorkerUse, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def totals_path(kind: str) -> str:
    """Where the totals of a kind of run stand."""
    return f"{METRICS}{kind}.json"


def sign_path(run: str) -> str:
    """Where a run shows that it lives."""
    return f"{RUNS}{run}.json"
