"""The entry point of a task: builds the adapters from settings, once per worker process."""

from __future__ import annotations

import dataclasses
import os
import resource
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.config.variables import declared_in
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.extraction.units import Unit, UnitOutcome

if TYPE_CHECKING:  # the driver needs only this class's name, not what tasks import
    from kbq_assets.worker.unit import WorkerPorts

#: Number of settings whose ports stay open: a resident application may receive new settings.
_MOST_OPENED: Final = 4


@dataclass
class _Opened:
    """Ports that outlive a task, since connections and the registry's answers are expensive."""

    settings: Settings
    cycle: int
    ports: WorkerPorts


_OPENED: list[_Opened] = []


@dataclass(frozen=True)
class UnitTask:
    """The callable that is sent to workers; it pickles as settings and this class's name.

    A cluster gets only references to secrets, which workers resolve. Raises ConfigurationError if a secret itself would
    leave this machine. Each ``cycle`` of a resident application queries the registry again.
    """

    settings: Settings
    cycle: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", self.settings.for_tasks)
        if not self.settings.spark.is_local:
            _refuse_plain_secrets(self.settings)

    def __call__(self, units: tuple[Unit, ...]) -> list[UnitOutcome]:
        """Extract units one after another."""
        from kbq_assets.worker.unit import extract_units

        # Write each schema once per task, not per window: Cloud Storage also bills writes that it refuses.
        ports = dataclasses.replace(worker_ports(self.settings, self.cycle), written_schemas=set())
        return [_signed(outcome) for outcome in extract_units(units, ports)]


def _signed(outcome: UnitOutcome) -> UnitOutcome:
    """The outcome with this process's name and peak memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = peak if sys.platform == "darwin" else peak * 1024  # kilobytes elsewhere
    name = f"{socket.gethostname()}:{os.getpid()}"
    process = dataclasses.replace(outcome.process, name=name, memory_bytes=memory)
    return dataclasses.replace(outcome, process=process)


def _refuse_plain_secrets(settings: Settings) -> None:
    from kbq_assets.adapters.kafka.options import plain_secrets

    registry = settings.registry
    secrets = {
        each.name: getattr(registry, field) for field, each in declared_in(RegistrySettings) if each.secret
    }
    plain = [name for name, value in secrets.items() if value and not is_reference(value)]
    addresses = {
        "KBQ_REGISTRY_URL": registry.url,
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        **{f"the Kafka option {n}": v for n, v in settings.kafka.options.items() if n.endswith(".url")},
    }
    # An address may contain a user and a password: https://user:password@host
    plain += [name for name, address in addresses.items() if "@" in address and not is_reference(address)]
    plain += [f"the Kafka option {name}" for name in plain_secrets(settings.kafka.options)]
    if plain:
        raise ConfigurationError(
            f"{', '.join(plain)}: the secret itself would go to Spark's workers",
            next_step="write a reference such as env:NAME or file:PATH, which each worker resolves; instead"
            " of a user in KBQ_REGISTRY_URL set KBQ_REGISTRY_USERNAME and KBQ_REGISTRY_PASSWORD",
        )


def worker_ports(settings: Settings, cycle: int = 0) -> WorkerPorts:
    """The ports of this process, opened once per settings. The registry's client caches schemas, so each cycle gets a
    new one."""
    for opened in _OPENED:
        if opened.settings == settings:
            if opened.cycle != cycle:
                from kbq_assets.worker.adapters import open_registry

                opened.ports = dataclasses.replace(opened.ports, registry=open_registry(settings))
                opened.cycle = cycle
            return opened.ports
    del _OPENED[: 1 - _MOST_OPENED]
    _OPENED.append(_Opened(settings, cycle, _open(settings)))
    return _OPENED[-1].ports


def _open(settings: Settings) -> WorkerPorts:
    from kbq_assets.adapters.clock import SystemClock
    from kbq_assets.adapters.secrets import use_google
    from kbq_assets.worker.adapters import (
        backup_places,
        open_pseudonyms,
        open_registry,
        open_seal_key,
        open_source,
        open_store,
    )
    from kbq_assets.worker.unit import WorkerPorts

    use_google(settings.google.extract_credentials)
    return WorkerPorts(
        open_store(settings),
        open_source(settings),
        open_registry(settings),
        SystemClock(),
        pseudonyms=lambda: open_pseudonyms(settings),
        seal_key=lambda: open_seal_key(settings),
        backup=backup_places(settings),
    )
