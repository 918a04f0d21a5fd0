"""Unpacks the records of a batch (gzip, snappy, lz4, zstd) into a buffer of known size.

The formats give the maximum size of their contents. Larger contents are damaged, so nothing grows without limit.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import cramjam
from isal import isal_zlib

from kbq_assets.adapters.kafka.fetch.errors import Damaged
from kbq_assets.wire.chunk import Bytes

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

#: snappy-java's framing: magic, two versions, then repeated length and block. librdkafka sends a bare block.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = 16
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_BLOCKS: Final = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK: Final = 128 * 1024
_GZIP_WINDOW: Final = 31

_lz4: Any = cramjam.lz4
_snappy: Any = cramjam.snappy
_zstd: Any = cramjam.zstd
_gzip: Any = isal_zlib
_IsalError: type[Exception] = _gzip.error


def room(codec: int, data: Bytes) -> int:
    """The maximum number of unpacked bytes. Raises Damaged."""
    try:
        if codec == LZ4:
            return _lz4_room(data)
        if codec == ZSTD:
            return _zstd_room(data)
        if codec == SNAPPY:
            return sum(_snappy.decompress_raw_len(block) for block in _snappy_blocks(data))
        if codec == GZIP:
            return int(struct.unpack("<I", data[-4:].data)[0])
    except (struct.error, IndexError, cramjam.DecompressionError) as error:
        raise Damaged(f"{NAMES[codec]}: {error}") from error
    raise Damaged(f"codec {codec}")


def unpack(codec: int, data: Bytes, out: Bytes) -> int:
    """Unpack into ``out``, which has at least `room` bytes; returns the number of bytes. Raises Damaged."""
    try:
        if codec == LZ4:
            return _unpack_lz4(data, out)
        if codec == ZSTD:
            return int(_zstd.decompress_into(data, out))
        if codec == SNAPPY:
            return _unpack_snappy(data, out)
        return _unpack_gzip(data, out)
    except (cramjam.DecompressionError, _IsalError, struct.error, ValueError) as error:
        raise Damaged(f"{NAMES[codec]}: {error}") from error


def _lz4_head(data: Bytes) -> tuple[int, int, bool, bool]:
    """A frame's start of blocks, maximum block size, whether blocks are independent, whether they have checksums."""
    magic, flags, sizes = struct.unpack_from("<IBB", data.data)
    if magic != _LZ4_MAGIC or flags >> 6 != 1 or sizes >> 4 not in _LZ4_BLOCKS:
        raise Damaged("lz4: no frame")
    start = 7 + 8 * bool(flags & 8) + 4 * bool(flags & 1)
    return start, _LZ4_BLOCKS[sizes >> 4], bool(flags & 32), bool(flags & 16)


def _lz4_blocks(data: Bytes, at: int, has_checksums: bool) -> list[tuple[int, int, bool]]:
    """Beginning and end of each block, and whether it is stored uncompressed."""
    blocks: list[tuple[int, int, bool]] = []
    while True:
        (word,) = struct.unpack_from("<I", data.data, at)
        if word == 0:
            return blocks
        start, end = at + 4, at + 4 + (word & 0x7FFFFFFF)
        if end > len(data):
            raise Damaged("lz4: a block that ends too soon")
        blocks.append((start, end, bool(word >> 31)))
        at = end + 4 * has_checksums


def _lz4_room(data: Bytes) -> int:
    start, most, _, has_checksums = _lz4_head(data)
    blocks = _lz4_blocks(data, start, has_checksums)
    return sum(end - begin if stored else min(most, 255 * (end - begin)) for begin, end, stored in blocks)


def _unpack_lz4(data: Bytes, out: Bytes) -> int:
    """Unpack independent blocks one by one: twice as fast as the frame, whose checksums are redundant with the
    batch's."""
    start, most, stand_alone, has_checksums = _lz4_head(data)
    if not stand_alone:
        return int(_lz4.decompress_into(data, out))
    used = 0
    for begin, end, stored in _lz4_blocks(data, start, has_checksums):
        if stored:
            out[used : used + end - begin] = data[begin:end]
            used += end - begin
        else:
            size = min(most, 255 * (end - begin))
            target = out[used : used + size]
            used += int(_lz4.decompress_block_into(data[begin:end], target, output_len=size))
    return used


def _zstd_room(data: Bytes) -> int:
    """The maximum size from the blocks of all frames (RFC 8878, 3.1.1)."""
    at = total = 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data.data, at)
        if magic != _ZSTD_MAGIC:
            raise Damaged("zstd: no frame")
        descriptor = int(data[at + 4])
        has_window, has_checksum = not descriptor & 32, bool(descriptor & 4)
        content = (int(not has_window), 2, 4, 8)[descriptor >> 6]
        at += 5 + has_window + (0, 1, 2, 4)[descriptor & 3] + content
        is_last = False
        while not is_last:
            head = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16
            is_last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
            total += _ZSTD_BLOCK if kind == 2 else size
            at += 3 + (1 if kind == 1 else size)
        at += 4 * has_checksum
    return total


def _snappy_blocks(data: Bytes) -> list[Bytes]:
    if data[: len(_XERIAL)].tobytes() != _XERIAL:
        return [data]
    blocks, at = [], _XERIAL_HEAD
    while at < len(data):
        (size,) = struct.unpack_from(">i", data.data, at)
        if not 0 < size <= len(data) - at - 4:
            raise Damaged("snappy: a block that ends too soon")
        blocks.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return blocks


def _unpack_snappy(data: Bytes, out: Bytes) -> int:
    used = 0
    for block in _snappy_blocks(data):
        used += int(_snappy.decompress_raw_into(block, out[used:]))
    return used


def _unpack_gzip(data: Bytes, out: Bytes) -> int:
    unpacked = _gzip.decompressobj(_GZIP_WINDOW).decompress(data, len(out) + 1)
    if len(unpacked) != len(out):
        raise Damaged("gzip: another size than its trailer says")
    out.data[:] = unpacked
    return len(unpacked)
