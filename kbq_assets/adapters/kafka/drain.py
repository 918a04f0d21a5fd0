"""Kernels that copy librdkafka's messages into chunks: no Python object per record.

They read ``rd_kafka_message_t`` at the offsets of the 64-bit ABI, and call librdkafka's functions by address.
Messages are addresses in an int64 array.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import (
    call_native,
    copy_bytes,
    copy_memory,
    kernel,
    read_byte,
    read_int,
    read_long,
    store_byte,
)
from kbq_assets.wire.records.scan import is_utf8, write_long

RECORD: Final = 0
BEYOND: Final = 1
"""At or after the range's end."""
EVENT: Final = 2
"""The end of the partition, or an error."""

PAYLOAD: Final = 24
"""Offset of ``payload`` in the message; its length follows."""
KEY: Final = 40
"""Offset of ``key``; its length follows."""
OFFSET: Final = 56
"""Offset of the record's own ``offset``."""
_LOW_32: Final = 0xFFFFFFFF
#: Maximum bytes of an encoded long.
_LONG: Final = 10


@kernel
def survey(messages: Any, from_index: int, count: int, until: int, size: int, kinds: Any, sums: Any) -> int:
    """Classify each message, and add to ``sums``: records, bytes of values, bytes of keys, events.

    Stops after the record with which the values reach ``size`` bytes; returns the index after it.
    """
    for i in range(from_index, count):
        if sums[1] >= size > 0:
            return i
        message = messages[i]
        if read_int(message) != 0:
            kinds[i] = EVENT
            sums[3] += 1
        elif read_long(message + OFFSET) >= until:
            kinds[i] = BEYOND
        else:
            kinds[i] = RECORD
            sums[0] += 1
            sums[1] += read_long(message + PAYLOAD + 8)
            sums[2] += read_long(message + KEY + 8)
    return count


@kernel
def copy_facts(
    messages: Any, count: int, kinds: Any, timestamp: int, scratch: int, offsets: Any, timestamps: Any
) -> None:
    """Copy offsets and timestamps of the records; ``timestamp`` is ``rd_kafka_message_timestamp``."""
    row = 0
    for i in range(count):
        if kinds[i] == RECORD:
            offsets[row] = read_long(messages[i] + OFFSET)
            timestamps[row] = call_native(timestamp, (messages[i], scratch))
            row += 1


@kernel
def copy_spans(messages: Any, count: int, kinds: Any, at: int, buffer: Any, starts: Any, ends: Any) -> None:
    """Copy the values (``at`` is PAYLOAD) or keys (KEY) of the records."""
    row = position = 0
    for i in range(count):
        if kinds[i] != RECORD:
            continue
        address, length = read_long(messages[i] + at), read_long(messages[i] + at + 8)
        if address == 0:
            starts[row] = ends[row] = -1
        else:
            copy_memory(buffer, position, address, length)
            starts[row] = position
            position += length
            ends[row] = position
        row += 1


@kernel
def headers_room(messages: Any, count: int, kinds: Any, functions: Any) -> int:
    """Bytes that suffice for the encoded headers of all records, including the replacement of unreadable ones.

    ``functions`` holds the addresses of ``rd_kafka_message_headers``, ``rd_kafka_header_cnt``,
    ``rd_kafka_header_get_all``, and of three words for their results.
    """
    room = 0
    for i in range(count):
        if kinds[i] != RECORD:
            continue
        room += 64
        total, at = _count_headers(messages[i], functions)
        for h in range(total):
            name, _, size = _header(at, h, functions)
            room += _length(name) + size + 3 * _LONG
    return room


@kernel
def copy_headers(
    messages: Any,
    count: int,
    kinds: Any,
    functions: Any,
    unreadable: Any,
    buffer: Any,
    starts: Any,
    ends: Any,
) -> None:
    """Write the records' headers as Avro arrays; ``unreadable`` if a name is not UTF-8."""
    row = position = 0
    for i in range(count):
        if kinds[i] != RECORD:
            continue
        starts[row] = position
        end = _encode_headers(messages[i], functions, buffer, position)
        if end < 0:
            copy_bytes(buffer, position, unreadable, 0, len(unreadable))
            end = position + len(unreadable)
        ends[row] = position = end
        row += 1


@kernel
def destroy(messages: Any, count: int, function: int) -> None:
    """Free the messages; ``function`` is ``rd_kafka_message_destroy``."""
    for i in range(count):
        call_native(function, (messages[i],))


@kernel
def _encode_headers(message: int, functions: Any, buffer: Any, position: int) -> int:
    """The position after the headers; -1 if a name is not UTF-8."""
    total, at = _count_headers(message, functions)
    if total:
        position = write_long(buffer, position, total)
    for h in range(total):
        name, value, size = _header(at, h, functions)
        length = _length(name)
        position = write_long(buffer, position, length)
        copy_memory(buffer, position, name, length)
        if not is_utf8(buffer, position, position + length):
            return -1
        position = write_long(buffer, position + length, 0 if value == 0 else 1)
        if value != 0:
            position = write_long(buffer, position, size)
            copy_memory(buffer, position, value, size)
            position += size
    store_byte(buffer, position, 0)
    return position + 1


@kernel
def _count_headers(message: int, functions: Any) -> tuple[int, int]:
    """The number of headers, and librdkafka's list of them; 0 if it cannot parse them."""
    if call_native(functions[0], (message, functions[3])) & _LOW_32 != 0:
        return 0, 0
    headers = read_long(functions[3])
    return call_native(functions[1], (headers,)), headers


@kernel
def _header(headers: int, index: int, functions: Any) -> tuple[int, int, int]:
    """Addresses of name and value, and the value's size."""
    place = functions[3]
    call_native(functions[2], (headers, index, place, place + 8, place + 16))
    return read_long(place), read_long(place + 8), read_long(place + 16)


@kernel
def _length(text: int) -> int:
    """Bytes before the NUL."""
    length = 0
    while read_byte(text + length) != 0:
        length += 1
    return length


def addresses(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Addresses of functions and buffers, as the kernels expect them."""
    return np.array(values, np.int64)
