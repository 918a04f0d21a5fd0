"""Decodes records to Arrow arrays with a compiled kernel, in a tenth of fastavro's time.

The kernel only accepts blocks that it decodes exactly. It leaves all others to fastavro, which accepts them or reports
the problem. Each value of the schema has a slot, which is a separate array. Records with lists are read twice, first to
count the values per slot.
"""

# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kbq_assets.wire.arrow.container import Block
from kbq_assets.wire.arrow.errors import TooManyValues
from kbq_assets.wire.arrow.nested import Kind, Node, program_of
from kbq_assets.wire.chunk import PADDING
from kbq_assets.wire.jit import copy_bytes, inlined, kernel, load_word, store_word
from kbq_assets.wire.records.scan import read_long

Numbers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Offsets: TypeAlias = npt.NDArray[np.int32]
Integer: TypeAlias = Any

_NULL, _BOOLEAN, _INT, _LONG = int(Kind.NULL), int(Kind.BOOLEAN), int(Kind.INT), int(Kind.LONG)
_FLOAT, _DOUBLE, _BYTES, _STRING = int(Kind.FLOAT), int(Kind.DOUBLE), int(Kind.BYTES), int(Kind.STRING)
_FIXED, _ENUM = int(Kind.FIXED), int(Kind.ENUM)
_STRUCT, _LIST, _END = int(Kind.STRUCT), int(Kind.LIST), int(Kind.END)
_UNION, _JUMP = int(Kind.UNION), int(Kind.JUMP)
#: Longer texts are worth the call of a copy function.
_FEW_BYTES: Final = 32
_WITH_LENGTH: Final = (Kind.BYTES, Kind.STRING, Kind.FIXED)
#: A value takes 17 bytes here, besides those in Arrow, but may take only one in Avro.
_BATCH_VALUES: Final = 2_000_000
_START, _USED, _REMAINING = 0, 1, 2
#: The limit of Arrow's offsets in lists and texts.
_MOST: Final = 1 << 31


def read_records(blocks: Sequence[Block], record: Node) -> Mapping[str, pa.Array] | None:
    """The raw values of each field, None if the kernel does not accept the blocks. Raises TooManyValues if there are
    several blocks with more values than a batch may have."""
    data = np.frombuffer(b"".join((*(block.data for block in blocks), bytes(PADDING))), np.uint8)
    ends = np.cumsum([len(block.data) for block in blocks], dtype=np.int64)
    counts = np.array([block.count for block in blocks], np.int64)
    ordered = np.column_stack([ends, counts])
    program = np.array(program_of(record), np.int64).reshape(-1, 5)
    rows, slots = int(counts.sum()), np.zeros((3, record.slots), np.int64)
    if record.is_flat:
        slots[_USED] = rows
    elif not _read(data, ordered, program, slots, *_room(0)):
        return None
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(slots[_USED])])
    if len(blocks) > 1 and starts[-1] > _BATCH_VALUES:
        raise TooManyValues
    slots[_START], slots[_USED] = starts[:-1], 0
    values, lengths, valid = _room(int(starts[-1]))
    if not _read(data, ordered, program, slots, values, lengths, valid):
        return None
    try:
        slotted = _Slotted(data, starts, values, lengths, valid)
        return {name: slotted.array(node, rows) for name, node in record.members}
    except pa.ArrowInvalid:  # text that is not UTF-8
        return None


def _room(count: int) -> tuple[Numbers, Numbers, Bytes]:
    return np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.uint8)


