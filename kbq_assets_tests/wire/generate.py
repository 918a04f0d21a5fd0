"""Random schemas, values and damage, from a ``random.Random``: seeded for fuzzing, or Hypothesis's own."""

from __future__ import annotations

import random
import string
import struct
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.wire.records.compile import RANGES

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL: tuple[dict[str, Any], ...] = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "bytes", "logicalType": "decimal", "precision": 7, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
    {"type": "string", "logicalType": "uuid"},
)
_TEXTS = (
    "",
    "a",
    "user-1234567",
    "Straße",
    "日本語テキスト",
    "🎉" * 3,
    "x" * 70,
    "né",
    "\u07ff\u0800\uffff\U0010ffff",
)
DEEPEST = 4


class SchemaMaker:
    """Makes one record schema with everything in it; names are unique, and used again now and then."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.named: list[str] = []
        self.names = 0

    def record(self, depth: int = 0) -> dict[str, Any]:
        name = self.name()
        fields = [
            {"name": f"f{index}", "type": self.type(depth + 1)}
            for index in range(self.rng.randint(0 if depth else 1, 6))
        ]
        self.named.append(name)
        return {"type": "record", "name": name, "fields": fields}

    def type(self, depth: int) -> Any:
        choice = self.rng.randrange(16 if depth < DEEPEST else 9)
        if choice < 6:
            return self.rng.choice(_PRIMITIVES)
        if choice < 8:
            return dict(self.rng.choice(_LOGICAL))
        if choice < 9:
            return self.rng.choice(self.named) if self.named else "string"
        return self.complex(choice, depth)

    def complex(self, choice: int, depth: int) -> Any:
        match choice:
            case 9:
                return self.record(depth)
            case 10:
                return {"type": "array", "items": self.type(depth + 1)}
            case 11:
                return {"type": "map", "values": self.type(depth + 1)}
            case 12:
                symbols = list(string.ascii_uppercase[: self.rng.randint(1, 5)])
                return self.register({"type": "enum", "name": self.name(), "symbols": symbols})
            case 13:
                return self.register({"type": "fixed", "name": self.name(), "size": self.rng.randint(1, 20)})
            case 14:
                decimal = {"logicalType": "decimal", "precision": 10, "scale": 2}
                return self.register({"type": "fixed", "name": self.name(), "size": 8, **decimal})
        return self.union(depth)

    def union(self, depth: int) -> list[Any]:
        if self.rng.random() < 0.6:
            branches = ["null", self.branch(depth)]
            return branches if self.rng.random() < 0.8 else branches[::-1]
        simple = [kind for kind in _PRIMITIVES if self.rng.random() < 0.4]
        return simple or ["null", "long"]

    def branch(self, depth: int) -> Any:
        known = len(self.named)
        made = self.type(depth + 1)
        if made == "null" or isinstance(made, list):
            del self.named[known:]  # names of what is thrown away are defined nowhere
            return "double"
        return made

    def register(self, schema: dict[str, Any]) -> dict[str, Any]:
        self.named.append(schema["name"])
        return schema

    def name(self) -> str:
        self.names += 1
        return f"N{self.names}"


def make_schema(rng: random.Random) -> dict[str, Any]:
    return SchemaMaker(rng).record()


def make_value(node: avro.AvroType, rng: random.Random) -> Any:
    """A valid physical value, see ``reference``."""
    match node:
        case avro.Primitive():
            return _primitive(node, rng)
        case avro.Fixed():
            return _decimal(node, rng).rjust(node.size, b"\x00") if node.logical else rng.randbytes(node.size)
        case avro.Enum():
            return rng.randrange(len(node.symbols))
        case avro.Union():
            index = rng.randrange(len(node.branches))
            return index, make_value(node.branches[index], rng)
        case avro.RecordType():
            return {name: make_value(field.type, rng) for name, field in node.fields.items()}
        case avro.Array():
            return [make_value(node.items, rng) for _ in range(rng.choice((0, 1, 2, 5)))]
        case avro.Map():
            return [
                (f"k{index}é"[: rng.randint(2, 3)], make_value(node.values, rng))
                for index in range(rng.randrange(4))
            ]
    raise AssertionError(node)


def _primitive(node: avro.Primitive, rng: random.Random) -> Any:
    match node.kind:
        case "null":
            return None
        case "boolean":
            return rng.random() < 0.5
        case "int" | "long":
            return _number(node, rng)
        case "float":
            return struct.unpack("<f", struct.pack("<f", rng.uniform(-1e6, 1e6)))[0]
        case "double":
            return rng.uniform(-1e9, 1e9)
        case "string":
            return rng.choice(_TEXTS)
    return _decimal(node, rng) if node.logical else rng.randbytes(rng.choice((0, 1, 9, 64)))


def _number(node: avro.Primitive, rng: random.Random) -> int:
    bits = 31 if node.kind == "int" else 63
    low: int
    high: int
    low, high = RANGES.get((node.kind, str(node.attribute("logicalType"))), (-(2**bits), 2**bits - 1))
    if rng.random() < 0.2:
        return rng.choice((low, high))
    return max(low, min(high, rng.getrandbits(rng.randint(1, bits)) * rng.choice((1, 1, -1))))


def _decimal(node: avro.AvroType, rng: random.Random) -> bytes:
    precision = node.attribute("precision")
    assert isinstance(precision, int)
    number = rng.choice((0, 1, 10**precision - 1, rng.randrange(10**precision)))
    return number.to_bytes((number.bit_length() + 8) // 8, signed=True)


_BYTES = (0x00, 0x01, 0x02, 0x03, 0x7E, 0x7F, 0x80, 0x81, 0xC0, 0xC3, 0xE2, 0xED, 0xF4, 0xFE, 0xFF)
_PIECES = (
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10,
    b"\x80\x80\x80\x80\x10",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x00",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\x01\x02",
    b"\x03\x04",
)


def damaged(body: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to three random changes to an encoded record."""
    data = bytearray(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _damage(data, others, rng)
    return bytes(data)


def _damage(data: bytearray, others: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(9):
        case 0 | 1:
            data[at : at + 1] = bytes([rng.choice(_BYTES)])
        case 2:
            if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
        case 3:
            data[at:at] = bytes([rng.randrange(256)])
        case 4:
            del data[at : at + rng.randint(1, 3)]
        case 5:
            del data[at:]
        case 6:
            data[at : at + rng.choice((0, 1, 2))] = rng.choice(_PIECES)
        case 7:
            other = rng.choice(others)
            data[at:] = other[rng.randrange(len(other) + 1) :]
        case 8:
            data[at:at] = data[at : at + rng.randint(1, 8)]
