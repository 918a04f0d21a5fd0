"""Bad records as rows of an error table: their raw bytes, origin, and reason.

Errors are rare, so this is plain Python. The file is a normal staged file of the same window.
"""

from __future__ import annotations

import json
from typing import Any

from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.wire.chunk import (
    END_OF_TIME,
    NO_HEADERS,
    NO_TIMESTAMP,
    Chunk,
    encode_bytes,
    encode_long,
    encode_nullable_bytes,
)
from kbq_assets.wire.files.assemble import RecordOrigin
from kbq_assets.wire.files.container import BLOCK_BYTES, ContainerWriter, FileFormat, Sink
from kbq_assets.wire.files.encode import NO_SCHEMA_ID, EncodedFile, NewFile, OpenSink, Rejects
from kbq_assets.wire.files.row_sizes import MOST_ROW_BYTES
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.rows_per_hour import HourCounter
from kbq_assets.wire.records.staged_schema import MetadataColumns, metadata_fields

ERROR_SCHEMA_ID = 0
"""Error rows have no schema in the registry."""

_DAY_MILLIS = 86_400_000


def _error_schema() -> dict[str, Any]:
    metadata = {field["name"]: field for field in metadata_fields(MetadataColumns(headers=True))}
    headers, event_date = metadata.pop("_kafka_headers"), metadata.pop("event_date")
    own = [
        {"name": "reason", "type": "string"},
        {"name": "message", "type": "string"},
        {"name": "schema_id", "type": ["null", "long"]},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "value", "type": ["null", "bytes"]},
        {**headers, "name": "headers"},
    ]
    return {"type": "record", "name": "KbqError", "fields": [*metadata.values(), *own, event_date]}


ERROR_SCHEMA = _error_schema()
ERROR_FINGERPRINT = schema_fingerprint(ERROR_SCHEMA)


def error_schema_json() -> str:
    """The schema in the header of error files."""
    return json.dumps(ERROR_SCHEMA, separators=(",", ":"))


class ErrorRows:
    """The error file of one window, opened with its first row."""

    def __init__(
        self,
        origin: RecordOrigin,
        table: str,
        open_sink: OpenSink,
        format_: FileFormat,
    ) -> None:
        self._table = table
        self._open_sink = open_sink
        self._format = format_
        self._origin = encode_bytes(origin.topic.encode()) + encode_long(origin.partition)
        self._epoch = encode_long(origin.epoch)
        self._writer: ContainerWriter | None = None
        self._block = bytearray()
        self._rows_in_block = 0
        self._bytes_in_blocks = 0
        self._first_offset = self._last_offset = -1
        self._hours = HourCounter()
        self.rows = 0

    @property
    def bytes_written(self) -> int:
        """Bytes in the sink."""
        return self._writer.bytes_written if self._writer else 0

    def add(self, chunk: Chunk, rejects: Rejects) -> None:
        """Append a row for each reject: its raw value and, if the chunk has them, key and headers."""
        self._hours.add_kafka(chunk.timestamps[rejects.rows])
        for index, row in enumerate(rejects.rows.tolist()):
            self._open(int(chunk.offsets[row]))
            self._block += self._row(chunk, row, rejects, index)
            self._last_offset = int(chunk.offsets[row])
            self._rows_in_block += 1
            self.rows += 1
            if len(self._block) >= BLOCK_BYTES:
                self._flush()

    def finish(self) -> EncodedFile | None:
        """Write the last block; returns None if there are no rows. The sink's owner closes the sink."""
        if self._writer is None:
            return None
        self._flush()
        return EncodedFile(
            table=self._table,
            schema_id=ERROR_SCHEMA_ID,
            fingerprint=ERROR_FINGERPRINT,
            rows=self.rows,
            bytes_raw=self._bytes_in_blocks,
            bytes_written=self._writer.bytes_written,
            first_offset=self._first_offset,
            last_offset=self._last_offset,
            event_dates=self._hours.days,
            event_hours=self._hours.hours,
            newest_event_ms=0,  # a bad record has no business time, and its Kafka time may be far off
            event_time_fallbacks=0,
        )

    def _open(self, offset: int) -> None:
        if self._writer is None:
            sink: Sink = self._open_sink(NewFile(self._table, ERROR_SCHEMA_ID, ERROR_FINGERPRINT, offset))
            self._first_offset = offset
            self._writer = ContainerWriter(sink, error_schema_json(), self._format)

    def _row(self, chunk: Chunk, row: int, rejects: Rejects, index: int) -> bytes:
        timestamp = int(chunk.timestamps[row])
        schema_id = int(rejects.schema_ids[index])
        if not 0 <= timestamp < END_OF_TIME:
            timestamp = NO_TIMESTAMP
        day = max(0, timestamp // _DAY_MILLIS)
        message, key, value, headers = _fitting(
            rejects.messages[index], chunk.key(row), chunk.value(row), chunk.header_bytes(row)
        )
        return b"".join(
            (
                self._origin,
                encode_long(int(chunk.offsets[row])),
                encode_long(timestamp),
                self._epoch,
                encode_bytes(Reason(int(rejects.reasons[index])).name.encode()),
                encode_bytes(message.encode("utf-8", "replace")),
                b"\x00" if schema_id == NO_SCHEMA_ID else b"\x02" + encode_long(schema_id),
                encode_nullable_bytes(key),
                encode_nullable_bytes(value),
                headers or NO_HEADERS,
                encode_long(day),
            )
        )

    def _flush(self) -> None:
        if self._writer is not None and self._rows_in_block:
            self._writer.write_block(bytes(self._block), self._rows_in_block)
            self._bytes_in_blocks += len(self._block)
            self._block.clear()
            self._rows_in_block = 0


def _fitting(
    message: str, key: bytes | None, value: bytes | None, headers: bytes | None
) -> tuple[str, bytes | None, bytes | None, bytes | None]:
    """The message and the parts of a record that fit into a row. The message names the parts left out."""
    parts = {"value": value, "headers": headers, "key": key}
    while sum(len(part or b"") for part in parts.values()) > MOST_ROW_BYTES:
        largest = max(parts, key=lambda name: len(parts[name] or b""))
        message += f"; {largest} of {len(parts[largest] or b'')} bytes left out: a row has at most 16 MB"
        parts[largest] = None
    return message, parts["key"], parts["value"], parts["headers"]
