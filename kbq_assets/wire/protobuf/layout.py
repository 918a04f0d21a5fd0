"""Message types as arrays for a kernel. An adapter fills them from descriptors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from kbq_assets.wire.chunk import PADDING, Bytes, Longs


class FieldKind(IntEnum):
    """The kind of a field's values. It determines how Avro stores them."""

    INT64 = 0
    INT32 = 1
    UINT32 = 2
    SINT64 = 3
    SINT32 = 4
    UINT64 = 5
    BOOL = 6
    ENUM = 7
    FIXED64 = 8
    SFIXED64 = 9
    DOUBLE = 10
    FIXED32 = 11
    SFIXED32 = 12
    FLOAT = 13
    STRING = 14
    BYTES = 15
    MESSAGE = 16
    TIMESTAMP = 17
    WRAPPER = 18
    LEFT = 19


#: Numbers per message type: its first field, and the number of its fields.
MESSAGE: Final = 2
#: Numbers per field: its number; its kind; its message, its enum, or the kind of a wrapper's value; whether it is
#: repeated; whether it may be null; start and end of the encoding of an absent value (end -1: the field is required);
#: its oneof or -1.
FIELD: Final = 8
#: Numbers per enum: its first value, and the number of its values. Numbers per value: its number, start and end of its
#: name.
ENUM, ENUM_VALUE = 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class MessageLayout:
    """The arrays of a message type. Fields are sorted by number within a type, and values by number within an enum.
    ``order`` has the fields of a type in the order of its columns."""

    messages: Longs
    fields: Longs
    order: Longs
    enums: Longs
    values: Longs
    texts: Bytes
    levels: int


@dataclass
class LayoutBuilder:
    """Collects message types, fields and enums. Message type 0 is the message itself."""

    messages: list[tuple[int, int]] = field(default_factory=list)
    fields: list[tuple[int, ...]] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    enums: list[tuple[int, int]] = field(default_factory=list)
    values: list[tuple[int, int, int]] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)
    levels: int = 0

    def text(self, text: bytes) -> tuple[int, int]:
        """Add a text. Returns its span."""
        start = len(self.texts)
        self.texts += text
        return start, len(self.texts)

    def reserve(self, fields: int) -> tuple[int, int]:
        """Add a message type with this many fields. Returns its number and its first field."""
        first = len(self.fields)
        self.messages.append((first, fields))
        self.fields += [()] * fields
        self.order += range(first, first + fields)
        return len(self.messages) - 1, first

    def fill(self, first: int, columns: list[tuple[int, ...]]) -> None:
        """Set the fields from ``first`` on. ``columns`` has them in the order of the columns."""
        ranked = sorted(range(len(columns)), key=lambda column: columns[column][0])
        for place, column in enumerate(ranked):
            self.fields[first + place] = columns[column]
            self.order[first + column] = first + place

    def enum(self, names: dict[int, bytes]) -> int:
        """Add an enum with these encoded names. Returns its number."""
        self.enums.append((len(self.values), len(names)))
        self.values += [(number, *self.text(name)) for number, name in sorted(names.items())]
        return len(self.enums) - 1

    def built(self) -> MessageLayout:
        """The arrays."""
        return MessageLayout(
            np.array(self.messages, np.int64).ravel(),
            np.array(self.fields or [(0,) * FIELD], np.int64).ravel(),
            np.array(self.order or [0], np.int64),
            np.array(self.enums or [(0, 0)], np.int64).ravel(),
            np.array(self.values or [(0, 0, 0)], np.int64).ravel(),
            np.frombuffer(self.texts + bytes(PADDING), np.uint8),
            self.levels,
        )
