"""Measures how soon rows become visible in a lake, and complete hours are tagged, under automation.

``python -m benchmarks.freshness [--minutes 75] [--scale 1] [--extract 300] [--load 120] [--resident 0]``: a real
broker, `kbq ui`, and an Iceberg lake. A reader opens the tables every few seconds. It notes which rows it sees for the
first time, and up to which hour the tag `complete_until` says that the table is complete.

With ``--scale 6``, an hour takes ten minutes: business time runs six times as fast, and all configured pauses are a
sixth. Some times are not scaled: Dagster's polls, the duration of runs, and the data clock of waiting partitions, which
expects time to pass at its own pace. The numbers are minutes of business time.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.contenders import WORK
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY
from benchmarks.plot import write_lines
from benchmarks.topics import free_ports, open_stack
from kbq_assets.adapters.iceberg.commits import COMPLETE_HOUR
from kbq_assets.adapters.iceberg.connect import embedded
from kbq_assets.adapters.iceberg.lake import IcebergLake
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import parts
from kbq_assets.local.demo.broker import register_schema
from kbq_assets.local.stack import LocalStack

PLOT = REPOSITORY / "docs" / "freshness.svg"
KBQ = [sys.executable, "-c", "from kbq_assets.definitions import main; main()"]
PARTITIONS = 2
SCHEMA = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
#: The values that `flush: {}` means in a catalog.
FLUSH = {"min_records": 500_000, "max_wait_seconds": 1200, "close_hours": "true"}
#: Pauses that are settings, in seconds.
PAUSES = {"KBQ_HOURS_SECONDS": 600, "KBQ_QUIET_SECONDS": 0}
READ_SECONDS = 5.0
HOUR = 3600.0


@dataclass
class Topic:
    """A topic with a record every ``every`` minutes, and what the reader saw of its table. Times are business times in
    seconds since 1970."""

    name: str
    every: float
    options: Mapping[str, Any]
    at: list[float] = field(default_factory=list)
    #: seconds until each record was visible
    seen: dict[int, float] = field(default_factory=dict)
    tagged: dict[int, float] = field(default_factory=dict)
    snapshot: int | None = None

    @property
    def table(self) -> TableReference:
        """Its table."""
        return TableReference("fresh", self.name)

    def age(self, now: float) -> float:
        """The age in minutes of the oldest record that the reader does not see yet."""
        return next(((now - at) / 60 for n, at in enumerate(self.at) if n not in self.seen), 0.0)

    def untagged(self, now: float) -> float:
        """Minutes since the end of the last hour, if that hour is not tagged yet."""
        until = int(now // HOUR)
        return (now - until * HOUR) / 60 if self.tagged and until not in self.tagged else 0.0


class BusinessTime:
    """Time that runs ``scale`` times as fast as the clock, and reaches the clock's time at the end."""

    def __init__(self, minutes: float, scale: float) -> None:
        self._begun, self._scale = time.time(), scale
        self._origin = self._begun - (scale - 1) * minutes * 60

    def now(self) -> float:
        """Seconds since 1970."""
        return self._origin + (time.time() - self._begun) * self._scale


class Feed:
    """Writes the records of all topics, in a thread."""

    def __init__(self, stack: LocalStack, prefix: str, topics: list[Topic], clock: BusinessTime) -> None:
        self._end, self._topics, self._clock, self._prefix = threading.Event(), topics, clock, prefix
        self._producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "linger.ms": 50})
        admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
        names = [f"{prefix}-{topic.name}" for topic in topics]
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            created.result(120)
        self._framing = b"\x00" + register_schema(stack.registry_url, f"{prefix}-event", SCHEMA).to_bytes(4)
        self._parsed = fastavro.parse_schema(SCHEMA)
        self._thread = threading.Thread(target=self._run, name="feed")
        self._thread.start()

    def _run(self) -> None:
        begun = self._clock.now()
        while not self._end.wait(0.2):
            for topic in self._topics:
                while (now := self._clock.now()) >= begun + len(topic.at) * topic.every * 60:
                    self._send(topic, now)
            self._producer.poll(0)

    def _send(self, topic: Topic, now: float) -> None:
        value, number = io.BytesIO(self._framing), len(topic.at)
        value.seek(0, io.SEEK_END)
        fastavro.schemaless_writer(value, self._parsed, {"n": number, "at": int(now * 1000)})
        topic.at.append(now)
        name, partition = f"{self._prefix}-{topic.name}", number % PARTITIONS
        self._producer.produce(name, value.getvalue(), partition=partition)

    def stop(self) -> None:
        """Stop when every record is on the broker."""
        self._end.set()
        self._thread.join()
        if self._producer.flush(120):
            raise RuntimeError("not all records were delivered")


class Reader:
    """Opens the tables repeatedly, as a reader of the lake does."""

    def __init__(self, lake: IcebergLake, topics: list[Topic], clock: BusinessTime) -> None:
        self._lake, self._topics, self._clock = lake, topics, clock
        self.samples: list[tuple[float, dict[str, tuple[float, float]]]] = []

    def run(self, until: float) -> None:
        """Read until a time."""
        begun = time.monotonic()
        while (seconds := time.monotonic() - begun) < until:
            for topic in self._topics:
                with suppress(KbqError):
                    self._look(topic)
            now = self._clock.now()
            self.samples.append((seconds / 60, {t.name: (t.age(now), t.untagged(now)) for t in self._topics}))
            time.sleep(READ_SECONDS)

    def _look(self, topic: Topic) -> None:
        table = self._lake.table(topic.table)
        if table is None:
            return
        now, snapshot = self._clock.now(), table.current_snapshot()
        if hour := int(table.properties.get(COMPLETE_HOUR, 0)):
            topic.tagged.setdefault(hour, now)
        if snapshot is None or snapshot.snapshot_id == topic.snapshot:
            return
        topic.snapshot = snapshot.snapshot_id
        for number in table.scan(selected_fields=("n",)).to_arrow()["n"].to_pylist():
            topic.seen.setdefault(number, now - topic.at[number])


