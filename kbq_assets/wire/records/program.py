"""A writer schema as a program for the validator: a flat array of small instructions.

Generating machine code per schema would take LLVM seconds. Interpreting a compact program is nearly as fast as reading
memory, and the interpreter compiles once for all schemas. Records have no instructions of their own, because their
fields follow one another. Records that are used more than once are subroutines, so a program does not grow
exponentially with the uses of a type, and is finite for a recursive schema.

An instruction is :data:`WIDTH` int32: the operation, and up to two operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

WIDTH = 4  # with one unused operand: a power of two keeps an instruction in one cache line


class Op(IntEnum):
    """An instruction of the validator; ``a`` and ``b`` are the operands."""

    END = 0
    SKIP = 1  # a bytes of any content
    BOOLEAN = 2
    INT = 3
    LONG = 4
    STRING = 5
    BYTES = 6
    NULLABLE = 7  # a union of null and one type: byte a (0 or 2) means null, then go to b
    ENUM = 8  # a symbols
    UNION = 9  # a branches, whose addresses begin at b in the jump table
    JUMP = 10  # to a
    LOOP = 11  # the beginning of an array or map, whose NEXT is at a
    NEXT = 12  # the end of an item, or the beginning of a block; items begin at a
    EMPTY_ITEMS = 13  # an array whose items take no bytes
    CALL = 14  # subroutine at a
    RETURN = 15
    INT_RANGE = 16  # an int within range a
    LONG_RANGE = 17
    DECIMAL_BYTES = 18  # bytes of a decimal within bound a
    DECIMAL_FIXED = 19  # b bytes of a decimal within bound a
    MARK = 20  # capture a begins here
    CLOSE = 21  # capture a ends here and is of kind b
    REFUSE = 22  # a record that gets here is bad, with the reason a


class CaptureKind(IntEnum):
    """How to read a captured field's bytes."""

    NONE = 0  # null, or no such field in this branch
    DATE = 1
    MILLIS = 2
    MICROS = 3
    NANOS = 4
    TEXT = 5
    LONG = 6
    WHOLE = 7  # any type, with its union's branch


ROUTED = 64
"""Kinds from here on belong to fields that are parts of table names. The rest is an index into `Program.routed`."""


@dataclass(frozen=True, slots=True)
class RoutedType:
    """The type of a field that can be part of a table's name: string, boolean, int, long, or enum with symbols."""

    kind: str
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Arrays for the validator's kernel. ``places[i]`` is the field of instruction ``i``. The last ``routes`` of the
    ``captures`` slots belong to fields that choose the table."""

    code: NDArray[np.int32]
    jumps: NDArray[np.int32]
    ranges: NDArray[np.int64]
    bounds: NDArray[np.uint8]
    places: tuple[str, ...]
    captures: int
    routes: int = 0
    routed: tuple[RoutedType, ...] = ()

    @property
    def filled(self) -> frozenset[int]:
        """The capture slots whose field exists in the schema."""
        instructions = self.code.reshape(-1, WIDTH)
        return frozenset(instructions[instructions[:, 0] == Op.MARK, 1].tolist())
