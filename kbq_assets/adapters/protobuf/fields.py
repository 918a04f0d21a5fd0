"""The fields of a schema, for checks without a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor

from kbq_assets.adapters.protobuf.compiler import compile_types

#: Maximum depth, since a message may contain itself: deeper fields are omitted.
_DEPTH: Final = 15


def fields_of(schema: str) -> Iterator[tuple[str, str]]:
    """Fields of all message types, as dotted paths from the type's name, with their types. Raises EncodingError for
    an invalid schema, ConfigurationError if protoc is not installed."""
    for name, message in compile_types(schema, {}).file.message_types_by_name.items():
        yield from _fields(message, name, 0)


def _fields(message: Descriptor, where: str, depth: int) -> Iterator[tuple[str, str]]:
    for field in message.fields:
        path, inner = f"{where}.{field.name}", field.message_type
        if inner is None:
            yield path, "scalar"
            continue
        yield path, inner.full_name
        # Google's own types are values: catalogs cannot name their fields.
        if depth < _DEPTH and not inner.full_name.startswith("google.protobuf."):
            yield from _fields(inner, path, depth + 1)
