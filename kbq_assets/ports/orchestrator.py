"""What runs jobs from a queue, looks for work by itself and shows all of it to people: Dagster."""

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
    """How a run ended. ``status`` is the orchestrator's own word."""

    run_id: str
    succeeded: bool
    status: str
    seconds: float


class Orchestrator(Protocol):
    """Guarantees: a submitted job waits in a queue that survives every process; a run whose worker died ends,
    instead of blocking the next one; nothing is left running that nobody looks after."""

    def submit(self, job: str) -> str:
        """Queue a job and return its run's id; the daemon starts it. Raises ConfigurationError."""

    def working(self) -> AbstractContextManager[None]:
        """Have the daemon running: another command's, or our own, which ends with the block and its runs."""

    def follow(self, run_id: str) -> Iterator[RunLine]:
        """The log of a run as it grows, until it has ended; where its worker dies and it is tried again, of that run
        too. Raises NotFound."""

    def outcome(self, run_id: str) -> RunOutcome:
        """How a run ended, or where it is; of a run that was tried again, the last attempt. Raises NotFound."""

    def serve(self, port: int, on_ready: Callable[[str], None], *, read_only: bool = False) -> None:
        """Serve the UI on loopback, with the daemon, until interrupted; then stop what was started.

        A ``read_only`` UI starts and changes nothing, and comes without the daemon. ``on_ready`` gets the UI's URL.
        Raises ConfigurationError for a taken port, Unavailable when it does
        not come up.
        """

    def stop(self) -> None:
        """End a command that serves or works, and everything that a killed one left running."""
