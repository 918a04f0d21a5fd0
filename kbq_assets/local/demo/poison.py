"""Malformed records, each of which breaks one rule. Each must go to the error table; none may stop a topic."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import fastavro

from kbq_assets.local.demo.schemas import Schema

#: Makes a malformed value from a well-formed value, its datum and its schema.
Spoil: TypeAlias = Callable[[bytes, Mapping[str, Any], Schema], bytes]

PREFIX_BYTES: Final = 5


def confluent(schema_id: int, body: bytes) -> bytes:
    """A value in Confluent's wire format: magic 0, schema id, Avro body."""
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def encode(schema: Any, datum: Any) -> bytes:
    """A datum in Avro. ``schema`` may already be parsed by fastavro."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, datum)
    return buffer.getvalue()


def _rewritten(field: str, type_: Any, datum: Any) -> Spoil:
    """A function that writes one field with another type, so that the bytes do not match the registered schema."""

    def spoil(value: bytes, good: Mapping[str, Any], schema: Schema) -> bytes:
        fields = [
            {"name": f["name"], "type": type_ if f["name"] == field else f["type"]} for f in schema["fields"]
        ]
        body = encode({**schema, "fields": fields}, {**good, field: datum})
        return value[:PREFIX_BYTES] + body

    return spoil


POISON: Final[Mapping[str, Spoil]] = {
    "wrong magic": lambda value, datum, schema: b"\x01" + value[1:],
    "too short": lambda value, datum, schema: value[:3],
    "no body": lambda value, datum, schema: value[:PREFIX_BYTES],
    "truncated": lambda value, datum, schema: value[:-3],
    "trailing bytes": lambda value, datum, schema: value + b"\x00",
    "invalid enum": _rewritten("type", "int", 99),
    "invalid union branch": _rewritten("year", "int", 7),
    "invalid UTF-8": _rewritten("model", "bytes", b"A32\xff\xfe"),
    "negative length": _rewritten("manufacturer", "long", -5),
}
"""Kinds of malformed planes, by their defect."""
