"""Converts raw Arrow values to the columns' types: matches fields by name, and turns numbers into dates, times and
decimals. Refuses values that BigQuery's types cannot store, as BigQuery does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kbq_assets.core.loading.tables import Column, numeric_digits
from kbq_assets.wire.arrow.avro_types import Value
from kbq_assets.wire.arrow.types import arrow_type

_DAY_MICROS: Final = 86_400_000_000
#: 0001-01-01 and 9999-12-31, BigQuery's first and last day, in days since 1970-01-01.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_DECIMAL_BYTES: Final = 16
_BIGNUMERIC_SCALE, _BIGNUMERIC_LIMIT = 38, 1 << 255


def arranged(array: pa.Array, value: Value, column: Column) -> pa.Array:
    """Raw values in the type of a column. Missing fields are NULL, or empty lists. Raises ValueError."""
    if column.mode == "REPEATED":
        assert value.item is not None
        items = arranged(
            array.values, value.item, Column(column.name, column.type, "NULLABLE", column.fields)
        )
        return pa.ListArray.from_arrays(
            array.offsets, items
        )  # only offsets, so a NULL list becomes an empty one
    if column.type != "STRUCT":
        return _scalar(array, value, column)
    places = {name.lower(): i for i, name in enumerate(value.members)}
    values = list(value.members.values())
    arrays = []
    for member in column.fields:
        place = places.get(member.name.lower())
        if place is None:
            arrays.append(nothing(len(array), member))
        else:
            arrays.append(arranged(array.field(place), values[place], member))
    fields = [pa.field(member.name, arrow_type(member)) for member in column.fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())


def nothing(length: int, column: Column) -> pa.Array:
    """The values of a column that the records lack: NULL, or empty lists."""
    if column.mode != "REPEATED":
        return pa.nulls(length, arrow_type(column))
    offsets = pa.array([0] * (length + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array([], arrow_type(column).value_type))


def _scalar(array: pa.Array, value: Value, column: Column) -> pa.Array:
    if column.type == "STRING" and value.raw == pa.binary():
        return _long_decimal(array, value.logical)
    if column.type == "NUMERIC":
        return _numeric(array, value.logical, column)
    convert = _CONVERSIONS.get(column.type)
    return convert(array, value.logical) if convert else array.cast(arrow_type(column))


def _date(array: pa.Array, _: Mapping[str, str | int]) -> pa.Array:
    return _between(array, _FIRST_DAY, _LAST_DAY, "DATE").view(pa.date32())


def _time(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    return _micros(array, logical, 0, _DAY_MICROS - 1, "TIME").view(pa.time64("us"))


def _timestamp(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    return _instant(array, logical).view(pa.timestamp("us", "UTC"))


def _datetime(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    return _instant(array, logical).view(pa.timestamp("us"))


def _instant(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    return _micros(array, logical, _FIRST_DAY * _DAY_MICROS, (_LAST_DAY + 1) * _DAY_MICROS - 1, "TIMESTAMP")


def _micros(array: pa.Array, logical: Mapping[str, str | int], low: int, high: int, what: str) -> pa.Array:
    unit = 1000 if str(logical["logicalType"]).endswith("-millis") else 1
    checked = _between(array, -(-low // unit), high // unit, what).cast(pa.int64())
    return pc.multiply(checked, unit) if unit > 1 else checked


def _between(array: pa.Array, low: int, high: int, what: str) -> pa.Array:
    """The same array. Raises ValueError for a value outside of BigQuery's type."""
    bounds = pc.min_max(array).as_py()
    for number in bounds.values():
        if number is not None and not low <= number <= high:
            raise ValueError(f"{number} is out of the range of {what}")
    return array


def _numeric(array: pa.Array, logical: Mapping[str, str | int], column: Column) -> pa.Array:
    precision, scale = numeric_digits(column)
    given = int(logical.get("scale", 0))
    decimals = _decimals(array, given)
    if decimals is not None and _are_below(decimals, Decimal(10) ** (precision - scale)):
        return decimals.cast(pa.decimal128(precision, scale))
    factor = 10 ** (scale - given)
    what = f"NUMERIC({precision}, {scale})"
    numbers = [_unscaled(raw, factor, 10**precision, what) for raw in array.to_pylist()]
    words = b"".join((n or 0).to_bytes(16, "little", signed=True) for n in numbers)
    validity = array.is_valid().buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(precision, scale), len(array), [validity, pa.py_buffer(words)])


def _decimals(array: pa.Array, scale: int) -> pa.Array | None:
    """Big-endian bytes as decimals with this scale; None if one is too long."""
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, np.int32)[array.offset : array.offset + len(array) + 1]
    lengths, ends = np.diff(offsets), offsets[1:]
    longest = int(lengths.max(initial=0))
    if not 0 < longest <= _DECIMAL_BYTES:
        return None
    octets = np.frombuffer(data, np.uint8)
    signs = octets[np.minimum(offsets[:-1], len(octets) - 1)].view(np.int8) < 0
    words = np.zeros((len(array), _DECIMAL_BYTES), np.uint8)
    words[signs & (lengths > 0)] = 0xFF
    for place in range(longest):
        rows = np.flatnonzero(lengths > place)
        words[rows, place] = octets[ends[rows] - 1 - place]
    buffers = [array.is_valid().buffers()[1], pa.py_buffer(words)]
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(array), buffers)


def _are_below(decimals: pa.Array, limit: Decimal) -> bool:
    """Whether all values are below a limit. A cast to more digits does not detect all overflows."""
    bounds = [bound for bound in pc.min_max(decimals).as_py().values() if bound is not None]
    return all(-limit < bound < limit for bound in bounds)


def _bignumeric(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    factor = 10 ** (_BIGNUMERIC_SCALE - int(logical.get("scale", 0)))
    numbers = [_unscaled(raw, factor, _BIGNUMERIC_LIMIT, "BIGNUMERIC") for raw in array.to_pylist()]
    return pa.array([n if n is None else _decimal_text(n, _BIGNUMERIC_SCALE) for n in numbers], pa.string())


def _long_decimal(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    scale = int(logical.get("scale", 0))
    numbers = [raw if raw is None else int.from_bytes(raw, "big", signed=True) for raw in array.to_pylist()]
    return pa.array([n if n is None else _decimal_text(n, scale) for n in numbers], pa.string())


def _unscaled(raw: bytes | None, factor: int, limit: int, what: str) -> int | None:
    if raw is None:
        return None
    number = int.from_bytes(raw, "big", signed=True) * factor
    if not -limit < number < limit:
        raise ValueError(f"a decimal is out of the range of {what}")
    return number


def _decimal_text(number: int, scale: int) -> str:
    """An exact, canonical text: no exponent, no trailing zeros."""
    digits = str(abs(number)).rjust(scale + 1, "0")
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :].rstrip("0")
    return ("-" if number < 0 else "") + whole + (f".{fraction}" if fraction else "")


_CONVERSIONS: Final[Mapping[str, Callable[[pa.Array, Mapping[str, str | int]], pa.Array]]] = {
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "DATETIME": _datetime,
    "BIGNUMERIC": _bignumeric,
}
