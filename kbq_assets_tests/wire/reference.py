"""Avro's encoding in plain Python, straight from the specification: the judge of the kernels.

Values are physical: a union is ``(branch index, value)``, a map a list of pairs, logical types are numbers
and bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.records.compile import RANGES
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.verdicts import RecordLimits

NO_LIMITS = RecordLimits()


class Invalid(Exception):
    """A record that is not valid, and why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


def encode(node: avro.AvroType, value: Any, rng: random.Random | None = None) -> bytes:
    """Encode; with ``rng``, arrays and maps in random blocks, some with a negative count and their size."""
    match node:
        case avro.Primitive():
            return _encode_primitive(node.kind, value)
        case avro.Fixed():
            return bytes(value)
        case avro.Enum():
            return encode_long(value)
        case avro.Union():
            index, inner = value
            return encode_long(index) + encode(node.branches[index], inner, rng)
        case avro.RecordType():
            return b"".join(encode(field.type, value[name], rng) for name, field in node.fields.items())
        case avro.Array():
            return _encode_blocks([encode(node.items, item, rng) for item in value], rng)
        case avro.Map():
            items = [encode_bytes(key.encode()) + encode(node.values, item, rng) for key, item in value]
            return _encode_blocks(items, rng)
    raise AssertionError(node)


def decode(node: avro.AvroType, data: bytes, limits: RecordLimits = NO_LIMITS) -> Any:
    """The value of a whole record. Raises Invalid with the reason that the validator must give."""
    reader = _Reader(data, limits)
    value = reader.value(node)
    if reader.position != len(data):
        raise Invalid(Reason.TRAILING_BYTES)
    return value


def _encode_primitive(kind: str, value: Any) -> bytes:
    match kind:
        case "null":
            return b""
        case "boolean":
            return b"\x01" if value else b"\x00"
        case "int" | "long":
            return encode_long(value)
        case "float":
            return struct.pack("<f", value)
        case "double":
            return struct.pack("<d", value)
        case "string":
            return encode_bytes(value.encode())
        case "bytes":
            return encode_bytes(value)
    raise AssertionError(kind)


def _encode_blocks(items: Sequence[bytes], rng: random.Random | None) -> bytes:
    encoded = b""
    for block in _split(items, rng):
        content = b"".join(block)
        if rng is not None and rng.random() < 0.5:
            encoded += encode_long(-len(block)) + encode_long(len(content)) + content
        else:
            encoded += encode_long(len(block)) + content
    return encoded + b"\x00"


def _split(items: Sequence[bytes], rng: random.Random | None) -> Iterator[Sequence[bytes]]:
    while items:
        size = rng.randint(1, len(items)) if rng else len(items)
        yield items[:size]
        items = items[size:]


