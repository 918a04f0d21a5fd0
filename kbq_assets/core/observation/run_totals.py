"""Totals and heartbeats of runs, in `metrics/`, for numbers that no other swap stores. They are best effort: a killed
run is missing, and no decision depends on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import TableReference

METRICS: Final = "metrics/"
#: Heartbeats of runs.
RUNS: Final = "metrics/runs/"
EXTRACTION: Final = "extraction"
LOADING: Final = "loading"
CLEANING: Final = "cleaning"
KINDS: Final = (EXTRACTION, LOADING, CLEANING)
#: Number of recent runs stored, so that a swap whose reply was lost does not count twice.
_REMEMBERED: Final = 8
#: Most failures stored, and most characters of each.
_FAILURES: Final = 1000
_CHARACTERS: Final = 500
#: The key of a failure that ended a whole run.
WHOLE_RUN: Final = "*"
#: A transient failure that repeats in several runs for this long needs a person.
LASTING_MS: Final = 1_800_000


@dataclass(frozen=True)
class WorkerUse(Stored):
    """A worker process in a run: its units, the seconds spent on them, and its peak memory."""

    units: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0

    def with_outcome(self, outcome: UnitOutcome) -> WorkerUse:
        return dataclasses.replace(
            self,
            units=self.units + 1,
            seconds=round(self.seconds + outcome.seconds, 3),
            memory_bytes=max(self.memory_bytes, outcome.process.memory_bytes),
        )


def skew(workers: Iterable[WorkerUse]) -> float:
    """Busy time of the busiest worker divided by the average: 1.0 is even, 0.0 if none worked."""
    seconds = [worker.seconds for worker in workers]
    return max(seconds) * len(seconds) / sum(seconds) if sum(seconds) > 0 else 0.0


@dataclass(frozen=True)
class TopicCost(Stored):
    """A topic's CPU seconds so far. ``cost`` also includes the results of earlier versions' cost functions. ``records``
    were read in ``seconds`` of tasks; both count since the release that first stored them."""

    owner: str = ""
    cost_center: str = ""
    cost: float = 0.0
    core_seconds: float = 0.0
    records: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Records per second of one task; 0 if unknown."""
        return self.records / self.seconds if self.seconds else 0.0

    def plus(self, used: Usage) -> TopicCost:
        """The cost with one more run, whose owner replaces the earlier one."""
        return dataclasses.replace(
            self,
            owner=used.owner,
            cost_center=used.cost_center,
            cost=round(self.cost + used.core_seconds, 6),
            core_seconds=round(self.core_seconds + used.core_seconds, 6),
            records=self.records + used.records,
            seconds=round(self.seconds + used.seconds, 3),
        )


@dataclass(frozen=True)
class RunFailure(Stored):
    """The reason that the last runs failed for one table, or were interrupted in one partition."""

    message: str
    #: whether a remote system did not answer, so that the next run may succeed
    transient: bool = False
    #: consecutive runs, and the end of the first one by a local clock
    times: int = 1
    since_ms: int = 0

    def after(self, before: RunFailure | None) -> RunFailure:
        """The failure combined with that of the previous run."""
        if before is None:
            return self
        return dataclasses.replace(self, times=before.times + 1, since_ms=before.since_ms)

    def lasts(self, now_ms: int) -> bool:
        """Whether it will probably last until somebody acts."""
        return not self.transient or (self.times > 1 and now_ms - self.since_ms >= LASTING_MS)


@dataclass(frozen=True)
class RunTotals(Stored):
    """`metrics/<kind>.json`: the finished runs of one kind."""

    runs: int = 0
    #: runs without a failure
    succeeded: int = 0
    seconds: float = 0.0
    #: end of the last run, by a local clock
    ended_ms: int = 0
    #: end of the last successful run, by a local clock
    succeeded_ms: int = 0
    #: staged but not published
    lost_files: int = 0
    #: deleted
    orphans: int = 0
    #: deleted
    done_files: int = 0
    #: failed commits to consumer groups
    advisory_failures: int = 0
    costs: Mapping[str, TopicCost] = field(default_factory=dict)
    #: workers of the last run that read anything, busiest first
    workers: tuple[WorkerUse, ...] = ()
    #: the last runs that were counted
    recent: tuple[str, ...] = ()
    #: failures of the last run, by partition, or by table's `failure_key`
    failures: Mapping[str, RunFailure] = field(default_factory=dict)

    def plus(self, run: RunEnd) -> RunTotals:
        """The totals with one more run. A run that is already counted changes nothing."""
        if run.run in self.recent:
            return self
        costs = dict(self.costs)
        for used in run.costs:
            costs[used.topic] = costs.get(used.topic, TopicCost()).plus(used)
        new = {key: found and found.after(self.failures.get(key)) for key, found in run.parts.items()}
        failures = sorted({**self.failures, **new}.items())
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
            advisory_failures=self.advisory_failures + run.advisory_failures,
            costs=costs,
            workers=run.workers or self.workers,
            recent=(*self.recent, run.run)[-_REMEMBERED:],
            failures=dict([(key, failure) for key, failure in failures if failure is not None][:_FAILURES]),
        )


@dataclass(frozen=True)
class RunEnd:
    """A run's part of the totals of its kind."""

    run: str
    succeeded: bool
    seconds: float
    ended_ms: int
    lost_files: int = 0
    orphans: int = 0
    done_files: int = 0
    advisory_failures: int = 0
    costs: tuple[Usage, ...] = ()
    workers: tuple[WorkerUse, ...] = ()
    #: its partitions and tables, with keys as in `RunTotals.failures`; None for those that did not fail
    parts: Mapping[str, RunFailure | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SignOfLife(Stored):
    """The heartbeat `metrics/runs/<run>.json` while a run reads: units now in tasks, and workers so far."""

    kind: str
    units: int = 0
    workers: tuple[WorkerUse, ...] = ()


def totals_path(kind: str) -> str:
    return f"{METRICS}{kind}.json"


def sign_path(run: str) -> str:
    """Path of a run's heartbeat."""
    return f"{RUNS}{run}.json"


def failure_key(warehouse: str, table: TableReference) -> str:
    return f"{warehouse}/{table}"


def run_failure(message: str, ended_ms: int, *, transient: bool = True) -> RunFailure:
    """A failure of one run, with its message cut to a limit."""
    words = message if len(message) <= _CHARACTERS else f"{message[:_CHARACTERS]}…"
    return RunFailure(words, transient, since_ms=ended_ms)
