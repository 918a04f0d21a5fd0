"""A worker's memory has a bound, whatever the topic. Measured as the kernel does, in a process of its own."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbq_assets.local.demo.broker import register_schema
from kbq_assets.local.stack import LocalStack
from kbq_assets_tests.google.servers import GcsServer

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
    """When the large records come, the reader asks for many records at once, because the small ones were small."""
    yield from small_records()
    yield from ((5_000_000, True) for _ in range(100))


READERS = ["fetch", "librdkafka"]


@pytest.fixture(scope="module")
def ensure(local_stack: LocalStack) -> Callable[[str, Callable[[str], None]], str]:
    """Produces a topic only once, for the first test that needs it. Returns its name."""
    there: set[str] = set()

    def ensured(topic: str, fill: Callable[[str], None]) -> str:
        if topic not in there:
            fill(topic)
            there.add(topic)
        return topic

    return ensured


@pytest.mark.parametrize(
    ("records", "reader"),
    [
        (small_records, "fetch"),  # librdkafka's are in the last
        *itertools.product(
            (records_that_compress_a_hundredfold, ten_megabyte_records, large_records_after_many_small_ones),
            READERS,
        ),
    ],
)
def test_a_worker_stays_below_its_bound(
    records: Any, reader: str, ensure: Any, local_stack: LocalStack, tmp_path: Path
) -> None:
    sizes = list(records())
    topic = ensure(f"memory.{records.__name__}", lambda name: produce(local_stack, name, sizes))
    found = extract(local_stack, topic, tmp_path, reader)
    too_large = sum(size > RECORD_LIMIT for size, _ in sizes)
    assert (found["rows"], found["errors"]) == (len(sizes) - too_large, too_large)
    require_bound(topic, reader, found)


@pytest.mark.parametrize("reader", READERS)
def test_seventy_partitions_and_twenty_tables_at_once_stay_below_it_too(
    reader: str, ensure: Any, local_stack: LocalStack, tmp_path: Path
) -> None:
    records = 700_000
    topic = ensure("memory.tables", lambda name: produce_tables(local_stack, name, 70, records, 150))
    found = extract(local_stack, topic, tmp_path, reader, "route=record_name")
    assert (found["rows"], found["tables"]) == (records, TABLES)
    require_bound(topic, reader, found)


@pytest.mark.google
@pytest.mark.parametrize("reader", READERS)
def test_so_do_twenty_uploads_at_once(
    reader: str, ensure: Any, local_stack: LocalStack, gcs_server: GcsServer, tmp_path: Path
) -> None:
    records = 1_000
    topic = ensure("memory.uploads", lambda name: produce_tables(local_stack, name, 1, records, 100_000))
    bucket = {
        "KBQ_STAGING": f"gs://{gcs_server.new_bucket()}/staging",
        "KBQ_GCS_ENDPOINT": gcs_server.endpoint,
        "KBQ_EXTRACT_CREDENTIALS": "anonymous",
    }
    found = extract(local_stack, topic, tmp_path, reader, "route=record_name", bucket)
    assert (found["rows"], found["tables"]) == (records, TABLES)
    require_bound(topic, reader, found)


def test_so_do_times_all_over_the_centuries(local_stack: LocalStack, tmp_path: Path) -> None:
    topic, seconds = "memory.times", range(-62_135_596_800, 253_402_300_800, 315_000)
    ids = register_tables(local_stack, topic)
    values = (encode(ids[n % TABLES], time, b"") for n, time in enumerate(seconds))
    produce_values(local_stack, topic, 1, values)
    options = "event_date=id:epoch_s event_date_from=0001-01-01 event_date_days_ahead=3652059"
    found = extract(local_stack, topic, tmp_path, "auto", f"route=record_name {options}")
    assert (found["rows"], found["tables"]) == (len(seconds), TABLES)
    require_bound(topic, "auto", found)


def require_bound(topic: str, reader: str, found: Mapping[str, int]) -> None:
    print(f"{topic}, {reader}: {found['peak'] / 1e6:.0f} MB")
    assert found["peak"] < LIMIT


def produce_tables(stack: LocalStack, topic: str, partitions: int, records: int, size: int) -> None:
    """Records of this many bytes, for each table in turn."""
    values = [encode(schema_id, 0, NOISE[:size]) for schema_id in register_tables(stack, topic)]
    produce_values(stack, topic, partitions, (values[n % TABLES] for n in range(records)))


def register_tables(stack: LocalStack, topic: str) -> list[int]:
    """Ids of schemas of a record each, named after its table."""
    return [
        register_schema(stack.registry_url, f"{topic}-{n}", {**SCHEMA, "name": f"Blob{n}"})
        for n in range(TABLES)
    ]


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


def extract(
    stack: LocalStack,
    topic: str,
    folder: Path,
    reader: str,
    options: str = "table=blob",
    settings: Mapping[str, str] | None = None,
) -> Mapping[str, int]:
    """What one run of a worker says of itself."""
    sources = folder / "source-topics.txt"
    sources.write_text(f"{topic} dataset=test error_share=1 {options}\n")
    environ = {
        "KBQ_HOME": str(folder),
        "KBQ_SOURCE_TOPICS": str(sources),
        "KBQ_KAFKA_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "KBQ_REGISTRY_URL": stack.registry_url,
        "KBQ_READER": reader,
        **(settings or {}),
    }
    command = [sys.executable, "-m", "kbq_assets_tests.worker.extracting"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environ}, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    found: Mapping[str, int] = json.loads(done.stdout)
    return found
