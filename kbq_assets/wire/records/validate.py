"""Validates records in place, by an interpreter of a :class:`~kbq_assets.wire.records.program.Program` or a JSON
scanner.

One bad record would fail a whole load job, so every record is checked strictly to its end, without decoding it. Bounds
on bytes, depth and items hold for any data. The kernels run without the GIL and without a Python loop per record.
"""

# An interpreter is one long chain of operations, and numba compiles comparisons, but not `in`, to a jump table.
# ruff: noqa: PLR0912, PLR0915, PLR1714, SIM109

from __future__ import annotations

from typing import Any

import numpy as np

from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.jit import inlined, int64, kernel, load_byte, load_item
from kbq_assets.wire.json.scanner import scan_json
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.program import WIDTH, Op, Program
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.scan import (
    bound_size,
    decimal_fits,
    is_utf8,
    read_int,
    read_long,
    read_wide_long,
    skip_int,
    skip_long,
    wide_index,
)
from kbq_assets.wire.records.verdicts import RecordLimits, Validation, blank_validation


def validate_avro(
    chunk: Chunk, program: Program, rows: Longs | None, limits: RecordLimits, *, prefix: int = PREFIX
) -> Validation:
    """Validate the records ``rows`` (None: all) of ``chunk``, skipping ``prefix`` bytes of each."""
    rows = np.arange(len(chunk), dtype=np.int64) if rows is None else rows
    result = blank_validation(len(rows), program.captures)
    _validate_avro(
        (program.code, program.jumps, program.ranges, program.bounds),
        (limits.max_bytes, limits.max_items, limits.max_empty_items),
        np.empty(max(1, limits.max_depth) * _FRAME, np.int64),
        (chunk.buffer, chunk.starts, chunk.ends, rows, prefix),
        (result.reasons, result.positions, result.instructions),
        (result.captures.kinds, result.captures.starts, result.captures.ends),
    )
    return result


def validate_json(chunk: Chunk, rows: Longs | None, limits: RecordLimits) -> Validation:
    """Check that each value is one JSON document in UTF-8 (RFC 8259; no NaN, no lone surrogate escapes).

    OUT_OF_RANGE means a valid document with a number that exceeds a double, which JSON columns refuse.
    """
    rows = np.arange(len(chunk), dtype=np.int64) if rows is None else rows
    result = blank_validation(len(rows), 0)
    _validate_json(
        (chunk.buffer, chunk.starts, chunk.ends, rows),
        (limits.max_bytes, np.empty(max(1, limits.max_json_depth), np.uint8)),
        (result.reasons, result.positions),
    )
    return result


# Numba compiles module constants to literals, but would look up enum members as objects.
_END, _SKIP, _BOOLEAN, _INT, _LONG = int(Op.END), int(Op.SKIP), int(Op.BOOLEAN), int(Op.INT), int(Op.LONG)
_STRING, _BYTES, _NULLABLE, _ENUM = int(Op.STRING), int(Op.BYTES), int(Op.NULLABLE), int(Op.ENUM)
_REFUSE = int(Op.REFUSE)
_UNION, _JUMP, _LOOP, _NEXT = int(Op.UNION), int(Op.JUMP), int(Op.LOOP), int(Op.NEXT)
_EMPTY_ITEMS, _CALL, _RETURN = int(Op.EMPTY_ITEMS), int(Op.CALL), int(Op.RETURN)
_INT_RANGE, _LONG_RANGE = int(Op.INT_RANGE), int(Op.LONG_RANGE)
_DECIMAL_BYTES, _DECIMAL_FIXED = int(Op.DECIMAL_BYTES), int(Op.DECIMAL_FIXED)
_MARK, _CLOSE = int(Op.MARK), int(Op.CLOSE)

_NULL_VALUE, _TOO_LARGE = int(Reason.NULL_VALUE), int(Reason.TOO_LARGE)
_TRUNCATED, _TRAILING = int(Reason.TRUNCATED), int(Reason.TRAILING_BYTES)
_BAD_BOOLEAN, _BAD_ENUM, _BAD_UNION = (
    int(Reason.INVALID_BOOLEAN),
    int(Reason.INVALID_ENUM),
    int(Reason.INVALID_UNION),
)
_BAD_UTF8, _BAD_LENGTH, _BAD_BLOCK = (
    int(Reason.INVALID_UTF8),
    int(Reason.INVALID_LENGTH),
    int(Reason.INVALID_BLOCK),
)
_OUT_OF_RANGE, _TOO_DEEP, _TOO_MANY = (
    int(Reason.OUT_OF_RANGE),
    int(Reason.TOO_DEEP),
    int(Reason.TOO_MANY_ITEMS),
)

