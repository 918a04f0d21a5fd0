"""Processes as greenlets. A process runs until its next remote call; then the scheduler decides what happens to the
call and who runs next. A process that is not chosen for long is a zombie; one that crashes is gone.

Everything is drawn from one seeded random generator: a seed is a schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import greenlet

from kbq_assets.core.errors import KbqError
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome

READ_FAULTS = (Outcome.UNAVAILABLE, Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER)
WRITE_FAULTS = (*READ_FAULTS, Outcome.CRASH_LATE, Outcome.LOST_REPLY, Outcome.LATE, Outcome.OWN_RETRY)


@dataclass
class Process:
    """A running process. ``stalled`` is how many more turns it is left out (SIGSTOP)."""

    name: str
    glet: greenlet.greenlet
    stalled: int = 0
    waiting: Call | None = None


@dataclass
class Scheduler:
    """Runs processes step by step. ``fault_rate`` is the chance of a fault per call."""

    random: random.Random
    fault_rate: float = 0.0
    stall_rate: float = 0.0
    processes: list[Process] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    _started: int = 0
    _hub: greenlet.greenlet | None = None

    def start(self, kind: str, body: Callable[[str], object]) -> None:
        """Start a process; ``body`` gets its name. KbqErrors end it as they would end a run."""
        self._started += 1
        name = f"{kind}{self._started}"

        def run() -> None:
            try:
                body(name)
            except (KbqError, Crash) as error:
                self.trace.append(f"{name} ended: {type(error).__name__} {str(error).splitlines()[:1]}")

        self.processes.append(Process(name, greenlet.greenlet(run)))

    def decide(self, call: Call) -> Outcome:
        """Called by the fakes, inside a process, before each remote call: yields to the scheduler."""
        if self._hub is None or greenlet.getcurrent() is self._hub:
            return Outcome.OK
        outcome: Outcome = self._hub.switch(call)
        return outcome

    def pause(self) -> None:
        """Called by a process that waits for time to pass."""
        if self._hub is not None and greenlet.getcurrent() is not self._hub:
            self._hub.switch(None)

    def step(self) -> bool:
        """Let one process make its pending call and run to the next. False when none is left."""
        if not self.processes:
            return False
        awake = [p for p in self.processes if p.stalled == 0]
        for process in self.processes:
            process.stalled = max(0, process.stalled - 1)
        if awake:
            self._resume(self.random.choice(awake))
        return True

    def _resume(self, process: Process) -> None:
        self._hub = greenlet.getcurrent()
        outcome = self._draw(process)
        if process.waiting is not None:
            shown = "" if outcome is Outcome.OK else f" -> {outcome.name}"
            self.trace.append(f"{process.name}: {process.waiting.operation} {process.waiting.target}{shown}")
        process.waiting = process.glet.switch(outcome) if process.glet else process.glet.switch()
        if process.glet.dead:
            self.processes.remove(process)
        elif self.random.random() < self.stall_rate:
            process.stalled = self.random.randint(5, 80)

    def _draw(self, process: Process) -> Outcome:
        if process.waiting is None or self.random.random() >= self.fault_rate:
            return Outcome.OK
        return self.random.choice(WRITE_FAULTS if process.waiting.writes else READ_FAULTS)

    def run_to_end(self) -> None:
        """Run everything that is left. Raises AssertionError when it does not end."""
        for _ in range(100_000):
            if not self.step():
                return
        raise AssertionError(f"processes still run after 100,000 steps: {[p.name for p in self.processes]}")
