"""Reads backup files: turns blocks into chunks like those of Kafka's readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

import numpy as np

from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.wire.backup import kernels
from kbq_assets.wire.backup.write import BLOCK_BYTES, row_prefix
from kbq_assets.wire.chunk import PADDING, UNREADABLE_HEADERS, Bytes, Chunk, Origins, Spans
from kbq_assets.wire.files.codec import BadBlock, Codec, decompress, unpacker
from kbq_assets.wire.files.read_container import DamagedFile, Header, Readable, read_blocks, read_header

#: The number of records in a block, and the block's end in the buffer.
_Block: TypeAlias = tuple[int, int]
#: Uncompressed bytes of the blocks that are read as one chunk. The overhead of a chunk is as large as that of some
#: hundred records.
_CHUNK_BYTES: Final = 4 * 1024 * 1024
#: The size of a chunk's buffer, with room for one more block of the usual size.
_ROOM: Final = _CHUNK_BYTES + 2 * BLOCK_BYTES + PADDING
#: The minimum size of a row in bytes. It limits the number of rows that a block can have.
_SMALLEST_ROW: Final = 10


@dataclass(frozen=True)
class BlockPlace:
    """The position of a record in a file: the number of its block, the byte at which the block begins, and the index of
    the record in the block. Number and index count from 0."""

    block: int
    byte: int
    index: int


def read_chunks(stream: Readable, epoch: int, window: OffsetRange) -> Iterator[tuple[Chunk, Bytes]]:
    """Yield the records of a file in chunks, each with the bytes of its blocks. Raises DamagedFile for every byte that
    the writer cannot have written."""
    header, prefix = _known_header(stream), row_prefix(epoch, window.topic_partition.partition)
    position = window.from_offset
    for buffer, blocks in _joined(stream, header):
        chunk, data = _found(buffer, blocks, prefix)
        offsets = chunk.offsets
        if offsets[0] < position or offsets[-1] >= window.until_offset or (np.diff(offsets) <= 0).any():
            raise DamagedFile(f"blocks have offsets from {offsets[0]} to {offsets[-1]}, out of order")
        position = int(offsets[-1]) + 1
        yield chunk, data


def place_of(stream: Readable, epoch: int, window: OffsetRange, offset: int) -> BlockPlace | None:
    """The position of an offset's record in a file, None if the file does not have it. Reads the file up to the block
    of the record. Raises DamagedFile."""
    counted = _Counted(stream)
    header, prefix = _known_header(counted), row_prefix(epoch, window.topic_partition.partition)
    byte = counted.position
    for number, (count, packed) in enumerate(read_blocks(counted, header)):
        try:
            data = decompress(header.codec, packed)
        except BadBlock as error:
            raise DamagedFile(error.message) from error
        buffer = np.zeros(len(data) + PADDING, np.uint8)
        buffer[: len(data)] = np.frombuffer(data, np.uint8)
        _check_count(count, len(data))
        offsets = _found(buffer, [(count, len(data))], prefix)[0].offsets
        if offsets[-1] >= offset:
            index = int(np.searchsorted(offsets, offset))
            return BlockPlace(number, byte, index) if offsets[index] == offset else None
        byte = counted.position
    return None


class _Counted:
    """A file that counts the bytes read from it."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.position = 0

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes; fewer at the end."""
        data = self._stream.read(size)
        self.position += len(data)
        return data


def _known_header(stream: Readable) -> Header:
    header = read_header(stream)
    if header.codec not in get_args(Codec):
        raise DamagedFile(f"its codec {header.codec!r} is not one that KBQ writes")
    return header


def _joined(stream: Readable, header: Header) -> Iterator[tuple[Bytes, list[_Block]]]:
    """Yield buffers of unpacked blocks, each as large as one chunk."""
    buffer, used, blocks = np.empty(_ROOM, np.uint8), 0, list[_Block]()
    unpack = unpacker(header.codec)
    for count, packed in read_blocks(stream, header):
        if used >= _CHUNK_BYTES:
            yield buffer, blocks
            buffer, used, blocks = np.empty(_ROOM, np.uint8), 0, []
        try:
            size = unpack(packed, buffer[used:-PADDING])
            if size < 0:  # the block is larger than the free part of the buffer
                if blocks:
                    yield buffer, blocks
                data = decompress(header.codec, packed)
                buffer, used, blocks = np.empty(max(_ROOM, len(data) + PADDING), np.uint8), 0, []
                size = len(data)
                buffer[:size] = np.frombuffer(data, np.uint8)
        except BadBlock as error:
            raise DamagedFile(error.message) from error
        _check_count(count, size)
        used += size
        blocks.append((count, used))
    if blocks:
        yield buffer, blocks


def _check_count(count: int, size: int) -> None:
    if not 0 < count <= size // _SMALLEST_ROW:
        raise DamagedFile(f"a block claims {counted(count, 'record')} in {size} bytes")


def _found(buffer: Bytes, blocks: list[_Block], prefix: Bytes) -> tuple[Chunk, Bytes]:
    """The records of blocks, and the bytes of the blocks."""
    fields = np.empty((kernels.COLUMNS, sum(count for count, _ in blocks)), np.int64)
    at = row = 0
    for count, end in blocks:
        if kernels.find_rows(buffer, at, end, prefix, fields, row, count) != end:
            raise DamagedFile("the records of a block do not parse")
        at, row = end, row + count
    return _chunk(buffer, fields), buffer[:at]


def _chunk(block: Bytes, fields: np.ndarray) -> Chunk:
    headers = Spans(block, fields[kernels.HEADERS], fields[kernels.HEADERS + 1])
    raw = Spans(block, fields[kernels.RAW], fields[kernels.RAW + 1])
    if (raw.starts >= 0).any():
        # Kafka's readers return the same value for such headers.
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
