"""An inferred schema as arrays for a kernel: types, fields, and hash tables of the fields' keys."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.topics.business_time import FORMATS, BusinessTime, name_rank
from kbq_assets.core.topics.json.inference import InferredField, InferredSchema, InferredType
from kbq_assets.wire.chunk import PADDING, Bytes, Longs

#: Kinds of types, with their numbers in the kernel.
KINDS: Final = {
    kind: number
    for number, kind in enumerate(("BOOL", "INT64", "FLOAT64", "STRING", "JSON", "RECORD", "LIST"))
}
#: Numbers per type: kind, first field, fields, first entry of the hash table, its mask, type of items, and 1 if Python
#: judges documents whose value is of another type.
TYPE: Final = 7
#: Numbers per field: start and end of its key, its type, start and end of `"key":`, its capture or -1.
FIELD: Final = 6
#: Multipliers of the hash: odd numbers with well-distributed bits.
FACTORS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_WORD: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, eq=False)
class DocumentLayout:
    """The arrays of one schema. ``captures`` are ranks of fields that may have the business time. The lowest rank is
    tried first and, among equal ranks, the first field in the document. ``unit`` is a number of `FORMATS`."""

    types: Longs
    fields: Longs
    tables: NDArray[np.int32]
    keys: Bytes
    captures: Longs
    unit: int
    has_time: bool
    levels: int


@dataclass
class _Building:
    paths: dict[tuple[str, ...], int] = field(default_factory=dict)
    judged: frozenset[tuple[str, ...]] = frozenset()
    is_automatic: bool = False
    types: list[list[int]] = field(default_factory=list)
    fields: list[list[int]] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    keys: bytearray = field(default_factory=bytearray)
    captures: list[int] = field(default_factory=list)
    levels: int = 1

    def type(self, inferred: InferredType, path: tuple[str, ...] | None, level: int) -> int:
        """The number of a type. ``path`` is its path from the document, None inside lists."""
        self.levels = max(self.levels, level)
        number = len(self.types)
        made = [KINDS[inferred.kind], 0, 0, 0, 0, -1, int(path in self.judged)]
        self.types.append(made)
        if inferred.kind == "LIST":
            assert inferred.item is not None
            made[5] = self.type(inferred.item, None, level + 1)
        elif inferred.kind == "RECORD":
            first = len(self.fields)
            self.fields += [[0] * FIELD for _ in inferred.fields]
            made[1:3] = first, len(inferred.fields)
            made[3:5] = self._table([bytes_of(each.key) for each in inferred.fields], first)
            for index, each in enumerate(inferred.fields):
                self.fields[first + index] = self._field(each, path, level)
        return number

    def _field(self, each: InferredField, path: tuple[str, ...] | None, level: int) -> list[int]:
        key, quoted = bytes_of(each.key), bytes_of(f"{json.dumps(each.key, ensure_ascii=False)}:")
        start = len(self.keys)
        self.keys += key + quoted
        inner = None if path is None else (*path, each.key)
        capture = self._capture(inner)
        return [
            start,
            start + len(key),
            self.type(each.inferred, inner, level + 1),
            start + len(key),
            start + len(key) + len(quoted),
            capture,
        ]

    def _capture(self, path: tuple[str, ...] | None) -> int:
        if path is None:
            return -1
        rank = name_rank(path[0]) if self.is_automatic and len(path) == 1 else self.paths.get(path)
        if rank is None:
            return -1
        self.captures.append(rank)
        return len(self.captures) - 1

    def _table(self, keys: list[bytes], first: int) -> tuple[int, int]:
        table, start = key_table(keys, first), len(self.tables)
        self.tables += table
        return start, len(table) - 1


def key_table(keys: list[bytes], first: int) -> list[int]:
    """A hash table of keys, whose fields are numbered from ``first`` on. -1 means no field. The size is a power of
    two."""
    size = 1 << (2 * max(1, len(keys))).bit_length()
    table = [-1] * size
    for index, key in enumerate(keys):
        place = hash_of(key) & (size - 1)
        while table[place] >= 0:
            place = (place + 1) & (size - 1)
        table[place] = first + index
    return table


def layout_of(
    inferred: InferredSchema, business: BusinessTime | None, judged: Iterable[tuple[str, ...]] = ()
) -> DocumentLayout:
    """The arrays of a version of an inferred schema. ``judged``: the keys that lead to a value which must fit its
    column."""
    building = _Building(
        judged=frozenset(keys[:depth] for keys in judged for depth in range(1, len(keys) + 1))
    )
    if business is not None:
        building.is_automatic = business.is_automatic
        named = [tuple(path.split(".")) for path in business.candidates]
        building.paths = {path: named.index(path) for path in named}
    building.type(inferred.root, (), 1)
    return DocumentLayout(
        np.array(building.types, np.int64).ravel(),
        np.array(building.fields or [[0] * FIELD], np.int64).ravel(),
        np.array(building.tables, np.int32),
        np.frombuffer(building.keys + bytes(PADDING), np.uint8),
        np.array(building.captures, np.int64),
        FORMATS[business.format] if business is not None else 0,
        business is not None,
        building.levels,
    )


def hash_of(key: bytes) -> int:
    """The hash of a key, from its length and its first and last eight bytes."""
    first = int.from_bytes(key[:8], "little")
    last = int.from_bytes(key[-8:], "little") if len(key) > 8 else 0
    mixed = (first * FACTORS[0] & _WORD) ^ (last * FACTORS[1] & _WORD) ^ (len(key) * FACTORS[2] & _WORD)
    return mixed ^ mixed >> 29


def bytes_of(key: str) -> bytes:
    """The bytes of a key. A schema may declare a key with a lone surrogate, whose bytes no document has."""
    return key.encode("utf-8", "surrogatepass")
