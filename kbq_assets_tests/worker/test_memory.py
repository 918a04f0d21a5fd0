"""A worker's memory has a bound, whatever the topic. Measured as the kernel does, in a process of its own."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbq_assets.adapters.local_stack import LocalStack
from kbq_assets.demo.broker import register_schema

pytest_plugins = ["kbq_assets_tests.fixtures.local_stack"]
pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's high-water mark from /proc"),
]

LIMIT = 400_000_000
TABLES = 20
SCHEMA = {
    "type": "record",
    "name": "Blob",
    "fields": [{"name": "id", "type": "long"}, {"name": "data", "type": "bytes"}],
}
#: The limit of a record that is staged (`max_record_bytes`); the broker takes larger ones.
RECORD_LIMIT = 10 * 1024 * 1024
NOISE = random.Random(5).randbytes(12_000_000)

Sizes = Iterator[tuple[int, bool]]


def small_records() -> Sizes:
    """A million records of 60 bytes."""
    return ((40, False) for _ in range(1_000_000))


def records_that_compress_a_hundredfold() -> Sizes:
    """600 MB that arrive as 6: replies of the broker that are many times their size."""
    return ((2_000, True) for _ in range(300_000))


def ten_megabyte_records() -> Sizes:
    """As large as a record may be, among small ones; some are larger and become error rows."""
    for number in range(40):
        yield from ((40, False) for _ in range(2_000))
        yield (11_000_000 if number % 8 == 7 else 10_000_000), False


def large_records_after_many_small_ones() -> Sizes:
    """The reader has learnt to ask for many records at once when the large ones come."""
    yield from small_records()
    yield from ((5_000_000, True) for _ in range(100))


@pytest.mark.parametrize(
    "records",
    [
        small_records,
        records_that_compress_a_hundredfold,
        ten_megabyte_records,
        large_records_after_many_small_ones,
    ],
)
def test_a_worker_stays_below_its_bound(records: Any, local_stack: LocalStack, tmp_path: Path) -> None:
    topic = f"memory.{records.__name__}"
    sizes = list(records())
    produce(local_stack, topic, sizes)
    found = extract(local_stack, topic, tmp_path)
    too_large = sum(size > RECORD_LIMIT for size, _ in sizes)
    assert (found["rows"], found["errors"]) == (len(sizes) - too_large, too_large)
    print(f"{topic}: {found['peak'] / 1e6:.0f} MB")
    assert found["peak"] < LIMIT


def test_seventy_partitions_and_twenty_tables_at_once_stay_below_it_too(
    local_stack: LocalStack, tmp_path: Path
) -> None:
    topic, records = "memory.tables", 700_000
    ids = [
        register_schema(local_stack.registry_url, f"{topic}-{n}", {**SCHEMA, "name": f"Blob{n}"})
        for n in range(TABLES)
    ]
    values = [encode(schema_id, 0, NOISE[:150]) for schema_id in ids]
    produce_values(local_stack, topic, 70, (values[n % TABLES] for n in range(records)))
    found = extract(local_stack, topic, tmp_path, "route=record_name")
    assert (found["rows"], found["tables"]) == (records, TABLES)
    print(f"{topic}: {found['peak'] / 1e6:.0f} MB")
    assert found["peak"] < LIMIT


def produce(stack: LocalStack, topic: str, sizes: list[tuple[int, bool]]) -> None:
    """One partition with a record of each size; all the same byte if it is to compress."""
    schema_id = register_schema(stack.registry_url, f"{topic}-value", SCHEMA)
    data = (bytes(size) if compresses else NOISE[:size] for size, compresses in sizes)
    produce_values(stack, topic, 1, (encode(schema_id, number, each) for number, each in enumerate(data)))


def produce_values(stack: LocalStack, topic: str, partitions: int, values: Iterable[bytes]) -> None:
    """A topic of these values, a partition in turn."""
    admin = AdminClient({"bootstrap.servers": stack.bootstrap_servers})
    config = {"max.message.bytes": "12582912"}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(120)
    limits = {"message.max.bytes": 12 * 1024 * 1024, "queue.buffering.max.kbytes": 128 * 1024}
    producer = Producer(
        {"bootstrap.servers": stack.bootstrap_servers, "compression.type": "lz4", "linger.ms": 20, **limits}
    )
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, b"%d" % number, number % partitions, headers={"n": b"1"})
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def encode(schema_id: int, number: int, data: bytes) -> bytes:
    """A Confluent Avro value."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, SCHEMA, {"id": number, "data": data})
    return b"\x00" + schema_id.to_bytes(4) + body.getvalue()


def extract(stack: LocalStack, topic: str, folder: Path, options: str = "table=blob") -> Mapping[str, int]:
    """What one run of a worker says of itself."""
    sources = folder / "source-topics.txt"
    sources.write_text(f"{topic} dataset=test error_share=1 {options}\n")
    environ = {
        "KBQ_HOME": str(folder),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "KBQ_REGISTRY_URL": stack.registry_url,
    }
    command = [sys.executable, "-m", "kbq_assets_tests.worker.extracting"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environ}, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found: Mapping[str, int] = json.loads(done.stdout)
    return found
