"""``kbq local``: installs, starts, finds and stops a real broker and registry without Docker."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from rich.console import Console

from kbq_assets.adapters.java import find_java
from kbq_assets.adapters.processes.daemons import (
    find_daemon,
    last_lines,
    read_record,
    remove_record,
    start_daemon,
    stop_processes,
)
from kbq_assets.adapters.processes.locks import exclusive
from kbq_assets.adapters.processes.loopback_ports import can_listen, free_port, holder_of
from kbq_assets.adapters.settings_file import remember_ports
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.local.stack.installation import Installation, find_installation, install, required_artifacts
from kbq_assets.local.stack.kafka import Kafka
from kbq_assets.local.stack.registry import Registry

# A start takes 6 to 10 s on two idle cores, and several times as long while tests run.
READY_SECONDS = 180.0
_PORTS = ("kafka_port", "controller_port", "registry_port")
# Enough for another command's first installation over a slow line.
LOCK_SECONDS = 900.0


class ServiceState(StrEnum):
    """``dead``: the service was started and has ended without `down`."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


@dataclass(frozen=True)
class ServiceStatus:
    """One service's status. ``since`` is in seconds since 1970. ``problem`` is empty if a running service serves."""

    service: str
    state: ServiceState
    address: str
    port: int
    log: Path
    pid: int | None = None
    since: float | None = None
    problem: str = ""

    @property
    def healthy(self) -> bool:
        """Running and serving."""
        return self.state is ServiceState.RUNNING and not self.problem


