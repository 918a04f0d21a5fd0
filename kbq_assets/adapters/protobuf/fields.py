"""The fields of a schema, for checks that need no message."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from kbq_assets.adapters.protobuf.compiler import compile_types

#: Most fields of all types together. Nested types can multiply fields without bound.
_MOST_FIELDS: Final = 10_000
#: Kinds of scalars; all others are numbers.
_SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: "text",
    FieldDescriptor.TYPE_ENUM: "text",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "boolean",
}


def fields_of(schema: str) -> Iterator[tuple[str, str]]:
    """Fields of all message types, as dotted paths that begin with the type's name. Each comes with the full name of
    its message type, or with text, number, boolean or bytes. Raises EncodingError for an invalid schema,
    ConfigurationError if protoc is not installed."""
    types = compile_types(schema, {}).file.message_types_by_name
    found = (field for name, message in types.items() for field in _fields(message, name, ()))
    return islice(found, _MOST_FIELDS)


def _fields(message: Descriptor, where: str, outer: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    inside = (*outer, message.full_name)
    for field in message.fields:
        path, inner = f"{where}.{field.name}", field.message_type
        if inner is None:
            yield path, _SCALARS.get(field.type, "number")
            continue
        yield path, inner.full_name
        # Google's own types are values, so catalogs cannot name their fields.
        if inner.full_name not in inside and not inner.full_name.startswith("google.protobuf."):
            yield from _fields(inner, path, inside)
