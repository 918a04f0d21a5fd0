"""Backup files, read: blocks back into chunks, as Kafka's readers fill them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, get_args

import numpy as np

from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.wire.backup import kernels
from kbq_assets.wire.backup.write import row_prefix
from kbq_assets.wire.chunk import PADDING, UNREADABLE_HEADERS, Bytes, Chunk, Origins, Spans
from kbq_assets.wire.files.codec import BadBlock, Codec, decompress
from kbq_assets.wire.files.read_container import DamagedFile, Readable, read_blocks, read_header

#: Least bytes of a row: nothing smaller can hold the number of rows that a block claims.
_SMALLEST_ROW: Final = 10


def read_chunks(stream: Readable, epoch: int, window: OffsetRange) -> Iterator[tuple[Chunk, Bytes]]:
    """The records of a file in chunks, each with its block's bytes. Raises DamagedFile for any byte that the writer
    cannot have written."""
    header = read_header(stream)
    if header.codec not in get_args(Codec):
        raise DamagedFile(f"its codec {header.codec!r} is not one of KBQ's")
    prefix = row_prefix(epoch, window.topic_partition.partition)
    position = window.from_offset
    for count, packed in read_blocks(stream, header):
        block, size = _unpacked(header.codec, packed)
        if not 0 < count <= size // _SMALLEST_ROW:
            raise DamagedFile(f"a block claims {count} records in {size} bytes")
        fields = np.empty((kernels.COLUMNS, count), np.int64)
        if kernels.find_rows(block, size, prefix, fields) != size:
            raise DamagedFile("the records of a block do not parse")
        offsets = fields[kernels.OFFSET]
        if offsets[0] < position or offsets[-1] >= window.until_offset or (np.diff(offsets) <= 0).any():
            raise DamagedFile(f"a block has offsets from {offsets[0]} to {offsets[-1]}, out of order")
        position = int(offsets[-1]) + 1
        yield _chunk(block, fields), block[:size]


def _unpacked(codec: str, packed: bytes) -> tuple[Bytes, int]:
    try:
        data = decompress(codec, packed)
    except BadBlock as error:
        raise DamagedFile(error.message) from error
    size = len(data)
    block = np.empty(size + PADDING, np.uint8)
    block[:size] = np.frombuffer(data, np.uint8)
    return block, size


def _chunk(block: Bytes, fields: np.ndarray) -> Chunk:
    headers = Spans(block, fields[kernels.HEADERS], fields[kernels.HEADERS + 1])
    raw = Spans(block, fields[kernels.RAW], fields[kernels.RAW + 1])
    if (raw.starts >= 0).any():
        # Shown as Kafka's readers show them.
        rows = [UNREADABLE_HEADERS if raw.starts[r] >= 0 else headers.get(r) for r in range(len(raw))]
        headers = Spans.of(rows)
    origins = Origins(
        fields[kernels.LEADER_EPOCH], fields[kernels.TIME_TYPE], lambda row: raw.get(row) or b""
    )
    return Chunk(
        block,
        fields[kernels.VALUE],
        fields[kernels.VALUE + 1],
        fields[kernels.OFFSET],
        fields[kernels.TIME],
        Spans(block, fields[kernels.KEY], fields[kernels.KEY + 1]),
        headers,
        origins=lambda: origins,
    )
