"""Measures cycles over many small partitions of a real broker: first each has one record to read, then none has any.

``python -m benchmarks.idle [--topics 50] [--partitions 20]``. Each cycle is a separate process, in which tasks run
without Spark. So it measures the plan, the broker's answers, and the cost of a small range for its reader.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.contenders import WORK
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY
from benchmarks.topics import open_stack
from kbq_assets.local.stack import LocalStack

READERS = ("fetch", "librdkafka")


def produce(stack: LocalStack, topics: int, partitions: int) -> str:
    """Produce a record to each partition of new topics, and return the prefix of their names."""
    prefix = f"idle-{time.time_ns()}"
    client: dict[str, Any] = {"bootstrap.servers": stack.bootstrap_servers}
    names = [f"{prefix}-{n}" for n in range(topics)]
    wanted = [NewTopic(name, partitions, 1) for name in names]
    admin = AdminClient(client)
    for created in admin.create_topics(wanted, operation_timeout=60).values():
        created.result(120)
    producer = Producer(client)
    for name in names:
        for partition in range(partitions):
            producer.produce(name, b'{"a": 1}', partition=partition)
    if producer.flush(120):
        raise RuntimeError("not all records were delivered")
    return prefix


def cycle(environ: dict[str, str]) -> dict[str, float]:
    """One cycle in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.idle", "--cycle"],
        cwd=REPOSITORY,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_cycle() -> None:
    """Extract all topics with tasks in this process, timed from the opening of the platform."""
    from kbq_assets.definitions import parts
    from kbq_assets.worker.task import UnitTask
    from kbq_assets.worker.warm import warm_up
    from kbq_assets_tests.worker.extracting import InThisProcess

    warm_up()  # as Spark's workers are
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    opened = parts()
    report = opened.extractor.extract(InThisProcess(UnitTask(opened.deployment.settings)))
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    assert not report.failures and not report.stops, (report.failures, report.stops)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"wall": round(wall, 2), "cpu": round(cpu, 2), "records": report.totals.records}))


def measured(stack: LocalStack, prefix: str, reader: str) -> dict[str, Any]:
    """The first cycle of a new home, which reads everything, and the second, which finds nothing."""
    home = WORK / "idle"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    sources = home / "source-topics.txt"
    sources.write_text(f"{prefix}-* dataset=bench table=idle format=json\n")
    environ = {
        "KBQ_HOME": str(home),
        "KBQ_STAGING": str(home / "staging"),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "KBQ_REGISTRY_URL": stack.registry_url,
        "KBQ_READER": reader,
    }
    try:
        return {"first": cycle(environ), "idle": cycle(environ)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--topics", type=int, default=50)
    arguments.add_argument("--partitions", type=int, default=20)
    arguments.add_argument("--cycle", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.cycle:
        run_cycle()
        return
    console = Console(stderr=True)
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    try:
        prefix = produce(stack, options.topics, options.partitions)
        found = {reader: measured(stack, prefix, reader) for reader in READERS}
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        admin.delete_topics([f"{prefix}-{n}" for n in range(options.topics)])
        time.sleep(2)  # the broker deletes files after it has answered
    finally:
        stack.down()
    results = {"machine": machine(), "partitions": options.topics * options.partitions, **found}
    (RESULTS / "idle.json").write_text(json.dumps(results, indent=1) + "\n")
    console.print_json(json.dumps(found))


if __name__ == "__main__":
    main()
