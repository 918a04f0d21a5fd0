"""Speed of the wire layer on one core: MB of Kafka values a second, validated, and validated and encoded.

``python -m benchmarks.wire [--seconds 1] [--json] [--keep]``. The records are like those of the extraction benchmarks,
59 and 360 bytes with the Confluent prefix.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from google.protobuf import message_factory

from benchmarks.measure import REPOSITORY
from benchmarks.records import KINDS, MILLIS, RecordKind, avro_values, click
from kbq_assets.adapters.protobuf import compile_types, layout_of, row_encoder
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.core.topics.json.inference import InferredSchema
from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.wire.chunk import PADDING, Chunk, Spans
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.encode import (
    FileFormat,
    RecordLimits,
    RecordOrigin,
    Route,
    ValueFormat,
    WindowContext,
    WindowEncoder,
)
from kbq_assets.wire.json.encode import DocumentEncoder
from kbq_assets.wire.json.layout import layout_of as document_layout
from kbq_assets.wire.json.rows import RowEncoder, event_time, parse
from kbq_assets.wire.privacy.avro import rewriter
from kbq_assets.wire.protobuf.encode import MessageEncoder
from kbq_assets.wire.records.schema import MetadataColumns, StagedSchema, json_staged_schema, staged_schema
from kbq_assets.wire.records.select import Chooser
from kbq_assets.wire.records.validate import validate_avro, validate_json
from kbq_assets.wire.warm import warm_up
from kbq_assets.worker.privacy.avro import PersonalData
from kbq_assets.worker.translate import framed
from kbq_assets_tests.fakes.registry import FakeRegistry

RECORDS = 20_000
LATEST = REPOSITORY / "benchmarks" / "results" / "latest.json"
MESSAGE = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Click {
  string id = 1; int64 user = 2; double amount = 3; string page = 4; google.protobuf.Timestamp at = 5; Place place = 6;
}
message Place { double lat = 1; double lon = 2; }
"""


def chunk_of(values: list[bytes]) -> Chunk:
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    buffer = np.frombuffer(bytearray(b"".join(values) + bytes(PADDING)), np.uint8)
    offsets = np.arange(len(values), dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1])).astype(np.int64)
    return Chunk(buffer, starts, ends, offsets, offsets + MILLIS)


class Counter:
    """A sink that only counts."""

    size = 0

    def write(self, data: bytes, /) -> None:
        self.size += len(data)


def speed(run: Callable[[], object], size: int, seconds: float) -> float:
    """MB per second of this thread's processor time: the best of some rounds, for the machine is shared."""
    best = 0.0
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.thread_time()
        run()
        best = max(best, size / 1e6 / (time.thread_time() - started))
    return best


def encode(
    chunk: Chunk, schema: StagedSchema, value_format: ValueFormat, codec: Codec, route: Route | None = None
) -> int:
    sink = Counter()
    encoder = WindowEncoder(
        WindowContext(RecordOrigin("shop.events.clicks", 3, 1), FileFormat(bytes(16), codec), value_format),
        resolve=lambda schema_id: route or Route("shop.clicks", schema),
        open_sink=lambda file: sink,
    )
    rejects = encoder.add(chunk)
    encoder.finish()
    assert not len(rejects), rejects.messages[:3]
    return sink.size


def measure(
    name: str, chunk: Chunk, schema: StagedSchema, value_format: ValueFormat, seconds: float
) -> dict[str, Any]:
    size = int(chunk.ends[-1])
    limits = RecordLimits()
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


def measure_tables(kind: RecordKind, metadata: MetadataColumns, seconds: float) -> dict[str, Any]:
    """Records that choose their tables by a key, beside one table; snappy."""
    chunk, schema = chunk_of(avro_values(kind, RECORDS)), staged_schema(dict(kind.schema), metadata)
    row: dict[str, Any] = {"records": kind.name}
    for tables in (1, 10, 200):
        keys = Spans.of([b"%d" % (n * 7919 % tables) for n in range(len(chunk))])
        keyed, size = dataclasses.replace(chunk, keys=keys), int(chunk.ends[-1])
        route = Route("", schema, Chooser(("key",), lambda values: Route(f"shop.t{values[0]!r}", schema)))
        run = partial(encode, keyed, schema, ValueFormat.AVRO, "snappy", route)
        row[f"{tables} by key"] = round(speed(run, size, seconds))
    return row


