"""An extraction engine in this process: the same unit function that Spark tasks run."""

from __future__ import annotations

from collections.abc import Callable

from kbq_assets.core.units import Unit, UnitOutcome
from kbq_assets.worker.unit import WorkerPorts, extract_unit


class InProcessEngine:
    """Runs submitted tasks when asked for outcomes, in the order that ``choose`` picks (by default the oldest).

    ``slots`` tasks may be open at a time, as on a small cluster.
    """

    def __init__(
        self, ports: WorkerPorts, *, slots: int = 2, choose: Callable[[int], int] = lambda number: 0
    ) -> None:
        self._ports = ports
        self._slots = slots
        self._choose = choose
        self._open: list[tuple[Unit, ...]] = []
        self.tasks = 0

    @property
    def idle_slots(self) -> int:
        """How many more tasks would start at once."""
        return self._slots - len(self._open)

    def submit(self, units: tuple[Unit, ...]) -> None:
        """Open a task."""
        self.tasks += 1
        self._open.append(units)

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        """Run one open task to its end."""
        if not self._open:
            return []
        units = self._open.pop(self._choose(len(self._open)))
        return [extract_unit(unit, self._ports) for unit in units]
