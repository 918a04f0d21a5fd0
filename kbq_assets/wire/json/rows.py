"""Encodes JSON documents as Avro records of an inferred schema. Values that fit no column go to the side column.

This module defines a document's record. It uses Python objects, with about 30,000 documents per second and core; most
documents are encoded by the kernel (encode.py).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.json.inference import (
    MAX_EXACT,
    MAX_INT64,
    MIN_INT64,
    InferredSchema,
    InferredType,
    column_name,
)
from kbq_assets.core.topics.json.numbers import all_storable, parse_fraction, storable
from kbq_assets.wire.chunk import encode_bytes, encode_long

#: Returns a value's encoding, None if it does not fit, and its remainder, None if there is none.
Encode: TypeAlias = Callable[[Any], tuple[bytes | None, Any]]

_NULL: Final = b"\x00"
_SOME: Final = b"\x02"
_NO_ITEMS: Final = b"\x00"
_MISFIT: Final = (None, None)
_DOUBLE: Final = struct.Struct("<d")


class RowEncoder:
    """Encodes documents by one version of an inferred schema."""

    def __init__(self, inferred: InferredSchema) -> None:
        self._record = _record(inferred.root)
        self._empty = b"".join(_absent(each.inferred) for each in inferred.root.fields)

    def encode(self, document: object) -> tuple[bytes, bool]:
        """The encoded columns and side column of a document, and whether the columns contain all of it."""
        if not isinstance(document, dict):
            return self.raw(text_of(document)), True  # no column will ever fit it
        encoded, rest = self._record(document)
        assert encoded is not None
        return encoded + (_NULL if rest is None else _json(rest)), rest is None

    def raw(self, text: str) -> bytes:
        """The encoding of a document that is in the side column as a whole."""
        return self._empty + _SOME + encode_bytes(all_storable(text).encode())


def fits(inferred: InferredType, value: object) -> bool:
    """Whether a column of a type holds a whole value."""
    encoded, rest = _encoder(inferred)(value)
    return encoded is not None and rest is None


class RepeatedKey(ValueError):
    """An object has a duplicate key, so a Python object cannot have both values."""


def parse(text: str) -> Any:
    """Parse a valid document. A number that is not an exact float becomes a `Number`. Raises RepeatedKey, and
    ValueError for a whole number of thousands of digits."""
    return _DECODER.decode(text)


def text_of(value: object) -> str:
    """A value as compact JSON for a column, with each `Number` as a text."""
    return storable(_ENCODER.encode(value))


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its keys and values. Raises RepeatedKey."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise RepeatedKey
    return made


_DECODER: Final = json.JSONDecoder(object_pairs_hook=unique, parse_float=parse_fraction)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _json(value: object) -> bytes:
    return _SOME + encode_bytes(text_of(value).encode())


def _absent(inferred: InferredType) -> bytes:
    return _NO_ITEMS if inferred.kind == "LIST" else _NULL


def _encoder(inferred: InferredType) -> Encode:
    if inferred.kind == "RECORD":
        return _record(inferred)
    if inferred.kind == "LIST":
        assert inferred.item is not None
        return _list(inferred.item)
    return _SCALARS[inferred.kind]


def _record(inferred: InferredType) -> Encode:
    columns = [
        (
            each.key,
            _encoder(each.inferred),
            _absent(each.inferred),
            b"" if each.inferred.kind == "LIST" else _SOME,
        )
        for each in inferred.fields
    ]
    known = frozenset(each.key for each in inferred.fields)

    def encode(value: Any) -> tuple[bytes | None, Any]:
        if not isinstance(value, dict):
            return _MISFIT
        parts: list[bytes] = []
        rest: dict[str, Any] | None = None
        met = 0
        for key, inner, absent, some in columns:
            found = value.get(key)
            if found is None:
                met += key in value
                parts.append(absent)
                continue
            met += 1
            encoded, left = inner(found)
            if encoded is None:
                parts.append(absent)
                left = found
            else:
                parts += (some, encoded)
            if left is not None:
                rest = {} if rest is None else rest
                rest[key] = left
        if met < len(value):
            more = {key: each for key, each in value.items() if key not in known and each is not None}
            rest = {**(rest or {}), **more} if more else rest
        if rest is None and not value:
            rest = {}  # an empty object differs from null
        return b"".join(parts), rest

    return encode


def _list(item: InferredType) -> Encode:
    inner = _encoder(item)

    def encode(value: Any) -> tuple[bytes | None, Any]:
        if not isinstance(value, list):
            return _MISFIT
        if not value:
            return _MISFIT  # tables cannot store empty lists; the side column distinguishes them from null
        encoded = []
        for each in value:
            data, left = inner(each)
            # A remainder could not be assigned to its item, so the whole list is the remainder.
            if data is None or left is not None:
                return _MISFIT
            encoded.append(data)
        return encode_long(len(encoded)) + b"".join(encoded) + _NO_ITEMS, None

    return encode


def _bool(value: Any) -> tuple[bytes | None, Any]:
    return (b"\x01" if value else b"\x00", None) if isinstance(value, bool) else _MISFIT


def _int(value: Any) -> tuple[bytes | None, Any]:
    if type(value) is int and MIN_INT64 <= value <= MAX_INT64:
        return encode_long(value), None
    return _MISFIT


def _float(value: Any) -> tuple[bytes | None, Any]:
    # A float is exactly the written number; all others are a `Number`.
    if type(value) is float or (type(value) is int and -MAX_EXACT <= value <= MAX_EXACT):
        return _DOUBLE.pack(value), None
    return _MISFIT


def _string(value: Any) -> tuple[bytes | None, Any]:
    return (encode_bytes(value.encode()), None) if type(value) is str else _MISFIT  # no `Number`


def _any(value: Any) -> tuple[bytes | None, Any]:
    return encode_bytes(text_of(value).encode()), None


_SCALARS: Final[dict[str, Encode]] = {
    "BOOL": _bool,
    "INT64": _int,
    "FLOAT64": _float,
    "STRING": _string,
    "JSON": _any,
}


def scalar_at(document: object, path: Sequence[str]) -> bytes | None:
    """The text, boolean or whole number at a path of keys or column names, as JSON; None for anything else."""
    for level, name in enumerate(path, 1):
        if not isinstance(document, dict):
            return None
        key = name if name in document else _key_of(document, name, level)
        document = document.get(key)
    return json.dumps(document).encode() if type(document) in (str, bool, int) else None


def _key_of(document: dict[str, Any], column: str, level: int) -> str:
    return next((key for key in document if column_name(key, set(), level) == column), column)


def event_time(document: object, business: BusinessTime) -> bytes:
    """The encoded business time of a document, or an encoded null if it has none."""
    micros = business.of_document(document)
    return _NULL if micros is None else _SOME + encode_long(micros)
