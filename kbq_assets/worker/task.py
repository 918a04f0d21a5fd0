"""The entry point of a Spark task: builds the adapters from settings, once per worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbq_assets.core.settings import Settings
from kbq_assets.core.units import Unit, UnitOutcome

if TYPE_CHECKING:  # the driver needs this class's name, and none of what tasks import
    from kbq_assets.worker.unit import WorkerPorts

#: The worker's ports, kept between tasks: consumers, registry cache and connections are dear.
_OPENED: list[tuple[Settings, WorkerPorts]] = []


@dataclass(frozen=True)
class UnitTask:
    """What Spark ships: settings (secrets as references only) and this class's name."""

    settings: Settings

    def __call__(self, units: tuple[Unit, ...]) -> list[UnitOutcome]:
        """Extract units one after another."""
        from kbq_assets.worker.unit import extract_unit

        ports = _ports(self.settings)
        return [extract_unit(unit, ports) for unit in units]


def _ports(settings: Settings) -> WorkerPorts:
    for opened, ports in _OPENED:
        if opened == settings:
            return ports
    from kbq_assets.adapters.clock import SystemClock
    from kbq_assets.worker.adapters import open_registry, open_source, open_store
    from kbq_assets.worker.unit import WorkerPorts

    ports = WorkerPorts(open_store(settings), open_source(settings), open_registry(settings), SystemClock())
    _OPENED.append((settings, ports))
    return ports