def measure_columns(seconds: float) -> dict[str, Any]:
    """Documents as records of an inferred schema, a second: by the kernel, and by Python objects."""
    documents = [click(random.Random(n)) for n in range(RECORDS // 10)]
    inferred, time_ = InferredSchema().grown(documents[:100]), parse_business_time("auto")
    assert time_ is not None
    chunk = chunk_of([json.dumps(document).encode() for document in documents])
    encoder, rows = DocumentEncoder(document_layout(inferred, time_), inferred.version), np.arange(len(chunk))
    objects = RowEncoder(inferred)

    def by_objects() -> None:
        for row in range(len(chunk)):
            document = parse((chunk.value(row) or b"").decode())
            framed(1, objects.encode(document)[0] + event_time(document, time_))

    size = len(chunk) * 1_000_000
    return {
        "records": "json columns",
        "bytes": round(int(chunk.ends[-1]) / len(chunk), 1),
        "documents/s": round(speed(lambda: encoder.encode(chunk, rows, 10**7, 500), size, seconds)),
        "in Python": round(speed(by_objects, size, seconds)),
    }


def measure_messages(seconds: float) -> dict[str, Any]:
    """Protobuf messages as records, a second: by the kernel, and by Google's library."""
    type_ = compile_types(MESSAGE, {}).at([0])
    assert type_ is not None
    layout, new = layout_of(type_), message_factory.GetMessageClass(type_)
    assert layout is not None
    chance = random.Random(1)
    messages = [
        new(
            id=f"{chance.getrandbits(64):016x}",
            user=chance.randrange(10**9),
            amount=chance.random(),
            page="/products/" + "x" * chance.randrange(30),
            at={"seconds": 1_700_000_000 + n, "nanos": 5_000_000},
            place={"lat": 52.5, "lon": 13.4},
        ).SerializeToString()
        for n in range(RECORDS)
    ]
    chunk, rows = chunk_of(messages), np.arange(RECORDS)
    encoder, encode_ = MessageEncoder(layout, 1), row_encoder(type_)
    size = RECORDS * 1_000_000
    return {
        "records": "protobuf",
        "bytes": round(int(chunk.ends[-1]) / RECORDS, 1),
        "messages/s": round(speed(lambda: encoder.encode(chunk, rows), size, seconds)),
        "in Python": round(speed(lambda: [encode_(each) for each in messages], size, seconds)),
    }


def measure_pseudonyms(kind: RecordKind, seconds: float) -> dict[str, Any]:
    """Records a second whose text becomes a pseudonym, by kernels, then as an Avro file; and rewritten in Python."""
    settings = TopicSettings.of(dataset="d", table="t", pii="user:pseudonym", event_date="ts")
    keys = Pseudonyms("2025", {"2025": bytes(32)})
    chunk = chunk_of(avro_values(kind, RECORDS))
    personal = PersonalData(settings, FakeRegistry({1: json.dumps(kind.schema)}), keys)
    schema = staged_schema(
        personal.schema(1).schema, MetadataColumns(business_time=parse_business_time("ts"))
    )
    rewrite = rewriter(dict(kind.schema), settings.privacy.decisions, keys)
    bodies = [(chunk.value(row) or b"")[5:] for row in range(RECORDS // 10)]
    size = RECORDS * 1_000_000
    return {
        "records": f"{kind.name} with a pseudonym",
        "bytes": round(int(chunk.ends[-1]) / RECORDS, 1),
        "records/s": round(speed(lambda: personal.translate(chunk), size, seconds)),
        "staged/s": round(
            speed(
                lambda: encode(personal.translate(chunk), schema, ValueFormat.AVRO, "snappy"), size, seconds
            )
        ),
        "in Python": round(speed(lambda: [rewrite(body) for body in bodies], size / 10, seconds)),
    }


def formats(columns: dict[str, Any], messages: dict[str, Any], hashed: dict[str, Any]) -> dict[str, Any]:
    """The rows of formats that are translated, as `latest.json` has them."""
    return {
        "json": {"records_per_core_second": columns["documents/s"], "bytes": columns["bytes"]},
        "protobuf": {"records_per_core_second": messages["messages/s"], "bytes": messages["bytes"]},
        "pseudonyms": {"records_per_core_second": hashed["staged/s"], "bytes": hashed["bytes"]},
    }


def keep(found: dict[str, Any], path: Path) -> None:
    """Write these results; all others stay."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **found}, indent=1) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=1.0, help="per measurement")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--keep", action="store_true", help=f"write rates of formats to {LATEST.name}")
    options = arguments.parse_args()
    warm_up()
    metadata = MetadataColumns(business_time=parse_business_time("ts"))
    rows = [
        measure(
            kind.name,
            chunk_of(avro_values(kind, RECORDS)),
            staged_schema(dict(kind.schema), metadata),
            ValueFormat.AVRO,
            options.seconds,
        )
        for kind in KINDS
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
    columns, messages = measure_columns(options.seconds), measure_messages(options.seconds)
    hashed = [measure_pseudonyms(kind, options.seconds) for kind in KINDS]
    rows += [columns, messages, *hashed]
    if options.keep:
        keep(formats(columns, messages, hashed[0]), LATEST)
    rows += [measure_tables(kind, metadata, options.seconds) for kind in KINDS]
    if options.json:
        print(json.dumps(rows))
        return
    print("MB of values a second, one core; null, snappy and deflate: validated and encoded")
    for row in rows:
        print("  ".join(f"{key} {value!s:>6}" for key, value in row.items()))


if __name__ == "__main__":
    main()
