"""A message type's layout for the kernel, from its descriptor and the bytes that `rows.py` writes for absent fields."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from kbq_assets.adapters.protobuf.avro_schema import (
    DECIMAL,
    DURATION,
    JSON_TYPES,
    TIMESTAMP,
    WRAPPERS,
    is_map,
)
from kbq_assets.adapters.protobuf.rows import Column, columns_of
from kbq_assets.adapters.protobuf.well_known import BadValue
from kbq_assets.wire.chunk import encode_bytes
from kbq_assets.wire.protobuf.layout import FieldKind, LayoutBuilder, MessageLayout

_F: Final[Any] = FieldDescriptor
_KINDS: Final = {getattr(_F, f"TYPE_{kind.name}"): kind for kind in FieldKind if kind < FieldKind.MESSAGE}
#: Types that are deeper or have more oneofs are decoded with Python objects.
_MOST_LEVELS, _MOST_ONEOFS = 30, 60


def layout_of(type_: Descriptor) -> MessageLayout | None:
    """The layout of a type that has an Avro schema; None if the kernel does not support the type."""
    builder = LayoutBuilder()
    return builder.built() if _message(builder, type_, 1) >= 0 else None


def _message(builder: LayoutBuilder, type_: Descriptor, level: int) -> int:
    """The index of a message type; -1 if the kernel does not support it."""
    if level > _MOST_LEVELS or len(type_.oneofs) > _MOST_ONEOFS:
        return -1
    builder.levels = max(builder.levels, level)
    message, columns = message_factory.GetMessageClass(type_)(), columns_of(type_)
    number, first = builder.reserve(len(columns))
    made = []
    for name, column in columns:
        found = type_.fields_by_name.get(name)
        field = _field(builder, found, _absent(message, name, column, builder), level)
        if field is None:
            return -1
        made.append(field)
    builder.fill(first, made)
    return number


def _absent(message: Any, name: str, column: Column, builder: LayoutBuilder) -> tuple[int, int]:
    try:
        return builder.text(column(message, name))
    except BadValue:  # a required field
        return -1, -1


def _field(
    builder: LayoutBuilder, found: FieldDescriptor | None, absent: tuple[int, int], level: int
) -> tuple[int, ...] | None:
    if found is None:  # the marker of a type without fields is never in the message and always written
        return (0, FieldKind.LEFT, 0, 0, 0, *absent, -1)
    kind, inner = _kind(found), 0
    if kind is FieldKind.MESSAGE:
        inner = _message(builder, found.message_type, level + 1)
        if inner < 0:
            return None
    elif kind is FieldKind.WRAPPER:
        inner = _KINDS[found.message_type.fields_by_name["value"].type]
    elif kind is FieldKind.ENUM:
        names = {number: value.name for number, value in found.enum_type.values_by_number.items()}
        inner = builder.enum({number: encode_bytes(name.encode()) for number, name in names.items()})
    is_nullable = not found.is_repeated and (found.has_presence or found.is_required)
    oneof = -1 if found.containing_oneof is None else found.containing_oneof.index
    return (found.number, kind, inner, int(found.is_repeated), int(is_nullable), *absent, oneof)


def _kind(field: FieldDescriptor) -> FieldKind:
    if is_map(field) or field.type == _F.TYPE_GROUP:
        return FieldKind.LEFT
    if field.message_type is None:
        return _KINDS[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return FieldKind.TIMESTAMP
    if name in WRAPPERS:
        return FieldKind.WRAPPER
    return FieldKind.LEFT if name in (DURATION, DECIMAL) or name in JSON_TYPES else FieldKind.MESSAGE
