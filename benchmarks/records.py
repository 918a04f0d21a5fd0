"""The benchmarks' records: small ones of about 59 bytes on the wire, large ones of about 360, JSON of 260."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fastavro

from kbq_assets.wire.chunk import encode_long

MILLIS = 1_767_225_600_000
DOCUMENT_BYTES = 260
_AGENT = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0"
#: Business times cover this many milliseconds from `MILLIS` on: 28 hours.
SPAN_MILLIS = 10**8
#: If records are in order, one of this many comes late, by up to two hours.
_LATE_EACH, _LATE_MILLIS = 100, 7_200_000
#: Encoded bytes of every business time.
_TIME_BYTES = len(encode_long(MILLIS))

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
        "user": f"customer-{rng.randrange(10**8):08d}",
        "page": rng.choice([None, "/basket/checkout", "/products/1234"]),
        "ts": MILLIS + rng.randrange(SPAN_MILLIS),
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


def document(rng: random.Random) -> bytes:
    """A click as JSON without spaces. The browser's name is cut so that it has `DOCUMENT_BYTES`."""
    made = click(rng) | {
        "session": f"{rng.getrandbits(64):016x}",
        "country": rng.choice(["DE", "FR", "GB"]),
        "agent": "",
    }
    room = DOCUMENT_BYTES - len(json.dumps(made, separators=(",", ":")))
    return json.dumps({**made, "agent": _AGENT[:room]}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class RecordKind:
    """A schema and its records."""

    name: str
    schema: Mapping[str, Any]
    make: Callable[[random.Random], dict[str, Any]]


KINDS = (RecordKind("small", SMALL, click), RecordKind("large", LARGE, order))


def avro_values(kind: RecordKind, count: int, schema_ids: Sequence[int] = (1,)) -> list[bytes]:
    """Deterministic Avro values with Confluent's prefix, with the given schema ids in turn."""
    # Without logical types, since values are given as they are on the wire.
    parsed = fastavro.parse_schema(json.loads(json.dumps(kind.schema).replace("logicalType", "ignored")))
    rng = random.Random(7)
    values = []
    for n in range(count):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, kind.make(rng))
        values.append(b"\x00" + schema_ids[n % len(schema_ids)].to_bytes(4) + body.getvalue())
    return values


def time_place(value: bytes) -> int:
    """The position of the business time in a value: after its id, user and page."""
    body = io.BytesIO(value[5:])
    for schema in ("long", "string", ["null", "string"]):
        fastavro.schemaless_reader(body, schema, None)
    return 5 + body.tell()


def with_time(value: bytes, place: int, millis: int) -> bytes:
    """A value with another business time and the same length."""
    return value[:place] + encode_long(millis) + value[place + _TIME_BYTES :]


def ordered_time(number: int, records: int) -> int:
    """The business time of a record by its number, if the given number of records comes nearly in order."""
    late = number * 7_919 % _LATE_MILLIS if number % _LATE_EACH == 0 else 0
    return MILLIS + number * SPAN_MILLIS // records - late
