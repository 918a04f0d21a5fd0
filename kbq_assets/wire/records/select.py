"""Selects the table that each record chooses by its content. Records with the same inputs are grouped, and the chooser
is called once per group.

An input is a captured field, the key, or a header: a span of bytes for each record. Grouping compares the bytes of all
inputs without a Python loop. Inputs are decoded once per group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import Bytes, Chunk, Longs, Spans, decode_long
from kbq_assets.wire.jit import inlined, int64, kernel, load_byte, load_word
from kbq_assets.wire.records.program import ROUTED, Program, RoutedType
from kbq_assets.wire.records.scan import read_long
from kbq_assets.wire.records.verdicts import Captures

Value: TypeAlias = str | int | bool | bytes | None
"""An input of a record. Fields are decoded, key and headers are bytes. None: null, missing, or not in the schema."""

T = TypeVar("T")

_MOST_KNOWN = 10_000
"""Most distinct inputs to cache, because there may be as many keys as records."""

_JSON = 2
"""The kind of a value that a translator has read."""

_MOST_BYTES = 1_000
"""Most bytes of inputs to cache: longer ones cannot be table names."""


@dataclass(frozen=True, slots=True)
class Chooser(Generic[T]):
    """Chooses the table of records with the same inputs: ``key``, ``header.<name>`` or ``field.<path>``. Fields are in
    the order in which the schema's program captures them."""

    inputs: tuple[str, ...]
    choose: Callable[[tuple[Value, ...]], T]


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """One input of some records: for each a kind (0: null) and a span in one buffer."""

    buffer: Bytes
    kinds: NDArray[np.uint8]
    starts: Longs
    ends: Longs

    def of(self, index: int) -> tuple[int, bytes]:
        kind = int(self.kinds[index])
        return kind, self.buffer[self.starts[index] : self.ends[index]].tobytes() if kind else b""


class Selector(Generic[T]):
    """Splits records of one schema by their choices. Caches choices, so use one selector per window and schema."""

    def __init__(self, chooser: Chooser[T], program: Program) -> None:
        self._chooser = chooser
        self._program = program
        self._chosen: dict[tuple[tuple[int, bytes], ...], T] = {}

    def split(self, chunk: Chunk, rows: Longs, captures: Captures) -> Iterator[tuple[T, Longs]]:
        """Yield each choice with ascending indexes into ``rows``. Errors of the chooser propagate."""
        if not len(rows):
            return
        inputs = self._inputs(chunk, rows, captures)
        groups, firsts = _grouped(inputs, len(rows))
        # Different inputs with the same choice form one group, so that rows are appended to a file in offset order.
        numbers: dict[int, int] = {}
        distinct: list[T] = []
        chosen = [self._choose(inputs, first) for first in firsts]
        for each in chosen:
            if numbers.setdefault(id(each), len(distinct)) == len(distinct):
                distinct.append(each)
        of_group = np.array([numbers[id(each)] for each in chosen], np.int64)
        yield from zip(distinct, _picked(of_group[groups], len(distinct)), strict=True)

    def _choose(self, inputs: Sequence[_Input], index: int) -> T:
        key = tuple(each.of(index) for each in inputs)
        known = self._chosen.get(key)
        if known is not None:
            return known
        values = (_decoded(self._program.routed, *each) for each in key)
        chosen = self._chooser.choose(tuple(values))
        if sum(len(data) for _, data in key) <= _MOST_BYTES:
            if len(self._chosen) >= _MOST_KNOWN:
                self._chosen.clear()
            self._chosen[key] = chosen
        return chosen

    def _inputs(self, chunk: Chunk, rows: Longs, captures: Captures) -> list[_Input]:
        slot = len(captures.kinds) - self._program.routes
        scalars = iter(chunk.chosen_by or ())
        inputs = []
        for name in self._chooser.inputs:
            source, _, rest = name.partition(".")
            if source != "field":
                inputs.append(_of_spans(_spans(chunk, source, rows, rest)))
            elif chunk.chosen_by is not None:
                inputs.append(_of_scalars(next(scalars), rows))
            elif slot < len(captures.kinds):
                inputs.append(
                    _Input(chunk.buffer, captures.kinds[slot], captures.starts[slot], captures.ends[slot])
                )
                slot += 1
            else:  # a tombstone has no fields
                inputs.append(_of_spans(_nothing(chunk, len(rows))))
        return inputs


def _spans(chunk: Chunk, source: str, rows: Longs, name: str) -> Spans:
    found = chunk.keys if source == "key" else chunk.headers
    if found is None:
        raise EncoderMisuse(f"tables are chosen by {source}, but the chunk has none")
    if source == "key":
        return Spans(found.buffer, found.starts[rows], found.ends[rows])
    starts, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    wanted = np.frombuffer(bytearray(name.encode()), np.uint8)
    _find_headers(found.buffer, found.starts, found.ends, rows, wanted, starts, ends)
    return Spans(found.buffer, starts, ends)


def _of_spans(spans: Spans) -> _Input:
    return _Input(spans.buffer, (spans.starts >= 0).astype(np.uint8), spans.starts, spans.ends)


def _of_scalars(spans: Spans, rows: Longs) -> _Input:
    starts, ends = spans.starts[rows], spans.ends[rows]
    return _Input(spans.buffer, np.where(starts >= 0, _JSON, 0).astype(np.uint8), starts, ends)


def _nothing(chunk: Chunk, count: int) -> Spans:
    none = np.full(count, -1, np.int64)
    return Spans(chunk.buffer, none, none)


