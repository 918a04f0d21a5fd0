"""The orchestrator, Dagster: runs jobs from a queue, finds work on its own, and shows it to people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RunLine:
    """A line of a run's log. ``level`` is a logging level's name."""

    level: str
    message: str


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. ``status`` is the orchestrator's own term."""

    run_id: str
    succeeded: bool
    status: str
    seconds: float


class Orchestrator(Protocol):
    """Guarantees: a submitted job waits in a queue that survives every process; a run whose worker died ends
    and does not block the next one; no process stays behind without supervision."""

    def submit(self, job: str) -> str:
        """Queue a job for the daemon and return its run's id. Raises ConfigurationError."""

    def working(self) -> AbstractContextManager[None]:
        """Ensure that a daemon runs: another command's, or one that ends with the block and its runs."""

    def follow(self, run_id: str) -> Iterator[RunLine]:
        """The log of a run as it grows, until the run ends; if its worker dies and it is retried, the log of the
        retry too. Raises NotFound."""

    def outcome(self, run_id: str) -> RunOutcome:
        """How a run ended, or its current status; of a retried run, the last attempt's. Raises NotFound."""

    def serve(self, port: int, on_ready: Callable[[str], None], *, read_only: bool = False) -> None:
        """Serve the UI on loopback, with the daemon, until interrupted; then stop both.

        A ``read_only`` UI starts and changes nothing, and runs no daemon. ``on_ready`` gets the UI's URL.
        Raises ConfigurationError if the port is taken, Unavailable if the UI does not start.
        """

    def stop(self) -> None:
        """Stop a command that serves or works, and every process that a killed one left running."""