@contextmanager
def automation(environ: Mapping[str, str]) -> Iterator[None]:
    """`kbq ui`."""
    with (WORK / "freshness" / "ui.log").open("wb") as log:
        port = str(free_ports(1)[0])
        ui = subprocess.Popen([*KBQ, "ui", "--port", port], env=environ, stdout=log, stderr=log)
    try:
        yield
    finally:
        ui.terminate()
        with suppress(subprocess.TimeoutExpired):
            ui.wait(300)
        ui.kill()
        ui.wait()


def environment(
    stack: LocalStack, prefix: str, topics: list[Topic], options: argparse.Namespace
) -> dict[str, str]:
    """The settings."""
    home = WORK / "freshness"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    sources = home / "source-topics.txt"
    lines = []
    for topic in topics:
        waits = (
            {"max_wait_seconds": round(FLUSH["max_wait_seconds"] / options.scale)} if topic.options else {}
        )
        written = " ".join(f"{key}={value}" for key, value in {**topic.options, **waits}.items())
        lines.append(f"{prefix}-{topic.name} dataset=fresh table={topic.name} event_date=at {written}\n")
    sources.write_text("".join(lines))
    pauses = {"KBQ_EXTRACT_SECONDS": options.extract, "KBQ_LOAD_SECONDS": options.load, **PAUSES}
    return {
        **os.environ,
        "KBQ_HOME": str(home),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_WAREHOUSE": f"iceberg:{home / 'lake'}",
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "KBQ_REGISTRY_URL": stack.registry_url,
        "KBQ_SPARK_MASTER": "local[2]",
        "KBQ_RESIDENT_SECONDS": str(options.resident),
        **{name: str(round(seconds / options.scale)) for name, seconds in pauses.items()},
    }


def summary(topic: Topic, begun: float, ended: float) -> dict[str, Any]:
    """Minutes until rows were visible and hours tagged. A row that was not seen counts if it had half an hour time."""
    late = [
        (ended - at) / 60 for n, at in enumerate(topic.at) if n not in topic.seen and at < ended - HOUR / 2
    ]
    minutes = sorted([*(each / 60 for each in topic.seen.values()), *late])
    hours = range(int(begun // HOUR) + 1, int((ended - HOUR / 2) // HOUR) + 1)
    tags = [(topic.tagged.get(hour, ended) - hour * HOUR) / 60 for hour in hours]
    return {
        "records": len(topic.at),
        "records_a_minute": round(1 / topic.every, 1),
        "waits": bool(topic.options),
        "minutes_to_a_row": {
            "median": round(statistics.median(minutes), 1),
            "p95": round(minutes[int(len(minutes) * 0.95)], 1),
            "most": round(minutes[-1], 1),
        },
        "never_seen": len(late),
        "minutes_from_an_hour_s_end_to_its_tag": [round(each, 1) for each in tags],
        "never_tagged": sum(hour not in topic.tagged for hour in hours),
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=75.0, help="of the clock")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="minutes of business time in one of the clock"
    )
    parser.add_argument(
        "--extract", type=float, default=300.0, help="KBQ_EXTRACT_SECONDS, before it is scaled"
    )
    parser.add_argument("--load", type=float, default=120.0, help="KBQ_LOAD_SECONDS, before it is scaled")
    parser.add_argument("--resident", type=int, default=0, help="KBQ_RESIDENT_SECONDS")
    parser.add_argument("--name", default="defaults", help="of this run in the results")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    prefix, stack = f"fresh-{secrets.token_hex(3)}", None
    topics = [Topic("steady", 1 / 60, {}), Topic("waiting", 1 / 6, FLUSH), Topic("sparse", 1.0, FLUSH)]
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", Console(stderr=True))
    try:
        environ = environment(stack, prefix, topics, options)
        settings = parts(environ).deployment.settings
        assert isinstance(settings.warehouse, LakeAddress)
        lake = IcebergLake(*embedded(settings.warehouse, settings.home))
        with automation(environ):
            clock = BusinessTime(options.minutes, options.scale)
            begun, feed = clock.now(), Feed(stack, prefix, topics, clock)
            reader = Reader(lake, topics, clock)
            try:
                reader.run(60 * options.minutes)
            finally:
                feed.stop()
        ended = clock.now()
    finally:
        stack.down()
    path = RESULTS / "freshness.json"
    results = json.loads(path.read_text()) if path.is_file() else {}
    results[options.name] = {
        "machine": machine(),
        "minutes": options.minutes,
        "scale": options.scale,
        "extract_seconds": options.extract,
        "load_seconds": options.load,
        "resident_seconds": options.resident,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        "topics": {topic.name: summary(topic, begun, ended) for topic in topics},
    }
    path.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results[options.name], indent=1))
    if options.name == "defaults":
        lines = {}
        for topic in topics:
            ages = [round(of[topic.name][0], 1) for _, of in reader.samples]
            lines[f"{topic.name}: minutes since the oldest row that no reader sees"] = ages
        for topic in topics:
            tags = [round(of[topic.name][1], 1) for _, of in reader.samples]
            lines[f"{topic.name}: minutes since the end of an hour without its tag"] = tags
        write_lines(PLOT, [minutes for minutes, _ in reader.samples], lines)


if __name__ == "__main__":
    main()