def _decoded(types: tuple[RoutedType, ...], kind: int, data: bytes) -> Value:
    """Decode a value by its kind: 0 null, 1 bytes, 2 a JSON scalar, from `ROUTED` on a field of that type."""
    if kind == _JSON:
        scalar: str | int | bool = json.loads(data)
        return scalar
    if kind < ROUTED:
        return data if kind else None
    type_ = types[kind - ROUTED]
    if type_.kind == "boolean":
        return data == b"\x01"
    number, position = decode_long(data, 0)
    if type_.kind == "enum":
        return type_.symbols[number]
    return data[position:].decode() if type_.kind == "string" else number


def _grouped(inputs: Sequence[_Input], count: int) -> tuple[Longs, list[int]]:
    """The group number of each record, and the first record of each group, in order."""
    hashes = np.zeros(count, np.uint64)
    for each in inputs:
        _mix(each.buffer, each.kinds, each.starts, each.ends, hashes)
    groups, firsts = np.empty(count, np.int64), np.empty(count, np.int64)
    found = _group(hashes, np.full(_power_of_two(2 * count), -1, np.int64), groups, firsts)
    same = all(_are_equal(each.buffer, each.kinds, each.starts, each.ends, groups, firsts) for each in inputs)
    return (groups, firsts[:found].tolist()) if same else _grouped_slowly(inputs, count)


def _grouped_slowly(inputs: Sequence[_Input], count: int) -> tuple[Longs, list[int]]:
    """The same for different inputs with equal hashes. This does not happen by chance, but a producer might try."""
    seen: dict[tuple[tuple[int, bytes], ...], int] = {}
    firsts: list[int] = []
    groups = np.empty(count, np.int64)
    for index in range(count):
        groups[index] = seen.setdefault(tuple(each.of(index) for each in inputs), len(firsts))
        if groups[index] == len(firsts):
            firsts.append(index)
    return groups, firsts


def _picked(numbers: Longs, count: int) -> Iterator[Longs]:
    """The indexes of each number below ``count``, ascending."""
    if count == 1:
        yield np.arange(len(numbers), dtype=np.int64)
        return
    order = np.argsort(
        numbers.astype(np.uint16 if count < 2**16 else np.int64), kind="stable"
    )  # a radix sort
    yield from np.split(order, np.cumsum(np.bincount(numbers, minlength=count))[:-1])


def _power_of_two(least: int) -> int:
    return 1 << max(4, (least - 1).bit_length())


# Constants of MurmurHash3's finalizer; https://github.com/aappleby/smhasher, public domain.
_FACTOR, _SHIFT = np.uint64(0xFF51AFD7ED558CCD), np.uint64(33)
_EIGHT = np.uint64(8)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def _word(buffer: Any, position: int, end: int) -> Any:
    """Load eight bytes, with those from ``end`` on set to 0."""
    word = load_word(buffer, position)
    if end - position >= 8:
        return word
    return word & (_ALL >> (_EIGHT * np.uint64(8 - (end - position))))


@inlined
def _mixed(value: Any, word: Any) -> Any:
    value = (value ^ word) * _FACTOR
    return value ^ (value >> _SHIFT)


@kernel
def _mix(buffer: Any, kinds: Any, starts: Any, ends: Any, hashes: Any) -> None:
    for k in range(len(kinds)):
        value = _mixed(hashes[k], np.uint64(kinds[k]) + np.uint64(1))
        if kinds[k] != 0:
            end = ends[k]
            value = _mixed(value, np.uint64(end - starts[k]))
            for position in range(starts[k], end, 8):
                value = _mixed(value, _word(buffer, position, end))
        hashes[k] = value


@kernel
def _group(hashes: Any, table: Any, groups: Any, firsts: Any) -> int:
    """Number distinct hashes in the order of their first records. ``table`` is a hash table of these numbers."""
    mask = len(table) - 1
    found = 0
    for k in range(len(hashes)):
        place = int64(hashes[k] & np.uint64(mask))
        while table[place] >= 0 and hashes[firsts[table[place]]] != hashes[k]:
            place = (place + 1) & mask
        if table[place] < 0:
            table[place] = found
            firsts[found] = k
            found += 1
        groups[k] = table[place]
    return found


@kernel
def _are_equal(buffer: Any, kinds: Any, starts: Any, ends: Any, groups: Any, firsts: Any) -> bool:
    for k in range(len(kinds)):
        first = firsts[groups[k]]
        if kinds[k] != kinds[first]:
            return False
        if kinds[k] != 0:
            size = ends[k] - starts[k]
            if size != ends[first] - starts[first]:
                return False
            for offset in range(0, size, 8):
                one = _word(buffer, starts[k] + offset, ends[k])
                if one != _word(buffer, starts[first] + offset, ends[first]):
                    return False
    return True


@inlined
def _is_name(buffer: Any, position: int, size: int, name: Any) -> bool:
    same = size == len(name)
    for index in range(size if same else 0):
        same = same and load_byte(buffer, position + index) == load_byte(name, index)
    return same


@kernel
def _find_headers(
    buffer: Any, starts: Any, ends: Any, rows: Any, name: Any, found_starts: Any, found_ends: Any
) -> None:
    """Find the value of each record's last header with a name, -1 if it is missing or null. Headers are an Avro array
    that a reader encoded."""
    for k in range(len(rows)):
        found_starts[k] = found_ends[k] = -1
        position, end = starts[rows[k]], ends[rows[k]]
        left = 0
        while 0 <= position < end:
            if left == 0:
                left, position = read_long(buffer, position, end)
                if left == 0:
                    break
            size, position = read_long(buffer, position, end)
            wanted = _is_name(buffer, position, size, name)
            is_null = load_byte(buffer, position + size) == 0
            position += size + 1
            size = 0
            if not is_null:
                size, position = read_long(buffer, position, end)
            if wanted:
                found_starts[k] = -1 if is_null else position
                found_ends[k] = -1 if is_null else position + size
            position += size
            left -= 1
