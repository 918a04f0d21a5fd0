"""Replacements of single Avro values, from encoded bytes to encoded bytes."""

from __future__ import annotations

import ipaddress
import struct
import sys
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Final, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.chunk import decode_long, encode_bytes, encode_long

#: Converts a value's encoded bytes to those of its replacement.
Replace: TypeAlias = Callable[[bytes], bytes]


def impossible(place: str, why: str) -> UnstageableSchema:
    """The error for an action that does not fit its field."""
    return UnstageableSchema(f"pii: field {place!r} {why}", next_step="choose another action: drop or null")


def text_of(node: avro.AvroType, place: str) -> Callable[[bytes], bytes]:
    """A function that returns the bytes to hash for a pseudonym: the bytes of texts, or other values as text. Raises
    UnstageableSchema."""
    if isinstance(node, avro.Enum):
        symbols = [symbol.encode() for symbol in node.symbols]
        return lambda data: symbols[decode_long(data, 0)[0]]
    if isinstance(node, avro.Fixed):
        return lambda data: data
    if isinstance(node, avro.Primitive) and node.kind in _TEXTS:
        return _TEXTS[node.kind]
    raise impossible(place, "has parts")


def _sized(data: bytes) -> bytes:
    return data[decode_long(data, 0)[1] :]


_TEXTS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "string": _sized,
    "bytes": _sized,
    "int": lambda data: str(decode_long(data, 0)[0]).encode(),
    "long": lambda data: str(decode_long(data, 0)[0]).encode(),
    "boolean": lambda data: b"true" if data[0] else b"false",
    "float": lambda data: repr(struct.unpack("<f", data)[0]).encode(),
    "double": lambda data: repr(struct.unpack("<d", data)[0]).encode(),
}


def truncate(node: avro.AvroType, count: int, place: str) -> Replace:
    """Keep only the first characters of a text, or the first bytes. Raises UnstageableSchema."""
    if not isinstance(node, avro.Primitive) or node.kind not in ("string", "bytes") or node.logical:
        raise impossible(place, "is not a text")
    if node.kind == "bytes":
        return lambda data: encode_bytes(_sized(data)[:count])
    return lambda data: encode_bytes(_sized(data).decode()[:count].encode())


def generalise(node: avro.AvroType, argument: str, place: str) -> Replace:
    """Round times down to year, month, day or hour, numbers to steps, and addresses to networks. Raises
    UnstageableSchema."""
    kind = node.kind if isinstance(node, avro.Primitive) else ""
    logical = str(node.attribute("logicalType") or "")
    if argument == "ip" and kind == "string" and not logical:
        return lambda data: encode_bytes(network(_sized(data).decode()).encode())
    if argument.isdigit() and kind in ("int", "long") and not logical:
        step, least = int(argument), _LEAST[kind]
        return lambda data: encode_long(max(decode_long(data, 0)[0] // step * step, least))
    if argument.isdigit() and kind in ("float", "double"):
        width, lowest = float(min(int(argument), _LARGEST_STEP)), _LOWEST[kind]
        pattern = struct.Struct("<f" if kind == "float" else "<d")
        return lambda data: pattern.pack(max(pattern.unpack(data)[0] // width * width, lowest))
    if logical == "date" and argument in ("year", "month"):
        return lambda data: encode_long(_first_day(decode_long(data, 0)[0], argument))
    per_second = _PER_SECOND.get(logical.removeprefix("local-"))
    if per_second is not None and argument in _UNITS:
        return lambda data: encode_long(_floored(decode_long(data, 0)[0], argument, per_second))
    raise impossible(place, f"cannot be generalised to {argument}")


_PER_SECOND: Final[Mapping[str, int]] = {
    "timestamp-millis": 10**3,
    "timestamp-micros": 10**6,
    "timestamp-nanos": 10**9,
}
#: Lowest values, so that rounding down stays within the type.
_LEAST: Final[Mapping[str, int]] = {"int": -(2**31), "long": -(2**63)}
_LOWEST: Final[Mapping[str, float]] = {"float": -(2.0 - 2.0**-23) * 2.0**127, "double": -sys.float_info.max}
#: A larger step has the same effect.
_LARGEST_STEP: Final = int(sys.float_info.max)
_UNITS: Final = ("year", "month", "day", "hour")
_EPOCH: Final = date(1970, 1, 1)


def _first_day(days: int, unit: str) -> int:
    try:
        found = _EPOCH + timedelta(days)
    except OverflowError:
        return 0  # outside of the calendar
    return (found.replace(month=1 if unit == "year" else found.month, day=1) - _EPOCH).days


def _floored(value: int, unit: str, per_second: int) -> int:
    seconds = value // per_second
    if unit == "hour":
        return max(seconds // 3600 * 3600 * per_second, _LEAST["long"])
    days = seconds // 86_400
    return max((days if unit == "day" else _first_day(days, unit)) * 86_400 * per_second, _LEAST["long"])


def network(text: str) -> str:
    """The network of an address: /24, or /48 for IPv6; "" if the text is not an address."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return ""
    size = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network(f"{address}/{size}", strict=False))
