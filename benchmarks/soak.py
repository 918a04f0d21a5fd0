"""A soak: automation runs by itself while workers die (``python -m benchmarks.soak --minutes 60``).

It uses a real broker, a standalone Spark cluster with three workers, Dagster on Postgres, and DuckDB. A producer writes
continuously, and `kbq ui` extracts with a resident application and loads. Every few minutes, one worker of the cluster
is killed with everything that it runs, and started again. Lag and memory are sampled every 15 seconds. In the end the
producer stops, everything is loaded, and `kbq reconcile` accounts for every record. Results are written to
``benchmarks/results/soak.json``, and the plot to ``docs/soak.svg``.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.contenders import WORK
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY
from benchmarks.plot import write_lines
from benchmarks.records import KINDS, MILLIS, avro_values
from benchmarks.topics import free_ports, open_stack
from kbq_assets.core.errors import KbqError
from kbq_assets.definitions import parts
from kbq_assets.local.demo.broker import register_schema
from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.cluster.standalone import Cluster, standalone
from kbq_assets_tests.defs.instance.postgres import postgres

HOME = WORK / "soak"
PLOT = REPOSITORY / "docs" / "soak.svg"
KBQ = [sys.executable, "-c", "from kbq_assets.definitions import main; main()"]
WORKERS, TOPICS, PARTITIONS = 3, 4, 6
SAMPLE_SECONDS = 15.0
#: Seconds between extractions, and between loads.
CYCLE_SECONDS = 60
#: Longest time until everything is loaded after the producer stops.
DRAIN_SECONDS = 900.0
MB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """``unread`` and ``unloaded`` count records. Memory is in megabytes; shared pages are divided among processes."""

    seconds: float
    produced: int
    unread: int
    unloaded: int
    dagster_mb: int
    spark_mb: int
    workers_alive: int


class Feed:
    """Writes records at a steady rate, in a thread."""

    def __init__(self, stack: LocalStack, prefix: str, rate: int) -> None:
        self.topics = [f"{prefix}-{number}.v1" for number in range(TOPICS)]
        self.produced = 0
        self._rate, self._end = rate, threading.Event()
        self._producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "linger.ms": 50})
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in self.topics]).values():
            created.result(120)
        schema = register_schema(stack.registry_url, f"{prefix}-event", {**KINDS[0].schema, "name": "Event"})
        self._values = [b"\x00" + schema.to_bytes(4) + value[5:] for value in avro_values(KINDS[0], 2_000)]
        self._thread = threading.Thread(target=self._run, name="feed")
        self._thread.start()

    def _run(self) -> None:
        begun = time.monotonic()
        while not self._end.wait(0.2):
            for number in range(self.produced, int((time.monotonic() - begun) * self._rate)):
                self._producer.produce(
                    self.topics[number % TOPICS],
                    self._values[number % len(self._values)],
                    partition=number // TOPICS % PARTITIONS,
                    timestamp=MILLIS + number,
                )
                self.produced = number + 1
            self._producer.poll(0)

    def stop(self) -> None:
        """Stop when every record is on the broker."""
        self._end.set()
        self._thread.join()
        if self._producer.flush(120):
            raise RuntimeError("not all records were delivered")


@contextmanager
def automation(environ: Mapping[str, str]) -> Iterator[int]:
    """Run `kbq ui`, and yield its process id."""
    with (HOME / "ui.log").open("wb") as log:
        ui = subprocess.Popen(
            [*KBQ, "ui", "--port", str(free_ports(1)[0])], env=environ, stdout=log, stderr=log
        )
    try:
        yield ui.pid
    finally:
        ui.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            ui.wait(300)
        ui.kill()
        ui.wait()


class Watch:
    """Samples lag and memory, and kills workers in turn."""

    def __init__(self, environ: Mapping[str, str], feed: Feed, cluster: Cluster, ui: int) -> None:
        self._observer = parts(environ).observer
        self._feed, self._cluster, self._ui = feed, cluster, ui
        self._begun = time.monotonic()
        self.samples: list[Sample] = []
        self.kills = 0

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._begun

    def run(self, until: float, kill_every: float) -> None:
        """Watch for a time."""
        next_kill = kill_every
        while self.seconds < until:
            self.sample()
            if self.seconds >= next_kill:
                next_kill += kill_every
                self._kill()
            time.sleep(SAMPLE_SECONDS)

    def sample(self) -> None:
        """Take a sample. Does nothing if the state cannot be read at the moment."""
        with suppress(KbqError):
            status = self._observer.status()
            produced, loaded = self._feed.produced, sum(table.loaded_rows for table in status.tables)
            waiting = sum(table.pending_rows for table in status.tables)
            spark = [self._cluster.master_process.pid, *(worker.pid for worker in self._cluster.workers)]
            self.samples.append(
                Sample(
                    round(self.seconds, 1),
                    produced,
                    max(0, produced - loaded - waiting),
                    waiting,
                    memory_of([self._ui]),
                    memory_of(spark),
                    self._cluster.alive_workers(),
                )
            )
            print(self.samples[-1], flush=True)

    def drain(self) -> None:
        """Wait until everything is loaded."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while not self.samples or self.samples[-1].unread or self.samples[-1].unloaded:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not loaded: {self.samples[-1]}")
            time.sleep(SAMPLE_SECONDS)
            self.sample()

    def _kill(self) -> None:
        number = self.kills % WORKERS
        for process in (*self._cluster.python_workers(number), *self._cluster.executors(number)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._cluster.workers[number].kill()
        self.kills += 1
        time.sleep(SAMPLE_SECONDS)
        self.sample()
        self._cluster.workers[number].start()


def memory_of(roots: list[int]) -> int:
    """Megabytes of these processes and their descendants."""
    size = 0.0
    for root in roots:
        with suppress(psutil.Error):
            process = psutil.Process(root)
            for each in (process, *process.children(recursive=True)):
                with suppress(psutil.Error):
                    size += each.memory_full_info().pss / MB
    return round(size)


def environment(stack: LocalStack, cluster: Cluster, archive: Path, url: str, prefix: str) -> dict[str, str]:
    """The settings."""
    (HOME / "kbq").mkdir()
    sources = HOME / "kbq" / "source-topics.txt"
    database = HOME / "database"
    database.write_text(url)
    sources.write_text(f"{prefix}-* dataset=soak table=events event_date=ts\n")
    spark = {
        "spark.archives": f"{archive}#environment",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.cores.max": str(WORKERS),
    }
    return {
        **os.environ,
        "KBQ_HOME": str(HOME / "kbq"),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "KBQ_REGISTRY_URL": stack.registry_url,
        "KBQ_DAGSTER_POSTGRES_URL": f"file:{database}",
        "KBQ_EXTRACT_SECONDS": str(CYCLE_SECONDS),
        "KBQ_LOAD_SECONDS": str(CYCLE_SECONDS),
        "KBQ_RESIDENT_SECONDS": "900",
        "KBQ_SPARK_MASTER": cluster.master,
        **{f"KBQ_SPARK_CONF_{name}": value for name, value in spark.items()},
    }


def soak(minutes: float, kill_minutes: float, rate: int) -> tuple[Watch, bool]:
    """Run the soak. Returns the samples, and whether every record is accounted for."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    archive, prefix = HOME / "kbq.tar.gz", f"soak-{secrets.token_hex(3)}"
    subprocess.run([*KBQ, "pack", str(archive)], check=True, cwd=REPOSITORY)
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", Console(stderr=True))
    try:
        with postgres() as url, standalone(HOME / "cluster", WORKERS) as cluster:
            environ = environment(stack, cluster, archive, url, prefix)
            feed = Feed(stack, prefix, rate)
            try:
                with automation(environ) as ui:
                    watch = Watch(environ, feed, cluster, ui)
                    watch.run(60 * minutes, 60 * kill_minutes)
                    feed.stop()
                    watch.drain()
            finally:
                feed.stop()
            command = [*KBQ, "reconcile", "--json"]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            (HOME / "reconcile.json").write_text(done.stdout + done.stderr)
            return watch, done.returncode == 0
    finally:
        stack.down()


def thirds(samples: list[Sample], field: str) -> list[float]:
    """Medians of the first, second and last third, without the startup phase."""
    values = [getattr(sample, field) for sample in samples[len(samples) // 10 :]]
    each = len(values) // 3
    return [statistics.median(values[first : first + each]) for first in (0, each, 2 * each)]


def main() -> None:
    """Run the soak, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--kill-minutes", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=500, help="records a second")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    watch, reconciled = soak(options.minutes, options.kill_minutes, options.rate)
    running = [sample for sample in watch.samples if sample.seconds <= 60 * options.minutes]
    results = {
        "machine": machine(),
        "minutes": options.minutes,
        "records": watch.samples[-1].produced,
        "records_per_second": options.rate,
        "workers_killed": watch.kills,
        "reconciled": reconciled,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        **{f"{name}_by_third": thirds(running, name) for name in ("unread", "unloaded", "dagster_mb", "spark_mb")},
        "samples": [asdict(sample) for sample in watch.samples],
    }  # fmt: skip
    (RESULTS / "soak.json").write_text(json.dumps(results, indent=None) + "\n")
    seconds = [sample.seconds / 60 for sample in watch.samples]
    write_lines(
        PLOT,
        seconds,
        {
            "records that are not loaded": [s.unread + s.unloaded for s in watch.samples],
            "Dagster and driver, MB": [s.dagster_mb for s in watch.samples],
            "Spark's cluster, MB": [s.spark_mb for s in watch.samples],
        },
    )
    print(json.dumps({key: value for key, value in results.items() if key != "samples"}, indent=1))
    sys.exit(0 if reconciled else 1)


if __name__ == "__main__":
    main()
