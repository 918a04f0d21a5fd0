"""Compares a resident application with one application per cycle: CPU time of a cycle, and memory after many cycles.

``python -m benchmarks.resident [--cycles 1000] [--partitions 10] [--alone 5]``. Before each cycle, a record is produced
to each partition. It measures the whole process tree: the driver, Spark's JVM, and its Python workers.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import track

from benchmarks.contenders import WORK
from benchmarks.extraction import RESULTS, machine
from benchmarks.idle import produce
from benchmarks.measure import REPOSITORY
from benchmarks.topics import open_stack
from benchmarks.warm_cycle import KBQ, Tree
from kbq_assets.local.stack import LocalStack

#: Cycles before memory is measured, while pools and caches fill.
WARM = 50


@contextmanager
def home(stack: LocalStack, prefix: str) -> Iterator[dict[str, str]]:
    """The environment variables for a new home."""
    folder = WORK / "resident"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sources = folder / "source-topics.txt"
    sources.write_text(f"{prefix}-* dataset=bench table=resident format=json\n")
    yield {
        **os.environ,
        "KBQ_HOME": str(folder),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "KBQ_REGISTRY_URL": stack.registry_url,
        "KBQ_SPARK_MASTER": "local[2]",
    }
    shutil.rmtree(folder, ignore_errors=True)


def add_records(stack: LocalStack, prefix: str, partitions: int) -> None:
    """Produce a record to each partition."""
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
    for partition in range(partitions):
        producer.produce(f"{prefix}-0", b'{"a": 1}', partition=partition)
    if producer.flush(120):
        raise RuntimeError("not all records were delivered")


def alone(stack: LocalStack, partitions: int, runs: int) -> list[float]:
    """CPU seconds of each run of `kbq extract`."""
    prefix, seconds = produce(stack, 1, partitions), []
    with home(stack, prefix) as environ:
        for _ in range(runs):
            before = os.times()
            done = subprocess.run(KBQ, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, check=True)
            after = os.times()
            assert json.loads(done.stdout)["records"] == partitions
            seconds.append(
                after.children_user + after.children_system - before.children_user - before.children_system
            )
            add_records(stack, prefix, partitions)
    return seconds[1:]


def resident(stack: LocalStack, partitions: int, cycles: int) -> list[dict[str, Any]]:
    """CPU seconds and memory after each cycle, which reads a record from each partition."""
    prefix, seen = produce(stack, 1, partitions), []
    with home(stack, prefix) as environ:
        command = [*KBQ, "--resident", "--every", "0.1"]
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True)
        tree, waiting = Tree(process.pid), partitions
        assert process.stdout is not None
        try:
            for _ in track(range(cycles), description="cycles"):
                while waiting:
                    waiting -= json.loads(process.stdout.readline())["records"]
                cpu, memory = tree.look()
                seen.append({"cpu": cpu, **memory})
                add_records(stack, prefix, partitions)
                waiting = partitions
            process.terminate()
            process.stdout.read()
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()
    return seen


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--cycles", type=int, default=1000)
    arguments.add_argument("--partitions", type=int, default=10)
    arguments.add_argument("--alone", type=int, default=5)
    options = arguments.parse_args()
    if options.cycles < 2 * WARM:
        arguments.error(f"memory needs at least {2 * WARM} cycles")
    console, started = Console(stderr=True), time.monotonic()
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    try:
        single = alone(stack, options.partitions, options.alone)
        seen = resident(stack, options.partitions, options.cycles)
    finally:
        stack.down()
    warm, last = seen[WARM], seen[-1]
    each = (last["cpu"] - warm["cpu"]) / (len(seen) - 1 - WARM)
    results = {
        "machine": machine(),
        "cycles": options.cycles,
        "partitions": options.partitions,
        "cpu_per_cycle_alone": round(statistics.median(single), 2),
        "cpu_per_cycle_resident": round(each, 3),
        "memory_mb": {
            f"after {number} cycles": {
                kind: round(seen[number - 1][kind]) for kind in ("driver", "jvm", "workers")
            }
            for number in sorted({WARM, len(seen) // 2, len(seen)})
        },
        "minutes": round((time.monotonic() - started) / 60, 1),
    }
    (RESULTS / "resident.json").write_text(json.dumps(results, indent=1) + "\n")
    console.print_json(json.dumps(results))


if __name__ == "__main__":
    main()
