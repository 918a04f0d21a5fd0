"""The entry point of a Spark task: builds the adapters from settings, once per worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.settings import Settings
from kbq_assets.core.units import Unit, UnitOutcome

if TYPE_CHECKING:  # the driver needs this class's name, and none of what tasks import
    from kbq_assets.worker.unit import WorkerPorts

#: The worker's ports, kept between tasks: consumers, registry cache and connections are dear.
_OPENED: list[tuple[Settings, WorkerPorts]] = []


@dataclass(frozen=True)
class UnitTask:
    """What Spark ships: settings and this class's name. Raises ConfigurationError for a secret that would leave this
    machine: to a cluster go references alone, which workers resolve."""

    settings: Settings

    def __post_init__(self) -> None:
        if not self.settings.spark.master.startswith("local"):
            _refuse_plain_secrets(self.settings)

    def __call__(self, units: tuple[Unit, ...]) -> list[UnitOutcome]:
        """Extract units one after another."""
        from kbq_assets.worker.unit import extract_unit

        ports = _ports(self.settings)
        return [extract_unit(unit, ports) for unit in units]


def _refuse_plain_secrets(settings: Settings) -> None:
    from kbq_assets.adapters.kafka.options import is_reference, plain_secrets

    registry = settings.registry
    of_registry = {
        "KBQ_REGISTRY_PASSWORD": registry.password,
        "KBQ_REGISTRY_TOKEN": registry.token,
        "KBQ_REGISTRY_KEY_PASSWORD": registry.key_password,
    }
    plain = [name for name, value in of_registry.items() if value and not is_reference(value)]
    plain += [f"the Kafka option {name}" for name in plain_secrets(settings.kafka.options)]
    if plain:
        raise ConfigurationError(
            f"{', '.join(plain)}: the secret itself would be sent to Spark's workers",
            next_step="write env:NAME or file:PATH, which each worker looks up by itself",
        )


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
