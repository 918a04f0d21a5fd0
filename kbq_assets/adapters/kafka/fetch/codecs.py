"""Unpacks the records of a batch (gzip, snappy, lz4, zstd) into a buffer of known size.

The formats give the maximum size of their contents. Larger contents count as damaged, so memory is bounded. A batch may
consist of several consecutive gzip members, lz4 frames or zstd frames.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any, Final

import cramjam
import numpy as np
from isal import isal_zlib

from kbq_assets.adapters.kafka.fetch import kernels
from kbq_assets.adapters.kafka.fetch.errors import Damaged
from kbq_assets.wire.chunk import Bytes, Longs

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

#: snappy-java's framing: magic, two versions, then lengths and blocks. librdkafka sends a bare block.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = 16
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK: Final = 128 * 1024
_GZIP_WINDOW: Final = 31
#: A member's header: magic, method, flags, time, level, system. Packed bytes look like one at one of 2**37 positions.
_GZIP_HEAD: Final = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)
#: Packed bytes to decompress at once, which unpack to at most 17 MB.
_GZIP_PIECE: Final = 16 * 1024
#: Most blocks of a batch. Clients' blocks have 16 kB or more, so 256 MB have 16,000 blocks.
_MOST_BLOCKS: Final = 100_000
#: More blocks than most batches have. Producers' batches have 16 kB to 1 MB, in blocks of 64 kB or more.
_USUAL_BLOCKS: Final = 32
_LZ4_DAMAGES: Final = {
    kernels.NO_FRAME: "no frame",
    kernels.CUT_BLOCK: "a block that ends too soon",
    kernels.TOO_MANY_BLOCKS: f"more than {_MOST_BLOCKS} blocks",
}

_lz4: Any = cramjam.lz4
_snappy: Any = cramjam.snappy
_zstd: Any = cramjam.zstd
_gzip: Any = isal_zlib
_IsalError: type[Exception] = _gzip.error


def room(codec: int, data: Bytes, most_bytes: int) -> int:
    """The maximum number of unpacked bytes. If it exceeds ``most_bytes``, any number above that. Raises Damaged."""
    try:
        if codec == NONE:
            return len(data)
        if codec == LZ4:
            return _lz4_pieces(data)[0]
        if codec == ZSTD:
            return _zstd_room(data)
        if codec == SNAPPY:
            return sum(_snappy.decompress_raw_len(block) for block in _snappy_blocks(data))
        if codec == GZIP:
            return _gzip_room(data, most_bytes)
    except (struct.error, IndexError, cramjam.DecompressionError, _IsalError) as error:
        raise Damaged(f"{NAMES[codec]}: {error}") from error
    raise Damaged(f"codec {codec}")


def unpack(codec: int, data: Bytes, out: Bytes) -> int:
    """Unpack into ``out``, which has `room` bytes, and return the number of bytes. Raises Damaged."""
    if codec == NONE:
        out[:] = data
        return len(data)
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


def _counted(blocks: int) -> int:
    if blocks == _MOST_BLOCKS:
        raise Damaged(f"more than {_MOST_BLOCKS} blocks")
    return blocks + 1


def _lz4_pieces(data: Bytes) -> tuple[int, Longs]:
    """The most bytes to which all frames unpack, and their pieces. A kernel (`kernels.lz4_pieces`) finds them, because
    that would take as long as unpacking in Python."""
    pieces = np.empty((_USUAL_BLOCKS, kernels.PIECE_COLUMNS), np.int64)
    most, count = kernels.lz4_pieces(data, _MOST_BLOCKS, pieces)
    if count > len(pieces):
        pieces = np.empty((count, kernels.PIECE_COLUMNS), np.int64)
        most, count = kernels.lz4_pieces(data, _MOST_BLOCKS, pieces)
    if most < 0:
        raise Damaged(f"lz4: {_LZ4_DAMAGES[most]}")
    return most, pieces[:count]


def _unpack_lz4(data: Bytes, out: Bytes) -> int:
    """Unpack independent blocks one by one. This is twice as fast as unpacking the frame, whose checksums the batch's
    checksum makes redundant."""
    used = 0
    for kind, begin, end, most in _lz4_pieces(data)[1].tolist():
        packed = data[begin:end]
        if kind == kernels.FRAME:
            used += int(_lz4.decompress_into(packed, out[used:]))
        elif kind == kernels.STORED:
            out[used : used + most] = packed
            used += most
        else:
            target = out[used : used + most]
            used += int(_lz4.decompress_block_into(packed, target, output_len=most))
    return used


def _zstd_room(data: Bytes) -> int:
    """The maximum size from the blocks of all frames (RFC 8878, 3.1.1)."""
    at = total = count = 0
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
            count = _counted(count)
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
        _counted(len(blocks))
    return blocks


def _unpack_snappy(data: Bytes, out: Bytes) -> int:
    used = 0
    for block in _snappy_blocks(data):
        used += int(_snappy.decompress_raw_into(block, out[used:]))
    return used


def _gzip_room(data: Bytes, most_bytes: int) -> int:
    """The size in the trailer. If there are several members, their size is only known by unpacking."""
    if _GZIP_HEAD.search(data.data, 1) is None:
        return int(struct.unpack("<I", data[-4:].data)[0])
    size = 0
    for piece in _gzip_pieces(data, most_bytes):
        size += len(piece)
    return size


def _unpack_gzip(data: Bytes, out: Bytes) -> int:
    used = 0
    for piece in _gzip_pieces(data, len(out)):
        if used + len(piece) > len(out):
            break
        out[used : used + len(piece)] = np.frombuffer(piece, np.uint8)
        used += len(piece)
    else:
        if used == len(out):
            return used
    raise Damaged("gzip: its size differs from its trailer")


def _gzip_pieces(data: Bytes, most_bytes: int) -> Iterator[bytes]:
    """The contents of all members, in pieces. Ends after the first byte above ``most_bytes``."""
    at = used = count = 0
    member = _gzip.decompressobj(_GZIP_WINDOW)
    while at < len(data) and used <= most_bytes:
        if member.eof:
            member, count = _gzip.decompressobj(_GZIP_WINDOW), _counted(count)
        packed = data[at : at + _GZIP_PIECE]
        unpacked = member.decompress(packed, most_bytes - used + 1)
        used += len(unpacked)
        at += len(packed) - len(member.unused_data) - len(member.unconsumed_tail)
        yield unpacked
    if used <= most_bytes and not member.eof:
        raise Damaged("gzip: it ends too soon")
