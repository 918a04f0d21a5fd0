"""Debezium's placeholders for values that the database did not send, by type.

A boolean array has one too, 28 times true, but it cannot be told from a value.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from struct import pack
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.debezium.change_columns import PLACEHOLDER
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.debezium.logical_types import is_variable_decimal, semantic

_BYTES: Final = PLACEHOLDER.encode()
_UUID: Final = str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))
_MAP: Final = {PLACEHOLDER: PLACEHOLDER}
#: An hstore as text, which is the connector's default.
_HSTORE: Final = json.dumps(_MAP, separators=(",", ":"))
#: https://github.com/debezium/debezium: the PostgreSQL connector writes one item per byte if items are numbers.
_VALUES: Final = (PLACEHOLDER, _HSTORE, [PLACEHOLDER], [_UUID], list(_BYTES), _MAP)
_FAR: Final = -99999999.0
#: Points that no database has, by the name of their type.
_POINTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "io.debezium.data.geometry.Geometry": {
        "wkb": bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1"),
        "srid": 4326,
    },
    "io.debezium.data.geometry.Geography": {
        "wkb": bytes.fromhex("0101000020e61000000c21e7fdff7f66401842cefbff7f5640"),
        "srid": 4326,
    },
    "io.debezium.data.geometry.Point": {
        "x": _FAR,
        "y": _FAR,
        "wkb": pack("<bIdd", 1, 1, _FAR, _FAR),
        "srid": None,
    },
}


def encoded_placeholders(node: avro.AvroType) -> Iterator[bytes]:
    """The Avro encodings of the placeholders that a type can have."""
    values = (*_VALUES, *filter(None, [_POINTS.get(semantic(node))]))
    yield from (found for value in values if (found := _encoded(node, value)) is not None)


def _encoded(node: avro.AvroType, value: Any) -> bytes | None:
    """The encoding of a value; None if the type cannot have it."""
    match node, value:
        case avro.Union(branches=branches), _:
            found = (
                _joined(encode_long(index), _encoded(each, value)) for index, each in enumerate(branches)
            )
            return next((each for each in found if each is not None), None)
        case avro.Primitive(kind=kind), _:
            return _scalar(kind, value)
        case avro.Array(items=items), list():
            return _joined(encode_long(len(value)), *(_encoded(items, each) for each in value), b"\x00")
        case avro.Map(values=values), dict():
            inside = _encoded(values, value.get(PLACEHOLDER))
            return _joined(encode_long(1), encode_bytes(_BYTES), inside, b"\x00")
        case avro.RecordType(), int() if is_variable_decimal(node):
            return encode_long(0) + encode_bytes(bytes([value]))
        case avro.RecordType(fields=fields), dict() if fields.keys() == value.keys():
            return _joined(*(_encoded(field.type, value[key]) for key, field in fields.items()))
    return None


def _scalar(kind: str, value: Any) -> bytes | None:
    match kind, value:
        case "null", None:
            return b""
        case "string" | "bytes", str():
            return encode_bytes(value.encode())
        case "bytes", bytes():
            return encode_bytes(value)
        case "bytes", int():  # a decimal
            return encode_bytes(bytes([value]))
        case "int" | "long", int():
            return encode_long(value)
        case "float" | "double", int() | float():
            return pack("<f" if kind == "float" else "<d", value)
    return None


def _joined(*parts: bytes | None) -> bytes | None:
    found = [part for part in parts if part is not None]
    return b"".join(found) if len(found) == len(parts) else None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _in_json(point: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: _base64(each) if isinstance(each, bytes) else each for key, each in point.items()}


_DIGITS: Final = [_base64(bytes([each])) for each in _BYTES]
#: The placeholders in JSON without a schema. Kafka Connect writes bytes and decimals in base64.
IN_JSON: Final = (
    *_VALUES,
    _base64(_BYTES),
    [_base64(_BYTES)],
    _DIGITS,
    [{"scale": 0, "value": each} for each in _DIGITS],
    *map(_in_json, _POINTS.values()),
)
