"""Speed of the wire layer on one core: MB of Kafka values per second, for validation alone and with encoding.

``python -m benchmarks.wire [--seconds 1] [--json] [--keep]``. The records are like those of the extraction benchmarks:
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
from benchmarks.records import KINDS, MILLIS, RecordKind, avro_values, document
from kbq_assets.adapters.protobuf import compile_types, row_encoder
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
from kbq_assets.wire.json.rows import RowEncoder, event_time, parse
from kbq_assets.wire.privacy.avro import rewriter
from kbq_assets.wire.privacy.json import JsonRedactor
from kbq_assets.wire.records.select import Chooser
from kbq_assets.wire.records.staged_schema import (
    MetadataColumns,
    StagedSchema,
    json_staged_schema,
    staged_schema,
)
from kbq_assets.wire.records.validate import validate_avro, validate_json
from kbq_assets.wire.warm import warm_up
from kbq_assets.worker.json.inferred_columns import JsonColumns
from kbq_assets.worker.privacy.avro import PersonalData
from kbq_assets.worker.privacy.json import JsonPrivacy
from kbq_assets.worker.protobuf import ProtobufRows
from kbq_assets.worker.translate import ValueTranslator, framed
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.registry import FakeRegistry

RECORDS = 20_000
#: Decisions about personal data in a document.
PERSONAL = "user:pseudonym,session:drop"
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
    """MB per second of this thread's CPU time. The best of several rounds, because the machine is shared."""
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
    """Records that choose their tables by a key, compared with one table, with snappy."""
    chunk, schema = chunk_of(avro_values(kind, RECORDS)), staged_schema(dict(kind.schema), metadata)
    row: dict[str, Any] = {"records": kind.name}
    for tables in (1, 10, 200):
        keys = Spans.of([b"%d" % (n * 7919 % tables) for n in range(len(chunk))])
        keyed, size = dataclasses.replace(chunk, keys=keys), int(chunk.ends[-1])
        route = Route("", schema, Chooser(("key",), lambda values: Route(f"shop.t{values[0]!r}", schema)))
        run = partial(encode, keyed, schema, ValueFormat.AVRO, "snappy", route)
        row[f"{tables} by key"] = round(speed(run, size, seconds))
    return row


def measure_translated(
    name: str, translator: ValueTranslator, chunk: Chunk, in_python: Callable[[], object], seconds: float
) -> dict[str, Any]:
    """Records per second: translated to Avro by kernels, with writing an Avro file, and translated in Python."""
    chosen = translator.translate(chunk)  # an inferred schema grows now
    schema_id = int.from_bytes((chosen.value(0) or b"")[1:5], "big")
    schema = staged_schema(
        json.loads(translator.schema(schema_id).schema),
        MetadataColumns(business_time=translator.business_time),
    )
    size = len(chunk) * 1_000_000

    def staged() -> None:
        encode(translator.translate(chunk), schema, ValueFormat.AVRO, "snappy")

    return {
        "records": name,
        "bytes": round(int(chunk.ends[-1]) / len(chunk), 1),
        "translated/s": round(speed(lambda: translator.translate(chunk), size, seconds)),
        "staged/s": round(speed(staged, size, seconds)),
        "in Python": round(speed(in_python, size / 10, seconds)),
    }


