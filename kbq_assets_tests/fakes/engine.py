"""An extraction engine in this process, with the same unit function as Spark tasks."""

from __future__ import annotations

from collections.abc import Callable

from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.worker.unit import WorkerPorts, extract_units
from kbq_assets_tests.fakes.clock import FakeClock


class InProcessEngine:
    """Runs submitted tasks when asked for outcomes, in the order that ``choose`` picks (by default the oldest).

    ``slots`` tasks may be open at a time, as on a small cluster. A task with a unit that ``kills`` dies.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        *,
        slots: int = 2,
        choose: Callable[[int], int] = lambda number: 0,
        kills: Callable[[Unit], bool] = lambda unit: False,
    ) -> None:
        self._ports = ports
        self._slots = slots
        self._choose = choose
        self._kills = kills
        self._open: list[tuple[Unit, ...]] = []
        self._given_up: list[UnitOutcome] = []
        self.tasks = 0

    @property
    def idle_slots(self) -> int:
        """The number of tasks that could start now."""
        return self._slots - len(self._open)

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Open a task."""
        self.tasks += 1
        self._open.append(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Run one open task to its end."""
        if self._given_up:
            outcomes, self._given_up = self._given_up, []
            return outcomes
        if not self._open:
            return []
        units = self._open.pop(self._choose(len(self._open)))
        if any(map(self._kills, units)):
            return [
                UnitOutcome(unit, failure="the Spark task failed: killed", has_died=True) for unit in units
            ]
        return list(extract_units(units, self._ports))

    def complaint(self) -> str:
        """Always empty: tasks can always run here."""
        return ""

    def cancel(self, reason: str) -> None:
        """Fail what is open."""
        self._given_up += [UnitOutcome(unit, failure=reason) for units in self._open for unit in units]
        self._open = []


class DeafEngine(InProcessEngine):
    """A cluster that provides no executor: submitted tasks never start, while the clock advances. It complains after
    half a minute. ``submitted`` has all submitted units, even after they were canceled."""

    def __init__(self, ports: WorkerPorts, clock: FakeClock) -> None:
        super().__init__(ports, slots=2)
        self._clock = clock
        self._since = clock.monotonic()
        self.submitted: list[tuple[Unit, ...]] = []

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Open a task."""
        super().submit(units)
        self.submitted.append(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """None but of cancelled tasks."""
        self._clock.sleep(timeout_seconds)
        return super().next_outcomes(timeout_seconds) if self._given_up else []

    def complaint(self) -> str:
        """That nobody hears."""
        return "nobody hears" if self._open and self._clock.monotonic() - self._since >= 30 else ""