@dataclass(frozen=True)
class _Slotted:
    """The values of all slots, in one array."""

    data: Bytes
    starts: Numbers
    values: Numbers
    lengths: Numbers
    valid: Bytes

    def array(self, node: Node, count: int) -> pa.Array:
        """The ``count`` values of a node. Raises ArrowInvalid."""
        if node.slot < 0:
            return self._struct(node, count, None)
        part = slice(self.starts[node.slot], self.starts[node.slot + 1])
        lengths, valid = self.lengths[part], self.valid[part]
        if node.kind is Kind.STRUCT:
            return self._struct(node, int(valid.sum()), valid)
        if node.kind is Kind.LIST:
            return self._list(node, lengths, valid)
        if node.kind is Kind.UNION:
            return self._union(node, self.values[part])
        return _scalar(node, self.data, self.values[part], lengths, valid)

    def _struct(self, node: Node, count: int, valid: Bytes | None) -> pa.Array:
        """Records. ``count`` of them are not null; only these have values in the slots."""
        arrays = [self.array(member, count) for _, member in node.members]
        names = [name for name, _ in node.members]
        if valid is None or count == len(valid):
            return pa.StructArray.from_arrays(arrays, names) if arrays else _no_fields(count)
        if not arrays:
            return _no_fields(len(valid), valid)
        spread = [_spread(array, valid != 0) for array in arrays]
        return pa.StructArray.from_arrays(spread, names, mask=pa.array(valid == 0))

    def _union(self, node: Node, branches: Numbers) -> pa.Array:
        """Records with one field set, for the branch. Only values of a branch are in its slots."""
        arrays = []
        for branch, (_, member) in zip(node.branches, node.members, strict=True):
            chosen = branches == branch
            arrays.append(_spread(self.array(member, int(chosen.sum())), chosen))
        names = [name for name, _ in node.members]
        return pa.StructArray.from_arrays(arrays, names, mask=pa.array(branches == node.null_branch))

    def _list(self, node: Node, lengths: Numbers, valid: Bytes) -> pa.Array:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        if offsets[-1] >= _MOST:
            raise pa.ArrowInvalid("more than 2 Gi items in one batch of a column")
        [(_, item)] = node.members
        items = self.array(item, int(offsets[-1]))
        mask = None if node.null_branch < 0 else pa.array(valid == 0)
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items, mask=mask)


def _spread(array: pa.Array, places: npt.NDArray[np.bool_]) -> pa.Array:
    """The values of an array spread to these positions, with nulls elsewhere."""
    if len(array) == len(places):
        return array
    return array.take(pa.array(np.cumsum(places, dtype=np.int64) - 1, mask=~places))


def _no_fields(count: int, valid: Bytes | None = None) -> pa.Array:
    """Records without fields."""
    return pa.array([{} if valid is None or valid[i] else None for i in range(count)], pa.struct([]))


def _scalar(node: Node, data: Bytes, values: Numbers, lengths: Numbers, valid: Bytes) -> pa.Array:
    if node.kind is Kind.NULL:
        return pa.nulls(len(values))
    if node.kind in _WITH_LENGTH:
        return _text(node, data, values, lengths, valid)
    missing = None if node.null_branch < 0 else valid == 0
    match node.kind:
        case Kind.BOOLEAN:
            return pa.array(values != 0, mask=missing)
        case Kind.INT:
            return pa.array(values.astype(np.int32), mask=missing)
        case Kind.FLOAT:
            return pa.array(values.astype(np.uint32).view(np.float32), mask=missing)
        case Kind.DOUBLE:
            return pa.array(values.view(np.float64).copy(), mask=missing)
        case Kind.ENUM:
            return pa.array(node.symbols).take(pa.array(values, mask=missing))
    return pa.array(values.copy(), mask=missing)  # a copy, because a view would keep all slots in memory


def _text(node: Node, data: Bytes, starts: Numbers, lengths: Numbers, valid: Bytes) -> pa.Array:
    size = int(lengths.sum())
    if size >= _MOST:
        raise pa.ArrowInvalid("more than 2 GiB in one batch of a column")
    offsets, out = np.empty(len(starts) + 1, np.int32), np.empty(size + PADDING, np.uint8)
    _gather(data, starts, lengths, offsets, out)
    validity = None if node.null_branch < 0 else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out[:size])]
    array = pa.Array.from_buffers(pa.binary(), len(starts), buffers)
    return array.cast(pa.string()) if node.kind is Kind.STRING else array  # the cast checks UTF-8


