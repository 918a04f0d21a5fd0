"""Skips values of any type in the bytes of valid records, with one function per type of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.wire.chunk import decode_long

#: Returns the position after the value at a position.
Skip: TypeAlias = Callable[[bytes, int], int]


def skip_of(node: avro.AvroType) -> Skip:
    """The function that skips values of a type, which must not contain itself."""
    return visit(node, _Skips())


class _Skips(SchemaVisitor[Skip]):
    def primitive(self, node: avro.Primitive) -> Skip:
        return _SKIPS[node.kind]

    def fixed(self, node: avro.Fixed) -> Skip:
        return _skip_bytes(node.size)

    def enum(self, node: avro.Enum) -> Skip:
        return _skip_long

    def array(self, node: avro.Array, items: Skip) -> Skip:
        return _skip_blocks(items)

    def map(self, node: avro.Map, values: Skip) -> Skip:
        return _skip_blocks(lambda data, position: values(data, _skip_sized(data, position)))

    def union(self, node: avro.Union, branches: Sequence[Skip]) -> Skip:
        return _skip_union(branches)

    def record(self, node: avro.RecordType, fields: Sequence[Skip]) -> Skip:
        return _skip_all(fields)


def _skip_long(data: bytes, position: int) -> int:
    while data[position] & 0x80:
        position += 1
    return position + 1


def _skip_sized(data: bytes, position: int) -> int:
    size, position = decode_long(data, position)
    return position + size


def _skip_bytes(count: int) -> Skip:
    return lambda data, position: position + count


def _skip_all(skips: Sequence[Skip]) -> Skip:
    def skip(data: bytes, position: int) -> int:
        for each in skips:
            position = each(data, position)
        return position

    return skip


def _skip_union(branches: Sequence[Skip]) -> Skip:
    def skip(data: bytes, position: int) -> int:
        index, position = decode_long(data, position)
        return branches[index](data, position)

    return skip


def _skip_blocks(item: Skip) -> Skip:
    def skip(data: bytes, position: int) -> int:
        while True:
            count, position = decode_long(data, position)
            if count == 0:
                return position
            if count < 0:
                size, position = decode_long(data, position)
                position += size
                continue
            for _ in range(count):
                position = item(data, position)

    return skip


_SKIPS: Final[Mapping[str, Skip]] = {
    "null": _skip_bytes(0),
    "boolean": _skip_bytes(1),
    "int": _skip_long,
    "long": _skip_long,
    "float": _skip_bytes(4),
    "double": _skip_bytes(8),
    "bytes": _skip_sized,
    "string": _skip_sized,
}
