"""DuckDB's `read_avro` reads the staged files: every row, dates as dates, whatever the codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from benchmarks.records import KINDS, MILLIS, RecordKind, avro_values
from kbq_assets.wire.files.codec import Codec
from kbq_assets_tests.pipelines.bench import SETTINGS, TP, Bench
from kbq_assets_tests.wire import duckdb_avro

pytestmark = pytest.mark.thorough

RECORDS = 2_000
CODECS: tuple[Codec, ...] = ("snappy", "deflate", "null")


def staged(codec: Codec, schema: Any, values: list[bytes], path: Path) -> Path:
    """The file of one window of these values."""
    bench = Bench(SETTINGS.with_options(codec=codec))
    bench.registry.schemas[1] = json.dumps(schema)
    for value in values:
        bench.kafka.produce(TP, value, timestamp=MILLIS)
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    [file] = window.files
    path.write_bytes(bench.store.get(file.path).data)
    return path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_duckdb_reads_every_row(kind: RecordKind, tmp_path: Path) -> None:
    values = avro_values(kind, RECORDS)
    files = [staged(codec, kind.schema, values, tmp_path / f"{codec}.avro") for codec in CODECS]
    for file, found in zip(files, duckdb_avro.read(files), strict=True):
        assert [row["_kafka_offset"] for row in found["rows"]] == list(range(RECORDS))
        assert (found["columns"]["ts"], found["columns"]["event_date"]) == ("TIMESTAMP", "DATE")
        assert {row["event_date"] for row in found["rows"]} == {"2026-01-01"}
        assert {field["name"] for field in kind.schema["fields"]} <= found["columns"].keys()
        plain = ("id", "user", "page", "ms", "score", "ok", "kind")
        with file.open("rb") as opened:
            expected: list[Any] = list(fastavro.reader(opened))
        assert [[row[name] for name in plain] for row in found["rows"]] == [
            [row[name] for name in plain] for row in expected
        ]


def test_dates_of_records_are_dates(tmp_path: Path) -> None:
    date = {"type": "int", "logicalType": "date"}
    fields = [{"name": "day", "type": date}, {"name": "perhaps", "type": ["null", date]}]
    schema = {"type": "record", "name": "A", "fields": fields}
    bodies = [b"\x06\x02\x08", b"\x06\x00"]
    values = [b"\x00\x00\x00\x00\x01" + body for body in bodies]
    files = [staged(codec, schema, values, tmp_path / f"{codec}.avro") for codec in CODECS]
    for found in duckdb_avro.read(files):
        assert (found["columns"]["day"], found["columns"]["perhaps"]) == ("DATE", "DATE")
        assert [(row["day"], row["perhaps"]) for row in found["rows"]] == [
            ("1970-01-04", "1970-01-05"),
            ("1970-01-04", None),
        ]
