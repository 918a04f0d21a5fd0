"""Which records are flat, each field one scalar or null: the kernel reads them without Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from kbq_assets.core.avro import tree as avro


class Kind(IntEnum):
    """How a field is encoded."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    FIXED = 8
    ENUM = 9


@dataclass(frozen=True)
class FlatField:
    """A field. ``null_branch`` is null's place in its union, -1 where there is none."""

    name: str
    kind: Kind
    null_branch: int = -1
    size: int = 0
    symbols: tuple[str, ...] = ()


def flat_fields(node: avro.AvroType) -> tuple[FlatField, ...] | None:
    """The fields of a flat record, None when it is not flat."""
    assert isinstance(node, avro.RecordType)
    fields = [_field(name, field.type) for name, field in node.fields.items()]
    return None if None in fields else tuple(f for f in fields if f is not None)


def _field(name: str, node: avro.AvroType) -> FlatField | None:
    if isinstance(node, avro.Union):
        nulls = [avro.is_null(branch) for branch in node.branches]
        if len(nulls) != 2 or sum(nulls) != 1:
            return None
        null_branch = nulls.index(True)
        return _scalar(name, node.branches[1 - null_branch], null_branch)
    return _scalar(name, node, -1)


def _scalar(name: str, node: avro.AvroType, null_branch: int) -> FlatField | None:
    match node:
        case avro.Primitive():
            return FlatField(name, Kind[node.kind.upper()], null_branch)
        case avro.Fixed():
            return FlatField(name, Kind.FIXED, null_branch, node.size)
        case avro.Enum():
            return FlatField(name, Kind.ENUM, null_branch, len(node.symbols), node.symbols)
    return None
