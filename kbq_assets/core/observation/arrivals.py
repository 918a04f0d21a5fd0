"""The status of file batches (docs/file-batches.md), for checks, status, notices and metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kbq_assets.core.observation.check_names import BATCHES_APPLY
from kbq_assets.core.observation.checks import CheckResult, failed


@dataclass(frozen=True)
class PrefixArrivals:
    """Counts of the batches of one table prefix that are not applied. ``failed`` and ``parked`` batches wait for a
    person: a job failed, or the configuration or a rule holds the batch back. ``waiting`` batches need no decision; the
    oldest was uploaded at ``oldest_ms``, 0 if unknown.
    """

    prefix: str
    failed: int = 0
    parked: int = 0
    waiting: int = 0
    oldest_ms: int = 0
    #: batches that wait for a person, or too long, as text, and the commands to continue
    problems: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    #: the batches that wait for a person, each with its state
    causes: tuple[str, ...] = ()

    @property
    def result(self) -> CheckResult:
        stopped, waiting = self.failed + self.parked, self.waiting
        if self.problems:
            numbers = {"stopped_batches": stopped, "waiting_batches": waiting}
            found = failed(BATCHES_APPLY, self.prefix, self.problems, self.commands, **numbers)
            return replace(found, causes=self.causes)
        text = "no batch of files waits for a person"
        return CheckResult(BATCHES_APPLY, self.prefix, text, numbers={"waiting_batches": waiting})

    @property
    def message(self) -> str:
        """The batches that wait for a person, in one line; "" if there are none."""
        return "" if self.result.passed else self.result.message


@dataclass(frozen=True)
class Arrivals:
    """All table prefixes. ``unknown`` is the reason that they could not be read, "" if they could."""

    prefixes: tuple[PrefixArrivals, ...] = ()
    unknown: str = ""

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(each.result for each in self.prefixes)

    @property
    def problems(self) -> Iterator[PrefixArrivals]:
        """The table prefixes with batches that wait for a person."""
        return (each for each in self.prefixes if each.problems)

    @property
    def unknown_checks(self) -> Mapping[str, str]:
        """The checks that could not run, with the reason."""
        return {BATCHES_APPLY: self.unknown} if self.unknown else {}
