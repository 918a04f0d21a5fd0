"""The rows of `_kbq_completeness` as an Avro file (core/loading/completeness.py)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable

from kbq_assets.core.loading.completeness import HOUR_MS, HOUR_SCHEMA, HourRow
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.files.container import ContainerWriter, FileFormat


def hour_file(rows: Iterable[HourRow]) -> bytes:
    """A container file with the rows. Equal rows yield equal bytes."""
    encoded = [_encode(row) for row in rows]
    data, sink = b"".join(encoded), io.BytesIO()
    marker = hashlib.sha256(data).digest()[:16]
    writer = ContainerWriter(sink, HOUR_SCHEMA, FileFormat(marker))
    if encoded:
        writer.write_block(data, len(encoded))
    return sink.getvalue()


def _encode(row: HourRow) -> bytes:
    completed = b"\x00" if row.completed_ms is None else b"\x02" + encode_long(row.completed_ms * 1000)
    return b"".join(
        (
            encode_bytes(row.table.encode()),
            encode_long(row.hour * HOUR_MS * 1000),
            b"\x01" if row.complete else b"\x00",
            completed,
            encode_long(row.rows),
            encode_long(row.late),
        )
    )
