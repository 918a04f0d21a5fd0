"""A separate home for the demo, where `kbq` runs as for a user: by its command line, in its own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kbq_assets.defs.instance.processes import Processes
from kbq_assets.local.demo.log import ProducersLog
from kbq_assets.local.demo.produce import produce_more
from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.fixtures.local_stack import INSTALLED, REPOSITORY, RUNS, SILENT, alone, free_ports, join

KBQ = str(Path(sys.executable).parent / "kbq")
#: Generous: the suite shares two cores with itself, and a whole demo takes most of a minute on idle ones.
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Demo:
    """A separate home with its own ports, for a user whose HOME is empty."""

    home: Path
    stack: LocalStack
    settings: Mapping[str, str]

    @property
    def environ(self) -> dict[str, str]:
        """All that the commands see."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home / "user"),
            "KBQ_HOME": str(self.home),
            "KBQ_LOCAL_KAFKA_PORT": str(self.stack.kafka_port),
            "KBQ_LOCAL_CONTROLLER_PORT": str(self.stack.controller_port),
            "KBQ_LOCAL_REGISTRY_PORT": str(self.stack.registry_port),
            "KBQ_EXTRACT_SECONDS": "5",
            "KBQ_LOAD_SECONDS": "5",
            **self.settings,
        }

    @contextmanager
    def started(self, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
        """A `kbq` command under way; killed at the end of the block if it still runs."""
        with subprocess.Popen(
            [KBQ, *arguments],
            env={**self.environ, **environ},
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `kbq` command to its end."""
        with self.started(*arguments) as process:
            output = process.communicate(timeout=PATIENCE_SECONDS)[0]
            return subprocess.CompletedProcess(arguments, process.returncode, output)

    def reconcile(self) -> dict[str, Any]:
        """`kbq reconcile --json`."""
        ran = self.run("reconcile", "--json")
        assert ran.returncode in (0, 1), self.explain(ran)
        document = document_of(ran)
        assert ran.returncode == (0 if document["accounted"] else 1)
        return document

    def produce(self, count: int) -> None:
        """More flights."""
        produce_more(self.stack.bootstrap_servers, self.stack.registry_url, self.home, count)

    def produced(self) -> dict[str, dict[str, int]]:
        """What the producers counted, per topic, in the words of a reconciliation."""
        totals = ProducersLog.load(self.home / "demo" / "producers-log.json").totals()
        return {
            topic: {
                "produced": t.produced, "staged": t.rows, "loaded": t.rows, "errors": t.errors, "skipped": t.skipped
            }
            for topic, t in totals.items()
        }  # fmt: skip

    def explain(self, ran: subprocess.CompletedProcess[str]) -> str:
        """What a command printed, and what Dagster's daemon did meanwhile."""
        log = self.home / "logs" / "dagster-daemon.log"
        return ran.stdout + (log.read_text()[-20_000:] if log.is_file() else "")

    def dagster_processes(self) -> list[psutil.Process]:
        """What Dagster has running for this home."""
        return Processes(self.home / "dagster", self.home / "logs", {}).found()


def document_of(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a command printed as JSON. Spark and our log may write a few lines before it."""
    found: dict[str, Any] = json.JSONDecoder().raw_decode(ran.stdout, ran.stdout.index("{\n"))[0]
    return found


@contextmanager
def demo_home(name: str, settings: Mapping[str, str]) -> Iterator[Demo]:
    """A home with its programs installed; at the end all that runs for it is stopped, and it is removed."""
    home = RUNS / f"{name}-{os.getpid()}"
    shutil.rmtree(home, ignore_errors=True)
    # As the fixture of the local stack lays its homes out: a killed run's is swept by the next.
    user = join(home)
    (home / "user").mkdir()
    ports = free_ports(3)
    (home / "ports.json").write_text(json.dumps(ports))
    (home / "installed").symlink_to(INSTALLED)
    kafka, controller, registry = ports
    demo = Demo(home, LocalStack(home, kafka, controller, registry, console=SILENT), settings)
    demo.stack.install()
    try:
        yield demo
    finally:
        demo.run("ui", "--stop")
        demo.stack.down()
        with alone(), user:
            shutil.rmtree(home)


def wait_until(condition: Callable[[], object], pause: float = 1) -> None:
    """Look every ``pause`` seconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(pause)
