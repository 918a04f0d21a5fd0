"""A standalone Spark cluster on loopback, from the jars in PySpark's wheel: a master, and workers with one core.

Its Python does not have this project: workers use the interpreter that this environment was made from, and run in
their own folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyspark

from kbq_assets.adapters.java import find_java
from kbq_assets_tests.fixtures.local_stack import free_ports
from kbq_assets_tests.google.processes import ServerProcess

#: A variable of the hosts that run tasks.
SECRET = "KBQ_TEST_SECRET"
_SPARK = Path(pyspark.__file__).parent
_LOOPBACK = "127.0.0.1"
_EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass
class Cluster:
    """A running cluster. ``master`` is what KBQ_SPARK_MASTER takes; ``folder`` has all that its hosts wrote;
    ``secret`` is in the environment of its hosts, as `SECRET`."""

    folder: Path
    master: str
    master_ui: str
    master_process: ServerProcess
    secret: str
    workers: list[ServerProcess] = field(default_factory=list)

    def start_workers(self, count: int) -> None:
        """Start workers until there are ``count``, and wait until all are registered with the master."""
        while len(self.workers) < count:
            self.workers.append(_worker(self, len(self.workers)))
        for worker in self.workers:
            if worker.watchdog is None:
                worker.start()
        deadline = time.monotonic() + 180
        while self.alive_workers() != count:
            assert time.monotonic() < deadline, self.master_process.log.read_text()
            time.sleep(0.05)

    def alive_workers(self) -> int:
        """As the master sees it; -1 where it does not answer."""
        try:
            with urllib.request.urlopen(f"{self.master_ui}/json/", timeout=30) as reply:
                found: dict[str, Any] = json.load(reply)
        except OSError:
            return -1
        return int(found["aliveworkers"])

    def wait_until_idle(self) -> None:
        """Wait until no executor of an earlier run is left: they end a while after their driver, and tidy up."""
        deadline = time.monotonic() + 180
        while left := [process for n in range(len(self.workers)) for process in self.executors(n)]:
            assert time.monotonic() < deadline, f"executors do not end: {left}"
            time.sleep(0.05)

    def executors(self, worker: int) -> list[psutil.Process]:
        """JVMs that a worker started and that run."""
        return [child for child in _children(self.workers[worker].pid) if _EXECUTOR in _command(child)]

    def python_workers(self, worker: int) -> list[psutil.Process]:
        """Python processes that run a worker's tasks: those that PySpark's daemon forked."""
        daemons = [daemon for executor in self.executors(worker) for daemon in _children(executor.pid)]
        return [process for daemon in daemons for process in _children(daemon.pid)]

    def stop(self) -> None:
        """Kill all of it, and what it started."""
        numbers = range(len(self.workers))
        family = [process for n in numbers for process in (*self.executors(n), *self.python_workers(n))]
        for server in (*self.workers, self.master_process):
            server.kill()
        _, left = psutil.wait_procs(family, timeout=120)
        for process in left:
            process.kill()


def _children(pid: int) -> list[psutil.Process]:
    """None of a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children()
    return []


def _command(process: psutil.Process) -> str:
    """Empty for a process that has ended, waited for or not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@contextlib.contextmanager
def standalone(folder: Path, workers: int) -> Iterator[Cluster]:
    """Run a cluster until left."""
    port, ui = free_ports(2)
    at = ("--host", _LOOPBACK, "--port", str(port), "--webui-port", str(ui))
    process = _daemon(folder / "master", "master.Master", at, f"http://{_LOOPBACK}:{ui}/json/")
    secret = f"canary-{uuid.uuid4().hex}"
    cluster = Cluster(folder, f"spark://{_LOOPBACK}:{port}", f"http://{_LOOPBACK}:{ui}", process, secret)
    process.start()
    try:
        cluster.start_workers(workers)
        yield cluster
    finally:
        cluster.stop()


def base_python() -> Path:
    """The interpreter below this virtual environment."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def _worker(cluster: Cluster, number: int) -> ServerProcess:
    [ui] = free_ports(1)
    home = cluster.folder / f"worker-{number}"
    # A host each: Spark runs no second attempt on the host of the first.
    host = f"127.0.0.{number + 1}"
    options = ("--host", host, "--webui-port", str(ui), "--cores", "1", "--memory", "1g")
    place = ("--work-dir", str(home / "work"))
    found = _daemon(
        home, "worker.Worker", (*options, *place, cluster.master), f"http://{_LOOPBACK}:{ui}/json/"
    )
    found.environment = {**found.environment, SECRET: cluster.secret}
    return found


def _daemon(home: Path, name: str, options: tuple[str, ...], ready_url: str) -> ServerProcess:
    home.mkdir(parents=True)
    environment = {
        "HOME": str(home),
        "PATH": f"{base_python().parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(_SPARK),
        "SPARK_LOCAL_IP": _LOOPBACK,
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    # A folder that is not this checkout, from which Python would import.
    at_home = ("/bin/sh", "-c", 'cd "$0" && exec "$@"', str(home))
    command = (*at_home, str(_SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *options)
    return ServerProcess(command, environment, home / "log", ready_url)