_FRAME = 2
"""Numbers per stack frame. For a loop: items left in the block, and the block's stated end or -1. For a call: the
return address."""

_LEAST_LONG = -(2**63)


@inlined
def _block(buffer: Any, position: int, end: int) -> tuple[int, int, int]:
    """The number of items in the next block, its stated end or -1, and the position of its first item or minus a
    reason."""
    count, position = read_long(buffer, position, end)
    if position < 0 or count >= 0:
        return count, -1, position
    size, position = read_long(buffer, position, end)
    if position < 0:
        return 0, -1, position
    if size < 0 or size > end - position or count == _LEAST_LONG:
        return 0, -1, -_BAD_BLOCK
    return -count, position + size, position


@kernel
def _validate_avro(program: Any, limits: Any, stack: Any, records: Any, verdicts: Any, captures: Any) -> None:
    code, jumps, ranges, bounds = program
    max_bytes, max_items, max_empty_items = limits
    buffer, starts, ends, rows, prefix = records
    reasons, positions, instructions = verdicts
    kinds, mark_starts, mark_ends = captures
    for k in range(len(rows)):
        start, end = starts[rows[k]], ends[rows[k]]
        position = start + prefix
        pc = 0
        top = 0
        items = 0
        empty_items = 0
        reason = 0
        if start < 0:
            reason = _NULL_VALUE
        elif end - start > max_bytes:
            reason = _TOO_LARGE
        elif position > end:
            reason = _TRUNCATED
        at, begun = position, pc
        while reason == 0:
            at, begun = position, pc
            op = load_item(code, pc)
            a = load_item(code, pc + 1)
            if op == _STRING:
                byte = load_byte(buffer, position)
                if byte & 0x81 == 0:  # a length below 64
                    position += 1 + (byte >> 1)
                    if position > end:
                        reason = _TRUNCATED
                    elif not is_utf8(buffer, at + 1, position):
                        reason = _BAD_UTF8
                    else:
                        pc += WIDTH
                    continue
                length, position = read_long(buffer, position, end)
                if position < 0:
                    reason = -position
                elif length < 0:
                    reason = _BAD_LENGTH
                elif length > end - position:
                    reason = _TRUNCATED
                elif not is_utf8(buffer, position, position + length):
                    reason = _BAD_UTF8
                else:
                    position += length
                    pc += WIDTH
            elif op == _NULLABLE:
                byte = load_byte(buffer, position) if position < end else -1
                if byte == 2 - a:
                    position += 1
                    pc += WIDTH
                elif byte == a:
                    position += 1
                    pc = load_item(code, pc + 2)
                else:  # invalid, or encoded in more bytes than necessary
                    branch, position = wide_index(buffer, position, end)
                    if position < 0:
                        reason = -position
                    elif branch == a >> 1:
                        pc = load_item(code, pc + 2)
                    elif branch == 1 - (a >> 1):
                        pc += WIDTH
                    else:
                        reason = _BAD_UNION
            elif op == _LONG:
                position = skip_long(buffer, position, end)
                reason = -min(position, 0)
                pc += WIDTH
            elif op == _INT:
                position = skip_int(buffer, position, end)
                reason = -min(position, 0)
                pc += WIDTH
            elif op == _SKIP:
                position += a
                if position > end:
                    reason = _TRUNCATED
                pc += WIDTH
            elif op == _INT_RANGE or op == _LONG_RANGE:
                if op == _INT_RANGE:
                    value, position = read_int(buffer, position, end)
                else:
                    value, position = read_wide_long(buffer, position, end)
                if position < 0:
                    reason = -position
                elif value < ranges[a] or value > ranges[a + 1]:
                    reason = _OUT_OF_RANGE
                else:
                    pc += WIDTH
            elif op == _BYTES or op == _DECIMAL_BYTES:
                length, position = read_long(buffer, position, end)
                if position < 0:
                    reason = -position
                elif length < 0:
                    reason = _BAD_LENGTH
                elif length > end - position:
                    reason = _TRUNCATED
                elif (
                    op == _DECIMAL_BYTES
                    and not 0 < length < bound_size(bounds, a)  # nearly all: no need to compare
                    and not decimal_fits(buffer, position, position + length, bounds, a)
                ):
                    reason = _OUT_OF_RANGE
                else:
                    position += length
                    pc += WIDTH
            elif op == _ENUM or op == _UNION:
                index, position = read_int(buffer, position, end)
                if position < 0:
                    reason = -position
                elif index < 0 or index >= a:
                    reason = _BAD_ENUM if op == _ENUM else _BAD_UNION
                elif op == _ENUM:
                    pc += WIDTH
                else:
                    pc = int64(jumps[load_item(code, pc + 2) + index])
            elif op == _BOOLEAN:
                if position >= end:
                    reason = _TRUNCATED
                elif load_byte(buffer, position) > 1:
                    reason = _BAD_BOOLEAN
                else:
                    position += 1
                    pc += WIDTH
            elif op == _JUMP:
                pc = a
            elif op == _REFUSE:
                reason = a
            elif op == _MARK:
                mark_starts[a, k] = position
                pc += WIDTH
            elif op == _CLOSE:
                mark_ends[a, k] = position
                kinds[a, k] = code[pc + 2]
                pc += WIDTH
            elif op == _LOOP:
                if top == len(stack):
                    reason = _TOO_DEEP
                else:
                    stack[top] = 0
                    stack[top + 1] = -1
                    top += _FRAME
                    pc = a
            elif op == _NEXT:
                if load_item(stack, top - 2) > 0:
                    stack[top - 2] -= 1
                    pc = a
                elif stack[top - 1] >= 0 and stack[top - 1] != position:
                    reason = _BAD_BLOCK
                else:
                    count, stated_end, position = _block(buffer, position, end)
                    if position < 0:
                        reason = -position
                    elif count == 0:
                        top -= _FRAME
                        pc += WIDTH
                    elif count > end - position:  # an item takes at least a byte
                        reason = _TRUNCATED
                    elif items + count > max_items:
                        reason = _TOO_MANY
                    else:
                        items += count
                        stack[top - 2] = count - 1
                        stack[top - 1] = stated_end
                        pc = a
            elif op == _EMPTY_ITEMS:
                count, stated_end, position = _block(buffer, position, end)
                if position < 0:
                    reason = -position
                elif count == 0:
                    pc += WIDTH
                elif stated_end >= 0 and stated_end != position:
                    reason = _BAD_BLOCK
                elif count > max_empty_items - empty_items:
                    reason = _TOO_MANY
                else:
                    empty_items += count
            elif op == _CALL:
                if top == len(stack):
                    reason = _TOO_DEEP
                else:
                    stack[top] = pc + WIDTH
                    top += _FRAME
                    pc = a
            elif op == _RETURN:
                top -= _FRAME
                pc = stack[top]
            elif op == _DECIMAL_FIXED:
                size = load_item(code, pc + 2)
                if size > end - position:
                    reason = _TRUNCATED
                elif not decimal_fits(buffer, position, position + size, bounds, a):
                    reason = _OUT_OF_RANGE
                else:
                    position += size
                    pc += WIDTH
            else:  # END
                if position != end:
                    reason = _TRAILING
                break
        if reason != 0:
            reasons[k] = reason
            positions[k] = at - start
            instructions[k] = begun


@kernel
def _validate_json(records: Any, limits: Any, verdicts: Any) -> None:
    buffer, starts, ends, rows = records
    max_bytes, stack = limits
    reasons, positions = verdicts
    for k in range(len(rows)):
        start, end = starts[rows[k]], ends[rows[k]]
        if start < 0:
            reasons[k] = _NULL_VALUE
        elif end - start > max_bytes:
            reasons[k] = _TOO_LARGE
        elif not is_utf8(buffer, start, end):
            reasons[k] = _BAD_UTF8
        else:
            reason, position = scan_json(buffer, start, end, stack)
            reasons[k] = reason
            positions[k] = position - start
