"""A large cluster on a real broker: 160 topics of 70 partitions, 319 tables (``make bench-scale``).

``python -m benchmarks.scale [--topics 160] [--partitions 70] [--records 5000000] [--keep]``. It measures four commands,
each as a process tree: the first extraction of records that are distributed by Zipf's law, an extraction of ten more
records in each partition (the trickle), one that finds nothing (idle), and the load of everything into DuckDB. Only the
full size is written to ``benchmarks/results/scale.json``. ``--keep`` keeps the broker's data and the home, so that the
next run with this option starts with the trickle.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.contenders import CORES, WORK
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY, Usage, measure
from benchmarks.records import KINDS, MILLIS, avro_values
from benchmarks.topics import open_stack
from kbq_assets.local.demo.broker import register_schema
from kbq_assets.local.stack import LocalStack

FULL = (160, 70)
TRICKLE = 10
DATASETS = 8
#: Number of distinct record bodies.
DISTINCT = 5_000
#: A broker of 11,200 partitions needs more than the local stack's usual 512 MB.
HEAP_MB = 2_500
KBQ = [sys.executable, "-c", "from kbq_assets.definitions import main; main()"]


@dataclass(frozen=True)
class Cluster:
    """The topics and their schemas. Topics have one, two or three record types in turn, each with its own table."""

    stack: LocalStack
    topics: int
    partitions: int

    @property
    def names(self) -> list[str]:
        return [f"scale.stream-{number:03}.v1" for number in range(self.topics)]

    @property
    def tables(self) -> int:
        return sum(1 + number % 3 for number in range(self.topics))

    def create(self) -> None:
        """Create the topics, with small index files: by default, a broker reserves 10 MB for each."""
        admin = AdminClient({"bootstrap.servers": self.stack.bootstrap_servers})
        config = {"segment.index.bytes": "65536"}
        wanted = [NewTopic(name, self.partitions, 1, config=config) for name in self.names]
        for first in range(0, len(wanted), 10):  # a controller refuses 10,000 partitions at once
            some = wanted[first : first + 10]
            for created in admin.create_topics(some, operation_timeout=300, request_timeout=300).values():
                created.result(600)
        while behind := self._without_leader(admin):
            print(f"  {behind:,} partitions have no leader yet", flush=True)
            time.sleep(2)

    def _without_leader(self, admin: AdminClient) -> int:
        """Partitions to which nobody can produce yet: topics exist before all of their partitions have a leader."""
        listed = admin.list_topics(timeout=300).topics
        led = (
            sum(each.leader >= 0 for each in listed[name].partitions.values())
            for name in self.names
            if name in listed
        )
        return len(self.names) * self.partitions - sum(led)

    def schema_ids(self) -> list[list[int]]:
        """Ids of each topic's schemas."""
        return [
            [
                register_schema(
                    self.stack.registry_url,
                    f"{name}-{kind}",
                    {**KINDS[0].schema, "name": f"Event{number:03}_{kind}"},
                )
                for kind in range(1 + number % 3)
            ]
            for number, name in enumerate(self.names)
        ]

    def produce(self, counts: Iterable[tuple[int, int, int]]) -> int:
        """Produce the given numbers of records to each topic's partitions, and return the total."""
        bodies, ids = [value[5:] for value in avro_values(KINDS[0], DISTINCT)], self.schema_ids()
        producer = Producer(
            {
                "bootstrap.servers": self.stack.bootstrap_servers,
                "compression.type": "lz4",
                "linger.ms": 100,
                "queue.buffering.max.messages": 400_000,
            }
        )
        names, total = self.names, 0
        for topic, partition, count in counts:
            prefixes = [b"\x00" + schema_id.to_bytes(4) for schema_id in ids[topic]]
            for number in range(count):
                value = prefixes[number % len(prefixes)] + bodies[(total + number) % DISTINCT]
                while True:
                    try:
                        producer.produce(names[topic], value, None, partition, timestamp=MILLIS + total)
                        break
                    except BufferError:
                        producer.poll(0.1)
            total += count
            producer.poll(0)
        if producer.flush(600):
            raise RuntimeError("not all records were delivered")
        return total

    def positions(self) -> list[tuple[int, int]]:
        return [(topic, partition) for topic in range(self.topics) for partition in range(self.partitions)]

    def by_zipf(self, records: int) -> Iterator[tuple[int, int, int]]:
        """Numbers of records per partition, distributed by Zipf's law with shuffled ranks."""
        ranked = self.positions()
        random.Random(7).shuffle(ranked)
        first = records / sum(1 / rank for rank in range(1, len(ranked) + 1))
        for rank, (topic, partition) in enumerate(ranked, 1):
            yield topic, partition, max(1, round(first / rank))


