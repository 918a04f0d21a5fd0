"""Values of Google's and Confluent's own message types."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from kbq_assets.wire.records.reasons import Reason

#: Microseconds of the years 1 to 9999, the range of warehouses.
_FIRST_MICROS: Final = -62_135_596_800 * 10**6
_END_MICROS: Final = 253_402_300_800 * 10**6
_LONG: Final = 2**63
#: The largest difference between a value's scale and its column's scale, which bounds the power of ten.
_MOST_SHIFT: Final = 100
#: Paths of a FieldMask that survive the conversion to camelCase and back.
_SNAKE_CASE: Final = re.compile(r"[^A-Z_]*(?:_[a-z][^A-Z_]*)*")


class BadValue(Exception):
    """A value that the column cannot hold. The record becomes an error row with this reason."""

    def __init__(self, reason: Reason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def timestamp(message: Any) -> int:
    """A Timestamp in microseconds, rounded down. Raises BadValue."""
    micros: int = message.seconds * 1_000_000 + message.nanos // 1_000
    if not _FIRST_MICROS <= micros < _END_MICROS:
        raise BadValue(Reason.OUT_OF_RANGE, "a Timestamp outside the years 1 to 9999")
    return micros


def duration(message: Any) -> int:
    """A Duration in microseconds, rounded towards zero as in Google's library. Raises BadValue."""
    nanos: int = message.seconds * 1_000_000_000 + message.nanos
    micros = nanos // 1_000 if nanos >= 0 else -(-nanos // 1_000)
    if not -_LONG <= micros < _LONG:
        raise BadValue(Reason.OUT_OF_RANGE, "a Duration whose microseconds do not fit into 64 bits")
    return micros


def decimal(message: Any, precision: int, scale: int) -> int:
    """The unscaled value of a confluent.type.Decimal at its scale. Raises BadValue if a digit would be lost."""
    unscaled, shift = int.from_bytes(message.value, "big", signed=True), scale - message.scale
    if unscaled and abs(shift) > _MOST_SHIFT:
        raise _no_decimal(precision, scale)
    if shift >= 0 or not unscaled:
        found = unscaled * 10**shift if unscaled else 0
    else:
        found, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise _no_decimal(precision, scale)
    if abs(found) >= 10**precision:
        raise _no_decimal(precision, scale)
    return found


def _no_decimal(precision: int, scale: int) -> BadValue:
    return BadValue(Reason.OUT_OF_RANGE, f"its schema declares {precision} digits, {scale} of them decimals")


def json_text(message: Any) -> str:
    """JSON of a Struct, Value, ListValue, FieldMask or Empty. NaN and infinity, which JSON lacks, become text as in
    Protobuf's own JSON mapping of doubles."""
    return json.dumps(_plain(message), ensure_ascii=False, separators=(",", ":"))


def _plain(message: Any) -> Any:
    match message.DESCRIPTOR.name:
        case "Struct":
            return {key: _plain(message.fields[key]) for key in sorted(message.fields)}
        case "ListValue":
            return [_plain(each) for each in message.values]
        case "FieldMask":
            return ",".join(map(_mask_path, message.paths))
        case "Value":
            return _plain_value(message)
    return {}


def _plain_value(message: Any) -> Any:
    kind = message.WhichOneof("kind")
    if kind is None or kind == "null_value":
        return None
    found = getattr(message, kind)
    if kind == "number_value":
        return _number(found)
    return _plain(found) if kind in ("struct_value", "list_value") else found


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _mask_path(path: str) -> str:
    """A path in camelCase; unchanged if the conversion could not be reversed."""
    if not _SNAKE_CASE.fullmatch(path):
        return path
    head, *words = path.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in words)
