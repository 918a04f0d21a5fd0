"""Blocks of Avro records to Arrow, in the shape of a table's columns.

fastavro decodes; two tricks make it fast and exact. The writer schema is replaced by one with the *same
encoding* but other names: logical types are dropped (numbers become times in Arrow, a column at a time), a
map is an array of records (key, value), and each branch of a union of several types is a record with the one
field ``<type>_value``: what comes out has the shape of the columns, and says which branch it was. And a whole
block is decoded by one call, as an Avro array.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from kbq_assets.adapters.duckdb.container import Block
from kbq_assets.adapters.duckdb.errors import BadFile
from kbq_assets.adapters.duckdb.types import arrow_type, is_known
from kbq_assets.core.tables import Column
from kbq_assets.wire import avro

_RAW: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_DAY_MICROS: Final = 86_400_000_000
#: 0001-01-01 and 9999-12-31, BigQuery's first and last day, in days since 1970-01-01.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_NUMERIC_SCALE, _NUMERIC_LIMIT = 9, 10**38
_BIGNUMERIC_SCALE, _BIGNUMERIC_LIMIT = 38, 1 << 255


@dataclass(frozen=True)
class _Value:
    """A type as fastavro reads it (``avro``) and as Arrow takes it from Python (``raw``)."""

    avro: Any
    raw: pa.DataType
    logical: Mapping[str, str | int] = field(default_factory=dict)
    members: Mapping[str, _Value] = field(default_factory=dict)
    item: _Value | None = None


class Decoder:
    """Decodes records of one writer schema into the columns of one table.

    The schema must fit the columns (`plan_table_change` finds nothing to change).
    """

    def __init__(self, schema: str, columns: Sequence[Column]) -> None:
        self._root = _value(avro.parse(avro.load_schema(schema)), (f"t{i}" for i in itertools.count()))
        self._fields = {name.lower(): (name, value) for name, value in self._root.members.items()}
        self._columns = [column for column in columns if self._fills(column)]
        self._schema = fastavro.parse_schema({"type": "array", "items": self._root.avro})

    def _fills(self, column: Column) -> bool:
        """Whether the load gives a column a value; the others take their default, as in BigQuery."""
        return column.name.lower() in self._fields or (column.mode == "REPEATED" and is_known(column))

    def records(self, block: Block) -> list[dict[str, Any]]:
        """The records of a block, with raw values. Raises BadFile when they do not fill it exactly."""
        if not block.count and not block.data:
            return []  # an array that begins with an empty block is at its end
        stream = io.BytesIO(_zigzag(block.count) + block.data + b"\0")
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        except (EOFError, ValueError, IndexError, OverflowError, StopIteration, TypeError) as error:
            raise BadFile(f"a record cannot be decoded: {type(error).__name__} {error}") from error
        if stream.read(1) or len(found) != block.count:  # type: ignore[arg-type]
            raise BadFile("a block has bytes that belong to no record")
        return found  # type: ignore[return-value]

    def table(self, records: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Records as a table. Raises BadFile."""
        arrays = [self._array(column, records) for column in self._columns]
        return pa.Table.from_arrays(arrays, names=[column.name for column in self._columns])

    def _array(self, column: Column, records: Sequence[Mapping[str, Any]]) -> pa.Array:
        name, value = self._fields.get(column.name.lower(), ("", None))
        if value is None:
            return _nothing(len(records), column)
        try:
            raw = pa.array([record[name] for record in records], value.raw)
            return _arranged(raw, value, column)
        except (ValueError, OverflowError, TypeError) as error:  # pa.ArrowInvalid is a ValueError
            raise BadFile(f"column {column.name}: {error}") from error


def _value(node: avro.Node, names: Iterator[str]) -> _Value:
    match node:
        case avro.Primitive():
            return _Value(node.kind, _RAW[node.kind], dict(node.logical))
        case avro.Enum():
            return _Value({"type": "enum", "name": next(names), "symbols": list(node.symbols)}, pa.string())
        case avro.Fixed():
            schema = {"type": "fixed", "name": next(names), "size": node.size}
            return _Value(schema, pa.binary(), dict(node.logical))
        case avro.Record():
            return _record({name: _value(child, names) for name, child in node.fields.items()}, names)
        case avro.Array():
            return _list(_value(node.items, names))
        case avro.Map():
            key = _Value("string", pa.string())
            return _list(_record({"key": key, "value": _value(node.values, names)}, names))
        case avro.Union():
            return _union(node, names)
    raise AssertionError(node)


def _record(members: dict[str, _Value], names: Iterator[str]) -> _Value:
    fields = [{"name": name, "type": value.avro} for name, value in members.items()]
    raw = pa.struct([pa.field(name, value.raw) for name, value in members.items()])
    return _Value({"type": "record", "name": next(names), "fields": fields}, raw, members=members)


def _list(item: _Value) -> _Value:
    return _Value({"type": "array", "items": item.avro}, pa.list_(item.raw), item=item)