def measure_columns(seconds: float) -> dict[str, Any]:
    """Documents as records of an inferred schema."""
    values = [document(random.Random(n)) for n in range(RECORDS)]
    settings = TopicSettings.of(dataset="d", table="t", format="json_columns", event_date="ts")
    inferred, time_ = InferredSchema().grown(map(json.loads, values[:100])), settings.records.event_date
    assert time_ is not None
    objects = RowEncoder(inferred)

    def in_python() -> None:
        for value in values[: RECORDS // 10]:
            parsed = parse(value.decode())
            framed(1, objects.encode(parsed)[0] + event_time(parsed, time_))

    columns = JsonColumns("shop.clicks", settings, FaultyMemoryStore())
    return measure_translated("json columns", columns, chunk_of(values), in_python, seconds)


def measure_messages(seconds: float) -> dict[str, Any]:
    """Protobuf messages as records, compared with Google's library, the usual one in Python."""
    type_ = compile_types(MESSAGE, {}).at([0])
    assert type_ is not None
    new, encode_ = message_factory.GetMessageClass(type_), row_encoder(type_)
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
    registry = FakeRegistry({})
    registry.messages[1] = MESSAGE
    settings = TopicSettings.of(dataset="d", table="t", format="protobuf", event_date="at")
    chunk = chunk_of([framed(1, b"\0" + message) for message in messages])
    few = messages[: RECORDS // 10]
    return measure_translated(
        "protobuf", ProtobufRows(settings, registry), chunk, lambda: [encode_(each) for each in few], seconds
    )


def measure_pseudonyms(kind: RecordKind, seconds: float) -> dict[str, Any]:
    """Records whose text becomes a pseudonym."""
    settings = TopicSettings.of(dataset="d", table="t", pii="user:pseudonym", event_date="ts")
    keys = Pseudonyms("2025", {"2025": bytes(32)})
    chunk = chunk_of(avro_values(kind, RECORDS))
    personal = PersonalData(settings, FakeRegistry({1: json.dumps(kind.schema)}), keys)
    rewrite = rewriter(dict(kind.schema), settings.privacy.decisions, keys)
    bodies = [(chunk.value(row) or b"")[5:] for row in range(RECORDS // 10)]
    return measure_translated(
        f"{kind.name} with a pseudonym", personal, chunk, lambda: [rewrite(body) for body in bodies], seconds
    )


def measure_personal_columns(seconds: float) -> dict[str, Any]:
    """The same documents, with one field replaced by a pseudonym and another one dropped."""
    values = [document(random.Random(n)) for n in range(RECORDS)]
    settings = TopicSettings.of(
        dataset="d", table="t", format="json_columns", event_date="ts", pii=PERSONAL, pii_others="keep"
    )
    keys = Pseudonyms("2025", {"2025": bytes(32)})
    redactor, time_ = JsonRedactor(settings.privacy.decisions, keys, "keep"), settings.records.event_date
    assert time_ is not None
    objects = RowEncoder(InferredSchema().grown(redactor(parse(value.decode())) for value in values[:100]))

    def in_python() -> None:
        for value in values[: RECORDS // 10]:
            parsed = redactor(parse(value.decode()))
            framed(1, objects.encode(parsed)[0] + event_time(parsed, time_))

    columns = JsonColumns("shop.clicks", settings, FaultyMemoryStore(), privacy=JsonPrivacy(settings, keys))
    return measure_translated("json columns, personal", columns, chunk_of(values), in_python, seconds)


def formats(**rows: dict[str, Any]) -> dict[str, Any]:
    """The rates of translated formats as in `latest.json`: records that become a staged file."""
    return {
        name: {
            "records_per_core_second": row["staged/s"],
            "translated_per_core_second": row["translated/s"],
            "bytes": row["bytes"],
        }
        for name, row in rows.items()
    }


def keep(found: dict[str, Any], path: Path) -> None:
    """Write these results, and keep all others."""
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
    documents = [document(random.Random(n)) for n in range(RECORDS)]
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
    personal = measure_personal_columns(options.seconds)
    rows += [columns, messages, *hashed, personal]
    if options.keep:
        keep(formats(json=columns, protobuf=messages, pseudonyms=hashed[0], json_personal=personal), LATEST)
    rows += [measure_tables(kind, metadata, options.seconds) for kind in KINDS]
    if options.json:
        print(json.dumps(rows))
        return
    print("MB of values a second, one core; null, snappy and deflate: validated and encoded")
    for row in rows:
        print("  ".join(f"{key} {value!s:>6}" for key, value in row.items()))


if __name__ == "__main__":
    main()