class _Reader:
    def __init__(self, data: bytes, limits: RecordLimits) -> None:
        self.data = data
        self.position = 0
        self.limits = limits
        self.items = 0
        self.empty_items = 0

    def value(self, node: avro.AvroType) -> Any:
        match node:
            case avro.Primitive():
                return self.primitive(node)
            case avro.Fixed():
                return self.decimal(node, self.take(node.size)) if node.size else b""
            case avro.Enum():
                return self.index(len(node.symbols), Reason.INVALID_ENUM)
            case avro.Union():
                index = self.index(len(node.branches), Reason.INVALID_UNION)
                return index, self.value(node.branches[index])
            case avro.RecordType():
                return {name: self.value(field.type) for name, field in node.fields.items()}
            case avro.Array():
                return list(self.blocks(lambda: self.value(node.items), _is_empty(node.items)))
            case avro.Map():
                return list(self.blocks(lambda: (self.string(), self.value(node.values)), False))
        raise AssertionError(node)

    def primitive(self, node: avro.Primitive) -> Any:
        match node.kind:
            case "null":
                return None
            case "boolean":
                return self.boolean()
            case "int" | "long":
                return self.number(node)
            case "float":
                return struct.unpack("<f", self.take(4))[0]
            case "double":
                return struct.unpack("<d", self.take(8))[0]
            case "string":
                return self.string()
            case "bytes":
                return self.decimal(node, self.octets())
        raise AssertionError(node.kind)

    def boolean(self) -> bool:
        if self.position < len(self.data) and self.data[self.position] > 1:
            raise Invalid(Reason.INVALID_BOOLEAN)
        return self.take(1) == b"\x01"

    def number(self, node: avro.Primitive) -> int:
        value: int = self.integer(5 if node.kind == "int" else 10)
        low, high = RANGES.get((node.kind, str(node.attribute("logicalType"))), (value, value))
        if not low <= value <= high:
            raise Invalid(Reason.OUT_OF_RANGE)
        return value

    def decimal(self, node: avro.AvroType, data: bytes) -> bytes:
        precision = node.attribute("precision")
        if node.attribute("logicalType") != "decimal" or not isinstance(precision, int):
            return data
        if not data or abs(int.from_bytes(data, signed=True)) >= 10**precision:
            raise Invalid(Reason.OUT_OF_RANGE)
        return data

    def integer(self, most_bytes: int) -> int:
        raw = shift = 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift == 70:
                raise Invalid(Reason.INT_OVERFLOW)
        if raw >= 2 ** (64 if most_bytes == 10 else 32) or shift > 7 * most_bytes:
            raise Invalid(Reason.INT_OVERFLOW)
        return (raw >> 1) ^ -(raw & 1)

    def index(self, count: int, reason: Reason) -> int:
        index = self.integer(5)
        if not 0 <= index < count:
            raise Invalid(reason)
        return index

    def octets(self) -> bytes:
        length = self.integer(10)
        if length < 0:
            raise Invalid(Reason.INVALID_LENGTH)
        return self.take(length)

    def string(self) -> str:
        try:
            return self.octets().decode("utf-8")
        except UnicodeDecodeError:
            raise Invalid(Reason.INVALID_UTF8) from None

    def blocks(self, item: Any, empty: bool) -> Iterator[Any]:
        while count := self.integer(10):
            stated_end = None
            if count < 0:
                size = self.integer(10)
                if not 0 <= size <= len(self.data) - self.position or count == -(2**63):
                    raise Invalid(Reason.INVALID_BLOCK)
                count, stated_end = -count, self.position + size
            self.count(count, empty, stated_end)
            for _ in range(count):
                yield item()
            if stated_end not in {None, self.position}:
                raise Invalid(Reason.INVALID_BLOCK)

    def count(self, count: int, empty: bool, stated_end: int | None) -> None:
        if empty and stated_end not in {None, self.position}:
            raise Invalid(Reason.INVALID_BLOCK)
        if not empty and count > len(self.data) - self.position:
            raise Invalid(Reason.TRUNCATED)
        self.items += 0 if empty else count
        self.empty_items += count if empty else 0
        if self.items > self.limits.max_items or self.empty_items > self.limits.max_empty_items:
            raise Invalid(Reason.TOO_MANY_ITEMS)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.position:
            raise Invalid(Reason.TRUNCATED)
        self.position += size
        return self.data[self.position - size : self.position]


def _is_empty(node: avro.AvroType) -> bool:
    match node:
        case avro.Primitive():
            return node.kind == "null"
        case avro.Fixed():
            return node.size == 0
        case avro.RecordType():
            return all(_is_empty(field.type) for field in node.fields.values())
    return False


def plain(node: avro.AvroType, value: Any) -> Any:
    """The value as fastavro reads it (without logical types)."""
    match node:
        case avro.Enum():
            return node.symbols[value]
        case avro.Union():
            return plain(node.branches[value[0]], value[1])
        case avro.RecordType():
            return {name: plain(field.type, value[name]) for name, field in node.fields.items()}
        case avro.Array():
            return [plain(node.items, item) for item in value]
        case avro.Map():
            return {key: plain(node.values, item) for key, item in value}
    return value


def tagged(node: avro.AvroType, value: Any) -> Any:
    """The value as fastavro writes it: union branches by name."""
    match node:
        case avro.Enum():
            return node.symbols[value]
        case avro.Union():
            branch = node.branches[value[0]]
            return avro.branch_name(branch), tagged(branch, value[1])
        case avro.RecordType():
            return {name: tagged(field.type, value[name]) for name, field in node.fields.items()}
        case avro.Array():
            return [tagged(node.items, item) for item in value]
        case avro.Map():
            return {key: tagged(node.values, item) for key, item in value}
    return value
