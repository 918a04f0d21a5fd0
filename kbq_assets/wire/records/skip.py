"""Past a value, whatever its type: functions over the bytes of valid records, one per type of a schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.wire.chunk import decode_long

#: Gives the position after the value at a position.
Skip: TypeAlias = Callable[[bytes, int], int]


def skip_of(node: avro.AvroType) -> Skip:
    """How values of a type are skipped."""
    match node:
        case avro.Primitive():
            return _SKIPS[node.kind]
        case avro.Fixed():
            return _skip_bytes(node.size)
        case avro.Enum():
            return _skip_long
        case avro.Union():
            return _skip_union([skip_of(branch) for branch in node.branches])
        case avro.Array():
            return _skip_blocks(skip_of(node.items))
        case avro.Map():
            value = skip_of(node.values)
            return _skip_blocks(lambda data, position: value(data, _skip_sized(data, position)))
        case avro.RecordType():
            return _skip_all([skip_of(child) for child in node.fields.values()])
    raise AssertionError(node)


def _skip_long(data: bytes, position: int) -> int:
    while data[position] & 0x80:
        position += 1
    return position + 1


def _skip_sized(data: bytes, position: int) -> int:
    size, position = decode_long(data, position)
    return position + size


def _skip_bytes(count: int) -> Skip:
    return lambda data, position: position + count


def _skip_all(skips: list[Skip]) -> Skip:
    def skip(data: bytes, position: int) -> int:
        for each in skips:
            position = each(data, position)
        return position

    return skip


def _skip_union(branches: list[Skip]) -> Skip:
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
