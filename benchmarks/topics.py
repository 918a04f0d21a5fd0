"""The benchmarks' topics, which are produced once, on a separate broker."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from benchmarks.records import (
    KINDS,
    MILLIS,
    RecordKind,
    avro_values,
    ordered_time,
    time_place,
    with_time,
)
from kbq_assets.local.demo.broker import register_schema
from kbq_assets.local.stack import LocalStack

#: Number of distinct records, which a topic repeats. Far more than in a producer's batch, so compression is realistic.
DISTINCT = 50_000
#: Consecutive records in one partition, as from a producer that fills one batch after another.
RUN = 1_000
_SECONDS = 30.0


@dataclass(frozen=True)
class BenchTopic:
    """A topic of ``records`` records, with ``tables`` schemas in turn. With ``in_order``, business time increases from
    record to record, with some late rows, as in practice. Otherwise it is random within the same hours."""

    kind: RecordKind
    records: int
    codec: str = "lz4"
    partitions: int = 4
    tables: int = 1
    in_order: bool = False

    @property
    def name(self) -> str:
        """The topic's name, which identifies its contents, since they never change."""
        shape = [f"p{self.partitions}"] * (self.partitions != 4) + [f"t{self.tables}"] * (self.tables != 1)
        shape += ["ordered"] * self.in_order
        return "-".join(["bench", self.kind.name, self.codec, str(self.records), *shape])

    @property
    def is_usual(self) -> bool:
        """Whether the topic has the shape to which the limits apply."""
        return (self.codec, self.partitions, self.tables) == ("lz4", 4, 1)

    @property
    def label(self) -> str:
        """The topic's description for people."""
        tables = f", {self.tables} tables" if self.tables > 1 else ""
        return (
            f"{self.records / 1e6:g} M {self.kind.name}, {self.codec}, {self.partitions} partitions{tables}"
        )


def bench_topics(sizes: Mapping[str, int], **shape: Any) -> list[BenchTopic]:
    """One topic of each kind, with the given numbers of records."""
    return [BenchTopic(kind, sizes[kind.name], **shape) for kind in KINDS if sizes[kind.name]]


def open_stack(home: Path, installed: Path, console: Console, heap_mb: int = 512) -> LocalStack:
    """The benchmarks' own running broker and registry, on free ports, which are stored in ``home``."""
    ports = home / "ports.json"
    if not ports.is_file():
        home.mkdir(parents=True, exist_ok=True)
        ports.write_text(json.dumps(free_ports(3)))
    kafka, controller, registry = json.loads(ports.read_text())
    stack = LocalStack(
        home, kafka, controller, registry, installed=installed, console=console, heap_mb=heap_mb
    )
    stack.up()
    return stack


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def ensure_produced(stack: LocalStack, topic: BenchTopic, console: Console) -> int:
    """Produce a topic unless it is complete. Returns the bytes of its values."""
    values = avro_values(topic.kind, DISTINCT, _register(stack, topic))
    found = _count(stack, topic)
    if found != topic.records:
        if found is not None:
            _delete(stack, topic)
        console.print(f"producing {topic.records:,} records to {topic.name}")
        _produce(stack, topic, values)
    whole, rest = divmod(topic.records, DISTINCT)
    return whole * sum(map(len, values)) + sum(map(len, values[:rest]))


def _register(stack: LocalStack, topic: BenchTopic) -> list[int]:
    """Register the topic's schemas, one record name per table, and return their ids."""
    names = [topic.kind.schema["name"]]
    if topic.tables > 1:
        names = [f"{names[0]}{n}" for n in range(topic.tables)]
    subjects = [f"{topic.name}-{name}" for name in names]
    schemas = [{**topic.kind.schema, "name": name} for name in names]
    return [register_schema(stack.registry_url, *each) for each in zip(subjects, schemas, strict=True)]


def _count(stack: LocalStack, topic: BenchTopic) -> int | None:
    """The number of the topic's records; None if there is no such topic."""
    consumer = Consumer({"bootstrap.servers": stack.bootstrap_servers, "group.id": "bench"})
    try:
        if topic.name not in consumer.list_topics(timeout=_SECONDS).topics:
            return None
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic.name, p), timeout=_SECONDS)
            for p in range(topic.partitions)
        ]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()


def _delete(stack: LocalStack, topic: BenchTopic) -> None:
    AdminClient({"bootstrap.servers": stack.bootstrap_servers}).delete_topics([topic.name])[
        topic.name
    ].result(_SECONDS)


def _produce(stack: LocalStack, topic: BenchTopic, values: list[bytes]) -> None:
    places = [time_place(value) for value in values] if topic.in_order else []
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    admin.create_topics([NewTopic(topic.name, topic.partitions, 1)])[topic.name].result(_SECONDS)
    producer = Producer(
        {
            "bootstrap.servers": stack.bootstrap_servers,
            "compression.type": topic.codec,
            "linger.ms": 50,
            "batch.size": 256 * 1024,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for i in range(topic.records):
        key = b"%012d" % (i % DISTINCT)
        partition = i // RUN % topic.partitions
        value = values[i % DISTINCT]
        if places:
            value = with_time(value, places[i % DISTINCT], ordered_time(i, topic.records))
        while True:
            try:
                producer.produce(topic.name, value, key, partition, timestamp=MILLIS + i)
                break
            except BufferError:
                producer.poll(0.1)
        if i % RUN == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"not all records of {topic.name} were delivered")
