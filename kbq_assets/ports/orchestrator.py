"""The orchestrator (Dagster): runs jobs from a queue, finds work by itself, and displays it."""

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
    """Guarantees: a submitted job waits in a queue that survives every process; a run whose worker died ends and does
    not block the next one; no process is left running unsupervised."""

    def submit(self, job: str) -> str:
        """Queue a job for the daemon and return its run's id. Raises ConfigurationError."""

    def working(self) -> AbstractContextManager[None]:
        """Ensure that a daemon runs: either another command's, or one that ends with the block and its runs."""

    def follow(self, run_id: str) -> Iterator[RunLine]:
        """Follow the log of a run until the run ends. If its worker dies and the run is retried, continues with the
        retry's log. Raises NotFound."""

    def outcome(self, run_id: str) -> RunOutcome:
        """How a run ended, or its current status. For a retried run, the last attempt counts. Raises NotFound."""

    def serve(self, port: int, on_ready: Callable[[str], None], *, read_only: bool = False) -> None:
        """Serve the UI on loopback, with the daemon, until interrupted; then stop both.

        A ``read_only`` UI cannot start or change anything, and runs no daemon. ``on_ready`` gets the UI's URL. Raises
        ConfigurationError if the port is taken, Unavailable if the UI does not start.
        """

    def stop(self) -> None:
        """Stop a running command of `serve` or `working`, and all processes that a killed command left behind."""