@dataclass(frozen=True)
class Home:
    """A KBQ home over the cluster's topics."""

    cluster: Cluster
    folder: Path

    def environ(self) -> dict[str, str]:
        stack = self.cluster.stack
        return {
            "KBQ_HOME": str(self.folder),
            "KBQ_SOURCE_TOPICS": str(self.folder / "source-topics.txt"),
            "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
            "KBQ_REGISTRY_URL": stack.registry_url,
            "KBQ_SPARK_MASTER": f"local[{CORES}]",
            "KBQ_RUN_SECONDS": "3600",
        }

    def create(self) -> None:
        self.folder.mkdir(parents=True)
        lines = [
            f"{name} dataset=area_{number % DATASETS} route=record_name event_date=ts"
            for number, name in enumerate(self.cluster.names)
        ]
        (self.folder / "source-topics.txt").write_text("\n".join(lines) + "\n")

    def run(self, name: str, *command: str) -> tuple[Usage, dict[str, int]]:
        """Run a command of `kbq`, and return its cost and the numbers in its JSON document."""
        log = WORK / f"scale-{name}.log"
        usage = measure([*KBQ, *command, "--json"], WORK, log, self.environ())
        text = log.read_text()
        document = json.loads(text[text.index("\n{") + 1 if not text.startswith("{") else 0 :])
        return usage, document

    def rows(self) -> int:
        """The number of rows in all tables in DuckDB."""
        database = next(self.folder.glob("*.duckdb"))
        with duckdb.connect(str(database), read_only=True) as connection:
            found = connection.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() WHERE table_name LIKE 'Event%'"
            ).fetchall()
            assert len(found) == self.cluster.tables, f"{len(found)} tables of {self.cluster.tables}"
            rows = 0
            for schema, table in found:
                [[count]] = connection.execute(f'SELECT count(*) FROM "{schema}"."{table}"').fetchall()
                rows += count
        return rows


class Progress:
    """Prints each step when it ends, with its wall time and CPU time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.results: dict[str, float] = {}

    def show(self, name: str, usage: Usage, **more: object) -> None:
        self.results[f"{name}_cpu_tree"] = round(usage.cpu, 1)
        self.results[f"{name}_cpu_driver"] = round(usage.root_cpu, 1)
        self.results[f"{name}_wall"] = round(usage.wall)
        self.results[f"{name}_peak_mb"] = round(usage.peak_mb)
        self._console.print(name, usage, more, soft_wrap=True)


def run(cluster: Cluster, home: Home, records: int, console: Console) -> dict[str, float]:
    """Run all steps, except those whose results an earlier run kept."""
    progress, produced_file = Progress(console), home.folder / "produced"
    if not produced_file.exists():
        cluster.create()
        produced = cluster.produce(cluster.by_zipf(records))
        home.create()
        usage, document = home.run("first", "extract")
        progress.show("first", usage, records=document["records"])
        assert document["records"] == produced, (document["records"], produced)
        produced_file.write_text(str(produced))
    produced = int(produced_file.read_text())
    more = cluster.produce((topic, partition, TRICKLE) for topic, partition in cluster.positions())
    usage, document = home.run("trickle", "extract")
    produced += document["records"]
    produced_file.write_text(str(produced))
    progress.show("trickle", usage, records=document["records"], of=more)
    assert document["records"] == more
    usage, document = home.run("idle", "extract")
    progress.show("idle", usage)
    assert document["records"] == 0
    usage, _ = home.run("load", "load")
    rows = home.rows()
    progress.show("load", usage, rows=rows)
    assert rows == produced, (rows, produced)
    return progress.results


def write(results: dict[str, float], seconds: float, load: float) -> None:
    """Add the numbers to those of the other benchmarks of large installations."""
    path = RESULTS / "scale.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    renamed = {"idle_cpu": results.pop("idle_cpu_tree"), "load_cpu": results.pop("load_cpu_tree")}
    at = {"minutes": round(seconds / 60, 1), "load_average_after": round(load, 1), "machine": machine()}
    path.write_text(json.dumps({**known, **results, **renamed, "bench_scale": at}, indent=2) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--topics", type=int, default=FULL[0])
    arguments.add_argument("--partitions", type=int, default=FULL[1])
    arguments.add_argument("--records", type=int, default=5_000_000)
    arguments.add_argument("--keep", action="store_true", help="keep data for a next run with --keep")
    options = arguments.parse_args()
    console, started = Console(stderr=True), time.monotonic()
    work = WORK / f"scale-{options.topics}x{options.partitions}"
    if not options.keep:
        shutil.rmtree(work, ignore_errors=True)
    stack = open_stack(work / "stack", REPOSITORY / ".kbq" / "installed", console, HEAP_MB)
    try:
        cluster = Cluster(stack, options.topics, options.partitions)
        results = run(cluster, Home(cluster, work / "home"), options.records, console)
    finally:
        stack.down()
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    console.print_json(json.dumps(results))
    if (options.topics, options.partitions) == FULL:
        write(results, time.monotonic() - started, os.getloadavg()[0])


if __name__ == "__main__":
    main()
