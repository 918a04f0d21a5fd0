"""Speed of the wire layer on one core: MB of Kafka values a second, validated, and validated and encoded.

``python benchmarks/wire.py [--seconds 1] [--json]``. The records are like those of the extraction benchmarks,
53 and 355 bytes with the Confluent prefix.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import fastavro
import numpy as np

from kbq_assets.wire.chunk import PADDING, Chunk
from kbq_assets.wire.codec import Codec
from kbq_assets.wire.encode import Limits, Route, Source, ValueFormat, WindowEncoder
from kbq_assets.wire.schema import MetadataColumns, StagedSchema, json_staged_schema, staged_schema
from kbq_assets.wire.validate import validate_avro, validate_json
from kbq_assets.wire.warm import warm_up

RECORDS = 20_000
MILLIS = 1_767_225_600_000
SCHEMA_ID = 1

SMALL = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": "string"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "ms", "type": "int"},
        {"name": "score", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "click", "buy"]}},
    ],
}
_ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "quantity", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
LARGE = {
    "type": "record",
    "name": "Order",
    "fields": [
        *SMALL["fields"],
        {"name": "items", "type": {"type": "array", "items": _ITEM}},
        {"name": "labels", "type": {"type": "map", "values": "string"}},
        {"name": "address", "type": "string"},
        {"name": "checksum", "type": {"type": "fixed", "name": "Sum", "size": 16}},
    ],
}


def click(rng: random.Random) -> dict[str, Any]:
    return {
        "id": rng.getrandbits(40),
        "user": f"user-{rng.randrange(10**7):07d}",
        "page": rng.choice([None, "/basket/checkout", "/product/1234"]),
        "ts": MILLIS + rng.randrange(10**8),
        "ms": rng.randrange(5000),
        "score": rng.random(),
        "ok": rng.random() < 0.9,
        "kind": rng.choice(["view", "click", "buy"]),
    }


def order(rng: random.Random) -> dict[str, Any]:
    items = [
        {
            "sku": f"sku-{rng.randrange(10**9):09d}",
            "quantity": rng.randrange(9),
            "price": b"\x01\x02\x03",
            "note": note,
        }
        for note in rng.choices([None, "gift wrap, please"], k=5)
    ]
    labels = {f"label-{n}": f"value {rng.randrange(10**6)}" for n in range(5)}
    address = (
        "Straße des 17. Juni 135, 10623 Berlin" if rng.random() < 0.2 else "221b Baker Street, London NW1"
    )
    return click(rng) | {"items": items, "labels": labels, "address": address, "checksum": rng.randbytes(16)}


def chunk_of(values: list[bytes]) -> Chunk:
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    buffer = np.frombuffer(bytearray(b"".join(values) + bytes(PADDING)), np.uint8)
    offsets = np.arange(len(values), dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    return Chunk(buffer, starts, ends, offsets, offsets + MILLIS)


def avro_values(schema: Mapping[str, Any], make: Callable[[random.Random], dict[str, Any]]) -> list[bytes]:
    # Logical types off: values are given as they are on the wire.
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema).replace("logicalType", "ignored")))
    rng = random.Random(7)
    values = []
    for _ in range(RECORDS):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, make(rng))
        values.append(b"\x00" + SCHEMA_ID.to_bytes(4) + body.getvalue())
    return values


class Counter:
    """A sink that only counts."""

    size = 0

    def write(self, data: bytes, /) -> None:
        self.size += len(data)


def speed(run: Callable[[], object], size: int, seconds: float) -> float:
    """MB/s: the best of some rounds, for the machine is shared."""
    best = 0.0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        run()
        best = max(best, size / 1e6 / (time.perf_counter() - started))
    return best


def encode(chunk: Chunk, schema: StagedSchema, value_format: ValueFormat, codec: Codec) -> int:
    sink = Counter()
    encoder = WindowEncoder(
        Source("shop.events.clicks", 3, 1),
        resolve=lambda schema_id: Route("shop.clicks", schema),
        open_sink=lambda file: sink,
        sync_marker=bytes(16),
        value_format=value_format,
        codec=codec,
    )
    rejects = encoder.add(chunk)
    encoder.finish()
    assert not len(rejects), rejects.messages[:3]
    return sink.size


def measure(
    name: str, chunk: Chunk, schema: StagedSchema, value_format: ValueFormat, seconds: float
) -> dict[str, Any]:
    size = int(chunk.ends[-1])
    limits = Limits()
    if value_format is ValueFormat.AVRO:
        validated = speed(lambda: validate_avro(chunk, schema.program, None, limits), size, seconds)
    else:
        validated = speed(lambda: validate_json(chunk, None, limits), size, seconds)
    row: dict[str, Any] = {
        "records": name,
        "bytes": round(size / len(chunk), 1),
        "validate": round(validated),
    }
    for codec in get_args(Codec):
        row[codec] = round(speed(partial(encode, chunk, schema, value_format, codec), size, seconds))
    return row


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    arguments.add_argument("--json", action="store_true")
    options = arguments.parse_args()
    warm_up()
    metadata = MetadataColumns(event_date_field="ts")
    rows = [
        measure(
            name,
            chunk_of(avro_values(schema, make)),
            staged_schema(schema, metadata),
            ValueFormat.AVRO,
            options.seconds,
        )
        for name, schema, make in (("small", SMALL, click), ("large", LARGE, order))
    ]
    documents = [json.dumps(click(random.Random(n))).encode() for n in range(RECORDS)]
    rows.append(
        measure(
            "json",
            chunk_of(documents),
            json_staged_schema(MetadataColumns()),
            ValueFormat.JSON,
            options.seconds,
        )
    )
    if options.json:
        print(json.dumps(rows))
        return
    print("MB of values a second, one core; null, snappy and deflate: validated and encoded")
    for row in rows:
        print("  ".join(f"{key} {value!s:>6}" for key, value in row.items()))


if __name__ == "__main__":
    main()
