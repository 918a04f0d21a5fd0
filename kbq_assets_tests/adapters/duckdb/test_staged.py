"""Files from KBQ's own encoder load into their tables: the warehouse accepts everything that the encoder lets
through."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import duckdb
import fastavro
import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.load import StagedFileLoader
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.object_store import ObjectWriter
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.files.assemble import RecordOrigin
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.encode import FileFormat, NewFile, Route, ValueFormat, WindowContext, WindowEncoder
from kbq_assets.wire.files.error_rows import ErrorRows, error_schema_json
from kbq_assets.wire.records.staged_schema import (
    MetadataColumns,
    StagedSchema,
    json_staged_schema,
    staged_schema,
    tombstone_schema,
)
from kbq_assets_tests.fixtures.work import calls_of

TABLE = TableReference("shop", "orders")
NOON = 1_700_000_000_000
WITH_ALL = MetadataColumns(key=True, headers=True)


class Stage:
    """A local store and a warehouse: encode messages, load them, read rows."""

    def __init__(self, root: Path) -> None:
        self.store = LocalObjectStore(root / "store", durable=False)
        self.warehouse = DuckDbWarehouse(root / "warehouse.duckdb")
        self._writers: list[tuple[str, ObjectWriter]] = []

    def open_sink(self, file: NewFile) -> ObjectWriter:
        path = f"staging/0-a/t.0.{TABLE}.{file.schema_id}.{file.first_offset}-{len(self._writers)}.avro"
        writer = self.store.open_write(path)
        self._writers.append((path, writer))
        return writer

    def load(self, schema: str) -> list[dict[str, Any]]:
        """Load all files staged so far under one schema; the rows of the table."""
        for _, writer in self._writers:
            writer.close()
        uris = tuple(self.store.uri(path) for path, _ in self._writers)
        self.warehouse.create_table(TABLE, columns_of(schema), TableOptions())
        self.warehouse.insert_job(LoadJob("j", "local", "local", TABLE, uris, schema))
        status = self.warehouse.get_job("j", "local", "local")
        assert status is not None
        assert status.error is None
        with self.warehouse.connect_readonly() as connection:
            rows = connection.execute("SELECT * FROM shop.orders ORDER BY _kafka_offset")
            names = [column[0] for column in rows.description]
            return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def encoder(stage: Stage, resolve: Callable[[int], Route], **options: Any) -> WindowEncoder:
    of_format = {key: options.pop(key) for key in ("codec", "block_bytes") if key in options}
    context = WindowContext(RecordOrigin("t", 3, 1), FileFormat(b"s" * 16, **of_format), **options)
    return WindowEncoder(context, resolve, stage.open_sink)


def route(schema: StagedSchema) -> Route:
    return Route(str(TABLE), schema)


def confluent(schema: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, dict(schema), record)
    return b"\0" + (7).to_bytes(4, "big") + stream.getvalue()


def test_records_keys_headers_and_metadata_are_loaded(stage: Stage) -> None:
    writer = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            },
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "lines", "type": {"type": "map", "values": ["null", "int"]}},
        ],
    }
    staged = staged_schema(json.dumps(writer), WITH_ALL)
    at = datetime(2024, 5, 6, 7, 8, 9, 10, UTC)
    record = {"id": 1, "at": at, "price": Decimal("9.50"), "state": "PAID", "lines": {"a": 1, "b": None}}
    encoding = encoder(stage, lambda _: route(staged))
    message = RawRecord(confluent(writer, record), 41, NOON, b"key", [("h", b"\x01"), ("none", None)])
    assert not len(encoding.add(Chunk.from_messages([message], keys=True, headers=True)))
    encoding.finish()
    (row,) = stage.load(staged.json)
    kafka_time = row.pop("_kafka_timestamp")
    assert (kafka_time.timestamp() * 1000, row.pop("at").timestamp()) == (NOON, at.timestamp())
    assert row == {
        "id": 1,
        "price": Decimal("9.50"),
        "state": "PAID",
        "lines": [{"key": "a", "value": 1}, {"key": "b", "value": None}],
        "_kafka_topic": "t",
        "_kafka_partition": 3,
        "_kafka_offset": 41,
        "_kbq_epoch": 1,
        "_kafka_key": b"key",
        "_kafka_headers": [{"key": "h", "value": b"\x01"}, {"key": "none", "value": None}],
        "event_date": date(2023, 11, 14),
    }


@pytest.mark.parametrize("codec", get_args(Codec))
def test_files_of_every_codec_are_loaded_whole(stage: Stage, codec: Codec) -> None:
    writer = {"type": "record", "name": "r", "fields": [{"name": "text", "type": "string"}]}
    staged = staged_schema(json.dumps(writer), MetadataColumns())
    encoding = encoder(stage, lambda _: route(staged), codec=codec, block_bytes=4_096)
    texts = [f"{n} repeats itself, repeats itself {'é' * (n % 90)}" for n in range(2_000)]
    values = (confluent(writer, {"text": text}) for text in texts)
    assert not len(encoding.add(Chunk.from_messages(RawRecord(v, i, NOON) for i, v in enumerate(values))))
    encoding.finish()
    rows = stage.load(staged.json)
    assert [(row["text"], row["_kafka_offset"]) for row in rows] == list(
        zip(texts, range(2_000), strict=True)
    )


def test_json_and_its_tombstones_are_loaded(stage: Stage) -> None:
    staged = json_staged_schema(MetadataColumns())
    encoding = encoder(
        stage, lambda _: route(staged), value_format=ValueFormat.JSON, tombstones=route(staged)
    )
    values = [b'{"a": [1, "\\u00e9"]}', None, b"12", b'"text"']
    rejects = encoding.add(Chunk.from_messages(RawRecord(v, i, NOON) for i, v in enumerate(values)))
    assert not len(rejects)
    encoding.finish()
    rows = stage.load(staged.json)
    assert [row["payload"] for row in rows] == ['{"a": [1, "\\u00e9"]}', None, "12", '"text"']


def test_tombstones_of_an_avro_topic_have_metadata_alone(stage: Stage) -> None:
    writer = {"type": "record", "name": "r", "fields": [{"name": "id", "type": ["null", "int"]}]}
    staged, empty = staged_schema(json.dumps(writer), WITH_ALL), tombstone_schema(WITH_ALL)
    encoding = encoder(stage, lambda _: route(staged), tombstones=route(empty))
    messages = [RawRecord(confluent(writer, {"id": 5}), 0, NOON, b"k"), RawRecord(None, 1, NOON, b"k")]
    assert not len(encoding.add(Chunk.from_messages(messages, keys=True, headers=True)))
    encoding.finish()
    rows = stage.load(staged.json)
    assert [(row["id"], row["_kafka_offset"], row["_kafka_key"]) for row in rows] == [
        (5, 0, b"k"),
        (None, 1, b"k"),
    ]


def test_error_rows_are_loaded(stage: Stage) -> None:
    writer = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]}
    staged = staged_schema(json.dumps(writer), MetadataColumns())
    encoding = encoder(stage, lambda _: route(staged))
    chunk = Chunk.from_messages([RawRecord(b"\x09nonsense", 8, NOON, b"k")], keys=True, headers=True)
    rejects = encoding.add(chunk)
    errors = ErrorRows(RecordOrigin("t", 3, 1), str(TABLE), stage.open_sink, FileFormat(b"s" * 16))
    errors.add(chunk, rejects)
    encoding.finish()
    errors.finish()
    (row,) = stage.load(error_schema_json())
    assert (row["reason"], row["value"], row["key"]) == ("WRONG_MAGIC", b"\x09nonsense", b"k")
    assert (row["_kafka_offset"], row["event_date"]) == (8, date(2023, 11, 14))


@pytest.mark.parametrize(
    ("logical", "kind", "values"),
    [
        ("date", "int", [-719_163, -719_162, 2_932_896, 2_932_897, -(2**31), 2**31 - 1]),
        ("time-millis", "int", [-1, 0, 86_399_999, 86_400_000]),
        ("time-micros", "long", [-1, 0, 86_399_999_999, 86_400_000_000]),
        (
            "timestamp-millis",
            "long",
            [-62_135_596_800_001, -62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000],
        ),
        (
            "timestamp-micros",
            "long",
            [
                -62_135_596_800_000_001,
                -62_135_596_800_000_000,
                253_402_300_799_999_999,
                253_402_300_800_000_000,
            ],
        ),
        (
            "local-timestamp-micros",
            "long",
            [-62_135_596_800_000_001, 253_402_300_799_999_999, 2**63 - 1, -(2**63)],
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_the_encoder_lets_through_the_warehouse_takes(
    stage: Stage, logical: str, kind: str, values: list[int], nested: bool
) -> None:
    plain: Any = {"type": "array", "items": kind} if nested else kind
    typed: Any = {"type": kind, "logicalType": logical}
    typed = {"type": "array", "items": typed} if nested else typed
    schemas = [
        {"type": "record", "name": "r", "fields": [{"name": "f", "type": avro}]} for avro in (plain, typed)
    ]
    staged = staged_schema(json.dumps(schemas[1]), MetadataColumns())
    encoding = encoder(stage, lambda _: route(staged))
    messages = [
        RawRecord(confluent(schemas[0], {"f": [value] if nested else value}), i, NOON)
        for i, value in enumerate(values)
    ]
    rejects = encoding.add(Chunk.from_messages(messages))
    encoding.finish()
    assert len(stage.load(staged.json)) == len(values) - len(rejects)


def test_small_files_cost_the_same_each_however_many_wait() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}
    file = io.BytesIO()
    fastavro.writer(file, schema, [{"x": n} for n in range(3)])
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (x BIGINT)")

    def load(files: int) -> None:
        loader = StagedFileLoader(
            connection, "t", (Column("x", "INT64", "REQUIRED"),), lambda _: io.BytesIO(file.getvalue())
        )
        assert loader.load(f"file:///{n}" for n in range(files)) == 3 * files

    load(1)  # compiles
    few, many = calls_of(lambda: load(50)), calls_of(lambda: load(200))
    assert many < 4.2 * few


def test_a_negative_zero_keeps_its_sign(stage: Stage) -> None:
    inner = {"type": "record", "name": "S", "fields": [{"name": "x", "type": "double"}]}
    types = ["double", "float", {"type": "array", "items": "double"}, inner]
    fields = [{"name": f"f{n}", "type": each} for n, each in enumerate(types)]
    schema = staged_schema({"type": "record", "name": "R", "fields": fields}, MetadataColumns())
    made = encoder(stage, lambda _: Route(str(TABLE), schema))
    bodies = [struct.pack("<df", z, z) + b"\2" + struct.pack("<dxd", z, z) for z in (-0.0, 0.0, -0.0)]
    made.add(Chunk.from_messages(RawRecord(b"\0\0\0\0\1" + body, n) for n, body in enumerate(bodies)))
    made.finish()
    signs = [
        [math.copysign(1, zero) for zero in (row["f0"], row["f1"], row["f2"][0], row["f3"]["x"])]
        for row in stage.load(schema.json)
    ]
    assert signs == [[-1] * 4, [1] * 4, [-1] * 4]
