"""A schema registry with Confluent's API (Apicurio), which stores its schemas and ids in a file."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from kbq_assets.adapters.java import JavaRuntime
from kbq_assets.adapters.processes.daemons import Daemon
from kbq_assets.adapters.processes.loopback_ports import HOST
from kbq_assets.local.stack.installation import Installation

# The environment's proxies must not apply to loopback.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Registry:
    """The registry of one home folder."""

    home: Path
    port: int

    service = "registry"
    grace_seconds = 10.0

    @property
    def address(self) -> str:
        """The base address of Confluent's API."""
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    @property
    def ports(self) -> dict[str, int]:
        """Every port it listens on, by the name of the option that changes it."""
        return {"registry_port": self.port}

    def prepare(self, installation: Installation, java: JavaRuntime) -> None:
        """Do nothing: the database creates itself."""

    def daemon(self, installation: Installation, java: JavaRuntime) -> Daemon:
        """The program to start."""
        # WRITE_DELAY=0: an assigned schema id survives kill -9.
        database = f"jdbc:h2:file:{self.home / self.service / 'data' / 'registry'};WRITE_DELAY=0"
        command = (
            str(java.executable),
            *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"),
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={self.port}",
            "-Dquarkus.http.access-log.enabled=false",
            "-Dapicurio.rules.global.compatibility=BACKWARD",
            "-Dapicurio.storage.kind=sql",
            "-Dapicurio.storage.sql.kind=h2",
            f"-Dapicurio.datasource.url={database}",
            *("-jar", str(installation.registry_jar)),
        )
        return Daemon(self.service, self.home, command, self.port)

    def problem(self) -> str:
        """Why the registry does not serve yet; empty if it does."""
        try:
            with _DIRECT.open(f"{self.address}/subjects", timeout=3):
                return ""
        except (urllib.error.URLError, OSError) as error:
            return str(getattr(error, "reason", error))