@inlined
def _value(
    data: Bytes, position: Integer, end: Integer, kind: Integer, size: Integer
) -> tuple[Integer, Integer, Integer]:
    """A value (bits of floats, start of bytes), its length, and the position after it, -1 if it is malformed."""
    if kind == _NULL:
        return np.int64(0), np.int64(0), position
    if kind in (_BOOLEAN, _FLOAT, _DOUBLE):
        width = 1 if kind == _BOOLEAN else 4 if kind == _FLOAT else 8
        bits = np.int64(0)
        if width > end - position:
            return bits, np.int64(0), -1
        for i in range(width):
            bits |= np.int64(data[position + i]) << (8 * i)
        return bits, np.int64(0), -1 if kind == _BOOLEAN and bits > 1 else position + width
    number: Integer = np.int64(size)
    if kind != _FIXED:
        number, position = read_long(data, position, end)
    if kind in (_BYTES, _STRING, _FIXED):
        fits = position >= 0 and 0 <= number <= end - position
        return position, number, position + number if fits else -1
    bad = (kind == _INT and not -0x8000_0000 <= number <= 0x7FFF_FFFF) or (
        kind == _ENUM and not 0 <= number < size
    )
    return number, np.int64(0), -1 if bad else position


@kernel
def _gather(data: Bytes, starts: Numbers, lengths: Numbers, offsets: Offsets, out: Bytes) -> None:
    """Copy consecutive spans, and store their ends. Both arrays must be padded."""
    place: Integer = 0
    offsets[0] = 0
    for row in range(len(starts)):
        start, size = starts[row], lengths[row]
        if size > _FEW_BYTES:
            copy_bytes(out, place, data, start, size)
        else:
            for i in range(0, size, 8):
                store_word(out, place + i, load_word(data, start + i))
        place += size
        offsets[row + 1] = place


@inlined
def _block(data: Bytes, position: Integer, end: Integer) -> tuple[Integer, Integer]:
    """The number of items in a list's next block, and the position after it, -1 if malformed. If there are more items
    than bytes, items take no bytes, and fastavro decides how many there may be."""
    count: Integer = 0
    count, position = read_long(data, position, end)
    if position >= 0 and count < 0:
        count = -count
        _, position = read_long(data, position, end)
    if position < 0 or count < 0 or count > end - position:
        return np.int64(0), np.int64(-1)
    return count, position


@kernel
def _read(
    data: Bytes,
    blocks: Numbers,
    program: Numbers,
    slots: Numbers,
    values: Numbers,
    lengths: Numbers,
    valid: Bytes,
) -> bool:
    """Decode all records to numbers, bits of floats and starts of bytes. Returns False if anything is wrong.

    ``blocks`` are ends and record counts, ``program`` consists of `nested.Step`s. ``slots`` has the start of each
    slot's values, their number so far, and the items left in a list's block. If ``values`` is empty, values are only
    counted.
    """
    starts, used, remaining = slots[_START], slots[_USED], slots[_REMAINING]
    fill = len(values) > 0
    position: Integer = 0
    for block in range(len(blocks)):
        end = blocks[block, 0]
        for _ in range(blocks[block, 1]):
            step: Integer = 0
            while step < len(program):
                kind, null_branch, slot = program[step, 0], program[step, 1], program[step, 4]
                if kind == _END:
                    remaining[slot] -= 1
                    if remaining[slot] == 0:
                        count, position = _block(data, position, end)
                        if position < 0:
                            return False
                        remaining[slot] = count
                        if fill:
                            lengths[starts[slot] + used[slot] - 1] += count
                    step = program[step, 3] + 1 if remaining[slot] > 0 else step + 1
                    continue
                if kind == _JUMP:
                    step = program[step, 3]
                    continue
                branch: Integer = -1
                if null_branch >= 0 or kind == _UNION:
                    branch, position = read_long(data, position, end)
                    branches = program[step, 2] if kind == _UNION else 2
                    if position < 0 or not 0 <= branch < branches:
                        return False
                place = starts[slot] + used[slot]
                used[slot] += 1
                if kind == _UNION:
                    if fill:
                        values[place] = branch
                    step += 1 + branch
                    continue
                if null_branch >= 0 and branch == null_branch:
                    step = program[step, 3]
                    continue
                if fill:
                    valid[place] = 1
                if kind == _LIST:
                    count, position = _block(data, position, end)
                    if position < 0:
                        return False
                    remaining[slot] = count
                    if fill:
                        lengths[place] = count
                    step = step + 1 if count > 0 else program[step, 3]
                    continue
                if kind != _STRUCT:
                    number, length, position = _value(data, position, end, kind, program[step, 2])
                    if position < 0:
                        return False
                    if fill:
                        values[place], lengths[place] = number, length
                step += 1
        if position != end:
            return False
    return True