def _union(node: avro.Union, names: Iterator[str]) -> _Value:
    others = [branch for branch in node.branches if not _is_null(branch)]
    if len(others) <= 1:
        values = [_value(branch, names) for branch in node.branches]
        (value,) = [v for v, b in zip(values, node.branches, strict=True) if not _is_null(b)] or values
        return _Value([v.avro for v in values], value.raw, value.logical, value.members, value.item)
    members: dict[str, _Value] = {}
    schemas: list[Any] = []
    for branch in node.branches:
        if _is_null(branch):
            schemas.append("null")
            continue
        member = {f"{_branch_name(branch)}_value": _value(branch, names)}
        schemas.append(_record(member, names).avro)
        members.update(member)
    raw = pa.struct([pa.field(name, value.raw) for name, value in members.items()])
    return _Value(schemas, raw, members=members)


def _is_null(node: avro.Node) -> bool:
    return isinstance(node, avro.Primitive) and node.kind == "null"


def _branch_name(node: avro.Node) -> str:
    match node:
        case avro.Primitive():
            return node.kind
        case avro.Fixed() | avro.Enum() | avro.Record():
            return node.name.rpartition(".")[2]
    return type(node).__name__.lower()


def _arranged(array: pa.Array, value: _Value, column: Column) -> pa.Array:
    """Raw values as the column has them: fields by name, missing ones NULL, numbers as times and decimals."""
    if column.mode == "REPEATED":
        assert value.item is not None
        items = _arranged(
            array.values, value.item, Column(column.name, column.type, "NULLABLE", column.fields)
        )
        return pa.ListArray.from_arrays(
            array.offsets, items
        )  # offsets alone: a NULL list becomes an empty one
    if column.type != "STRUCT":
        return _scalar(array, value, column)
    places = {name.lower(): i for i, name in enumerate(value.members)}
    values = list(value.members.values())
    arrays = []
    for member in column.fields:
        place = places.get(member.name.lower())
        if place is None:
            arrays.append(_nothing(len(array), member))
        else:
            arrays.append(_arranged(array.field(place), values[place], member))
    fields = [pa.field(member.name, arrow_type(member)) for member in column.fields]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())


def _nothing(length: int, column: Column) -> pa.Array:
    """The value of a column the records do not have: NULL, or an empty list."""
    if column.mode != "REPEATED":
        return pa.nulls(length, arrow_type(column))
    offsets = pa.array([0] * (length + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array([], arrow_type(column).value_type))


def _scalar(array: pa.Array, value: _Value, column: Column) -> pa.Array:
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
    """The array itself. Raises ValueError for a value that BigQuery's type cannot hold."""
    bounds = pc.min_max(array).as_py()
    for number in bounds.values():
        if number is not None and not low <= number <= high:
            raise ValueError(f"{number} is out of the range of {what}")
    return array


def _numeric(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    factor = 10 ** (_NUMERIC_SCALE - int(logical.get("scale", 0)))
    numbers = [_unscaled(raw, factor, _NUMERIC_LIMIT, "NUMERIC") for raw in array.to_pylist()]
    words = b"".join((n or 0).to_bytes(16, "little", signed=True) for n in numbers)
    validity = array.is_valid().buffers()[1]
    return pa.Array.from_buffers(
        arrow_type(Column("", "NUMERIC")), len(array), [validity, pa.py_buffer(words)]
    )


def _bignumeric(array: pa.Array, logical: Mapping[str, str | int]) -> pa.Array:
    scale = int(logical.get("scale", 0))
    factor = 10 ** (_BIGNUMERIC_SCALE - scale) if scale <= _BIGNUMERIC_SCALE else 1
    texts = []
    for raw in array.to_pylist():
        number = _unscaled(raw, factor, _BIGNUMERIC_LIMIT, "BIGNUMERIC")
        texts.append(None if number is None else _decimal_text(number, max(scale, _BIGNUMERIC_SCALE)))
    return pa.array(texts, pa.string())


def _unscaled(raw: bytes | None, factor: int, limit: int, what: str) -> int | None:
    if raw is None:
        return None
    number = int.from_bytes(raw, "big", signed=True) * factor
    if not -limit < number < limit:
        raise ValueError(f"a decimal is out of the range of {what}")
    return number


def _decimal_text(number: int, scale: int) -> str:
    """Exact and canonical: no exponent, no zeros at the end."""
    digits = str(abs(number)).rjust(scale + 1, "0")
    fraction = digits[-scale:].rstrip("0")
    return ("-" if number < 0 else "") + digits[:-scale] + (f".{fraction}" if fraction else "")


def _zigzag(number: int) -> bytes:
    """A count as an Avro long."""
    value, out = number << 1, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_CONVERSIONS: Final[Mapping[str, Callable[[pa.Array, Mapping[str, str | int]], pa.Array]]] = {
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "DATETIME": _datetime,
    "NUMERIC": _numeric,
    "BIGNUMERIC": _bignumeric,
}