@dataclass(frozen=True)
class LocalStack:
    """A Kafka broker and a schema registry below ``home``; their data survives ``down`` and ``up``.

    ``installed`` is the folder of the programs (default ``<home>/installed``); several homes can share it.
    ``ivy_settings`` is the user's own Ivy settings file. ``console`` shows progress. ``heap_mb`` is the broker's heap:
    512 MB is enough for about a thousand partitions.

    Raises ConfigurationError for a ``home`` that Kafka would parse as several paths.
    """

    home: Path
    kafka_port: int = 39092
    controller_port: int = 39093
    registry_port: int = 38081
    installed: Path | None = None
    ivy_settings: Path | None = None
    console: Console = field(default_factory=lambda: Console(stderr=True), repr=False, compare=False)
    heap_mb: int = 512

    def __post_init__(self) -> None:
        # The path is part of the daemons' markers, so it needs one canonical form.
        object.__setattr__(self, "home", self.home.resolve())
        if any(character in str(self.home) for character in ",;:"):
            raise ConfigurationError(
                f"Kafka and the registry cannot keep their data in {self.home}: ',', ';' and ':' separate paths",
                next_step="set KBQ_HOME to a folder without them",
            )

    @property
    def bootstrap_servers(self) -> str:
        return self._kafka.address

    @property
    def registry_url(self) -> str:
        """The base address of the registry's Confluent-compatible API."""
        return self._registry.address

    @property
    def ports(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _PORTS}

    @property
    def _kafka(self) -> Kafka:
        return Kafka(self.home, self.kafka_port, self.controller_port, heap_mb=self.heap_mb)

    @property
    def _registry(self) -> Registry:
        return Registry(self.home, self.registry_port)

    @property
    def _services(self) -> tuple[Kafka | Registry, ...]:
        return (self._kafka, self._registry)

    def install(self) -> Installation:
        """The programs, fetched if necessary.

        Raises Unavailable if they cannot be fetched, ConfigurationError if they differ from the list.
        """
        root = (self.installed or self.home / "installed").resolve()
        artifacts = required_artifacts()
        with exclusive(root / "lock", self.console, LOCK_SECONDS):
            found = find_installation(root, artifacts)
            if found is not None:
                return found
            self._say(f"installing Kafka and the schema registry into {root}")
            java = find_java(self.home / "java")
            return install(root, artifacts, java, self.console, self.ivy_settings or _user_ivy_settings())

    def up(self) -> None:
        """Start both services and wait until they serve. Services that already run are left alone.

        Raises ConfigurationError if a port is taken, a service already runs on another port, or Java is missing.
        Raises Unavailable, with the end of the log, if a service does not start.
        """
        with self._locked():
            missing = [service for service in self._services if not self._runs(service)]
            for service in missing:
                self._require_free_ports(service)
            remember_ports(self.home, self.ports)
            if missing:
                self._start(missing)
            self._wait_until_serving()

    def down(self, grace_seconds: float | None = None) -> None:
        """Stop the services that ``up`` started. Their data stays. ``grace_seconds`` overrides the time that they get
        for a clean stop."""
        with self._locked():
            running = [
                (service, process)
                for service in self._services
                if (process := find_daemon(service.service, self.home)) is not None
            ]
            if not running:
                self._say("nothing of the local stack is running")
            for service, process in running:
                self._say(f"stopping {service.service} (process {process.pid})")
            grace = grace_seconds
            if grace is None:
                grace = max((service.grace_seconds for service, _ in running), default=0.0)
            for stubborn in stop_processes([process for _, process in running], grace):
                self._say(f"  process {stubborn.pid} did not end in {grace:.0f} s and was killed")
            for service in self._services:
                remove_record(service.service, self.home)

    def status(self) -> tuple[ServiceStatus, ...]:
        """Each service's status. Queries the services, changes nothing, and takes no lock."""
        return tuple(self._status(service) for service in self._services)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return exclusive(self.home / "run" / "lock", self.console, LOCK_SECONDS)

    def _runs(self, service: Kafka | Registry) -> bool:
        """Whether the service runs. Raises ConfigurationError if it runs on a port other than the requested one."""
        if find_daemon(service.service, self.home) is None:
            return False
        record = read_record(service.service, self.home)
        if record is not None and record.port != service.port:
            raise ConfigurationError(
                f"{service.service} of {self.home} already runs on port {record.port}, not {service.port}",
                next_step="run kbq local down, then kbq local up; or keep its port",
            )
        return True

    def _require_free_ports(self, service: Kafka | Registry) -> None:
        for option, port in service.ports.items():
            if not can_listen(port):
                raise ConfigurationError(
                    f"port {port}, wanted for {service.service}, is taken by {holder_of(port)}",
                    next_step=f"stop that program, or choose another port: KBQ_LOCAL_{option.upper()}=…",
                )

    def _start(self, services: Sequence[Kafka | Registry]) -> None:
        installation = self.install()
        java = find_java(self.home / "java")
        for service in services:
            service.prepare(installation, java)
            daemon = service.daemon(installation, java)
            process = start_daemon(daemon)
            self._say(f"starting {service.service} on {service.address} (process {process.pid})")

    def _wait_until_serving(self) -> None:
        begun = time.monotonic()
        # A broker opens the logs of all partitions before it serves, just as it closes them before it ends.
        limit = READY_SECONDS + max(service.grace_seconds for service in self._services)
        with self.console.status("waiting until they serve"):
            for service in self._services:
                while problem := service.problem():
                    self._require_alive(service)
                    if time.monotonic() - begun > limit:
                        raise Unavailable(
                            f"{service.service} does not serve after {limit:.0f} s: {problem}",
                            next_step=f"see {_log(self.home, service)}; then: kbq local down",
                        )
                    time.sleep(0.1)
        seconds = time.monotonic() - begun
        self._say(f"kafka on {self.bootstrap_servers}, registry on {self.registry_url} ({seconds:.1f} s)")

    def _require_alive(self, service: Kafka | Registry) -> None:
        if find_daemon(service.service, self.home) is None:
            log = _log(self.home, service)
            raise Unavailable(
                f"{service.service} ended while starting; the end of {log}:\n{last_lines(log)}",
                next_step="fix the cause and run kbq local up again",
            )

    def _status(self, service: Kafka | Registry) -> ServiceStatus:
        process = find_daemon(service.service, self.home)
        record = read_record(service.service, self.home)
        common = (service.address, service.port, _log(self.home, service))
        if process is None:
            state = ServiceState.STOPPED if record is None else ServiceState.DEAD
            return ServiceStatus(service.service, state, *common)
        since = record.started_at if record is not None else None
        problem = service.problem()
        if record is not None and record.port != service.port:
            problem = (
                f"runs on port {record.port}, but KBQ_LOCAL_{service.service.upper()}_PORT says {service.port}: "
                "unset it, or run kbq local down and up again"
            )
        return ServiceStatus(service.service, ServiceState.RUNNING, *common, process.pid, since, problem)


def on_free_ports(stack: LocalStack, fixed: Collection[str]) -> LocalStack:
    """The stack on available ports. Running services keep their ports. Any other port that is taken is replaced by a
    free one, unless it is ``fixed``."""
    running = {service.service for service in stack.status() if service.state is ServiceState.RUNNING}
    chosen: dict[str, int] = {}
    for name, remembered in stack.ports.items():
        own, port = "registry" if name == "registry_port" else "kafka", remembered
        while name not in fixed and own not in running and (port in chosen.values() or not can_listen(port)):
            port = free_port()
        chosen[name] = port
    for service in running:
        record = read_record(service, stack.home)
        if record is not None and f"{service}_port" not in fixed:
            chosen[f"{service}_port"] = record.port
    kafka, controller, registry = (chosen[name] for name in _PORTS)
    return dataclasses.replace(stack, kafka_port=kafka, controller_port=controller, registry_port=registry)


def _user_ivy_settings() -> Path | None:
    """The user's own Ivy settings file, if it exists."""
    path = Path.home() / ".ivy2" / "ivysettings.xml"
    return path if path.is_file() else None


def _log(home: Path, service: Kafka | Registry) -> Path:
    return home / "logs" / f"{service.service}.log"
