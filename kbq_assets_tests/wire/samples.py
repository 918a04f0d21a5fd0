"""What the tests of the wire layer share: records, sinks that remember, encoders with few options."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro

from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.files.encode import (
    FileFormat,
    NewFile,
    RecordOrigin,
    RejectedSchema,
    Route,
    WindowContext,
    WindowEncoder,
)
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.staged_schema import MetadataColumns, StagedSchema, staged_schema

SOURCE = RecordOrigin("shop.orders.v1", 3, 7)
SYNC_MARKER = bytes(range(16))
TABLE = "shop.orders"
MILLIS = 1_767_225_600_000  # 2026-01-01
DAY = 20_454
DAY_MILLIS = 86_400_000


def record_of(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    """A record schema from names and types."""
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields]}


def avro_body(schema: Mapping[str, Any], value: Mapping[str, Any]) -> bytes:
    """The value as fastavro encodes it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(schema)), value)
    return stream.getvalue()


def framed(body: bytes, schema_id: int = 1) -> bytes:
    """With the Confluent prefix."""
    return b"\x00" + schema_id.to_bytes(4) + body


def chunk_of(*values: bytes | None, first_offset: int = 0) -> Chunk:
    """A chunk of values at consecutive offsets and milliseconds."""
    return Chunk.from_messages(
        RawRecord(value, offset, MILLIS + offset) for offset, value in enumerate(values, first_offset)
    )


class Sinks:
    """Opens files in memory and remembers them."""

    def __init__(self) -> None:
        self.files: dict[NewFile, io.BytesIO] = {}

    def open(self, file: NewFile) -> io.BytesIO:
        assert file not in self.files, "a file is opened once"
        self.files[file] = io.BytesIO()
        return self.files[file]

    def rows(self, **wanted: Any) -> list[dict[str, Any]]:
        """The rows of all files like that, as fastavro reads them, in the order of opening."""
        return [
            row
            for file, stream in self.files.items()
            if all(getattr(file, name) == value for name, value in wanted.items())
            for row in read_rows(stream.getvalue())
        ]


def read_rows(data: bytes) -> list[dict[str, Any]]:
    return [row for row in fastavro.reader(io.BytesIO(data)) if isinstance(row, dict)]


def resolver(routes: Mapping[int, StagedSchema]) -> Callable[[int], Route | RejectedSchema]:
    def resolve(schema_id: int) -> Route | RejectedSchema:
        if schema_id not in routes:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, f"the registry has no schema {schema_id}")
        return Route(TABLE, routes[schema_id])

    return resolve


def window(sinks: Sinks, routes: Mapping[int, StagedSchema], **options: Any) -> WindowEncoder:
    """An encoder of Avro values for one table, unless the options say otherwise."""
    resolve, open_sink = options.pop("resolve", resolver(routes)), options.pop("open_sink", sinks.open)
    of_format: dict[str, Any] = {"sync_marker": SYNC_MARKER}
    of_format |= {key: options.pop(key) for key in ("codec", "block_bytes", "sync_marker") if key in options}
    hours = options.pop("hours", None)
    return WindowEncoder(WindowContext(SOURCE, FileFormat(**of_format), **options), resolve, open_sink, hours)


def staged(*fields: tuple[str, Any], metadata: MetadataColumns = MetadataColumns()) -> StagedSchema:  # noqa: B008
    return staged_schema(record_of(*fields), metadata)


def texts(count: int) -> Sequence[bytes]:
    """Framed records of one string field."""
    return [framed(bytes([2 * len(text)]) + text) for text in (b"row %d" % index for index in range(count))]
