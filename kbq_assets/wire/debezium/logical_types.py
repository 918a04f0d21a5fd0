"""Converts the logical types of Debezium and Kafka Connect to Avro's, which warehouses support.

The Avro converter writes the name of such a type as `connect.name`. For most types only the schema changes; the values
of a few types are converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.wire.chunk import decode_long, encode_bytes, encode_long
from kbq_assets.wire.privacy.forms import Forms
from kbq_assets.wire.privacy.rewriting import Rewrite, blocks, branches, copy, replaced, sequence
from kbq_assets.wire.records.skip import skip_of

_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
_VARIABLE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"
_DECIMAL: Final = f"{_CONNECT}Decimal"
#: The digits of a BIGNUMERIC after the decimal point, and also before it.
_SCALE: Final = 38
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class UnfitValue(ValueError):
    """Raised for a value that does not fit the type of its column."""


def _micros(data: bytes) -> bytes:
    return encode_long(decode_long(data, 0)[0] // 1000)


def _zoned(data: bytes) -> bytes:
    size, start = decode_long(data, 0)
    text = data[start : start + size].decode()
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UnfitValue("a ZonedTimestamp is not a time in the years 1 to 9999") from None
    zoned = time if time.tzinfo else time.replace(tzinfo=UTC)
    return encode_long((zoned - _EPOCH) // timedelta(microseconds=1))


def _variable_decimal(data: bytes) -> bytes:
    scale, position = decode_long(data, 0)
    size, start = decode_long(data, position)
    unscaled = int.from_bytes(data[start : start + size], "big", signed=True)
    if not -_SCALE <= scale <= 10 * _SCALE:
        raise UnfitValue(f"a VariableScaleDecimal has the scale {scale}")
    value, rest = divmod(unscaled * 10 ** max(_SCALE - scale, 0), 10 ** max(scale - _SCALE, 0))
    if rest:
        raise UnfitValue(f"a VariableScaleDecimal has more than {_SCALE} decimal places")
    return encode_bytes(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _long(logical: str) -> Mapping[str, Any]:
    return {"type": "long", "logicalType": logical}


def _decimal(precision: int, scale: int) -> Mapping[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


_DATE: Final = {"type": "int", "logicalType": "date"}
_TIME: Final = {"type": "int", "logicalType": "time-millis"}
#: The Avro schema by the name of the logical type and the Avro type.
_FORMS: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    (f"{_DEBEZIUM}Date", "int"): _DATE,
    (f"{_CONNECT}Date", "int"): _DATE,
    (f"{_DEBEZIUM}Time", "int"): _TIME,
    (f"{_CONNECT}Time", "int"): _TIME,
    (f"{_DEBEZIUM}MicroTime", "long"): _long("time-micros"),
    (f"{_DEBEZIUM}NanoTime", "long"): _long("time-micros"),
    (f"{_DEBEZIUM}Timestamp", "long"): _long("timestamp-millis"),
    (f"{_CONNECT}Timestamp", "long"): _long("timestamp-millis"),
    (f"{_DEBEZIUM}MicroTimestamp", "long"): _long("timestamp-micros"),
    (f"{_DEBEZIUM}NanoTimestamp", "long"): _long("timestamp-micros"),
    (f"{_DEBEZIUM}ZonedTimestamp", "string"): _long("timestamp-micros"),
}
#: The conversions for types whose values change.
_CONVERSIONS: Final[Mapping[tuple[str, str], Callable[[bytes], bytes]]] = {
    (f"{_DEBEZIUM}NanoTime", "long"): _micros,
    (f"{_DEBEZIUM}NanoTimestamp", "long"): _micros,
    (f"{_DEBEZIUM}ZonedTimestamp", "string"): _zoned,
}


def conversion(node: avro.AvroType) -> Rewrite:
    """The step that converts the values of a type. The type must not contain itself. The step raises UnfitValue."""
    return visit(node, _Steps()) or copy(skip_of(node))


def semantic(node: avro.AvroType) -> str:
    """The name of a logical type, "" for none."""
    found = next(iter(node.values_of("connect.name")), "")
    if not found and isinstance(node, avro.RecordType):
        return node.name
    return found if isinstance(found, str) else ""


class TypedForms(Forms):
    """Builds the schemas of converted values."""

    def primitive(self, node: avro.Primitive) -> Any:
        """A logical type as the corresponding Avro type."""
        name = semantic(node)
        if name == _DECIMAL and node.kind == "bytes":
            return _decimal_form(node)
        return dict(_FORMS.get((name, node.kind), {})) or super().primitive(node)

    def record(self, node: avro.RecordType, fields: Sequence[Any]) -> Any:
        """A record. A decimal that stores its own scale becomes a decimal with a fixed scale."""
        made = super().record(node, fields)
        return _decimal(2 * _SCALE, _SCALE) if is_variable_decimal(node) else made


class _Steps(SchemaVisitor["Rewrite | None"]):
    """Builds the conversion steps. None stands for values that do not change."""

    def other(self, node: avro.AvroType, inside: Sequence[Rewrite | None]) -> Rewrite | None:
        return None

    def primitive(self, node: avro.Primitive) -> Rewrite | None:
        found = _CONVERSIONS.get((semantic(node), node.kind))
        return replaced(skip_of(node), found) if found else None

    def array(self, node: avro.Array, items: Rewrite | None) -> Rewrite | None:
        return blocks(items) if items else None

    def map(self, node: avro.Map, values: Rewrite | None) -> Rewrite | None:
        key = copy(skip_of(avro.Primitive((), "string")))
        return blocks(sequence([key, values])) if values else None

    def union(self, node: avro.Union, branches_: Sequence[Rewrite | None]) -> Rewrite | None:
        steps = [step or copy(skip_of(each)) for step, each in zip(branches_, node.branches, strict=True)]
        return branches(steps) if any(branches_) else None

    def record(self, node: avro.RecordType, fields: Sequence[Rewrite | None]) -> Rewrite | None:
        if is_variable_decimal(node):
            return replaced(skip_of(node), _variable_decimal)
        if not any(fields):
            return None
        types = [field.type for field in node.fields.values()]
        return sequence([step or copy(skip_of(each)) for step, each in zip(fields, types, strict=True)])


def is_variable_decimal(node: avro.RecordType) -> bool:
    """Whether a record is a decimal that stores its own scale."""
    kinds = [_kind(field.type) for field in node.fields.values()]
    is_pair = list(node.fields) == ["scale", "value"] and kinds == ["int", "bytes"]
    return semantic(node) == _VARIABLE_DECIMAL and is_pair


def _kind(node: avro.AvroType) -> str:
    return node.kind if isinstance(node, avro.Primitive) else ""


def _decimal_form(node: avro.Primitive) -> Mapping[str, Any]:
    """A decimal that a numeric column can hold. The Avro converter writes a precision of 64 digits if the database did
    not limit them. Validation compares each value with the limit."""
    known = avro.decimal_of(node)
    parameters: Any = next(iter(node.values_of("connect.parameters")), {})
    text = str(parameters.get("scale", "")) if isinstance(parameters, Mapping) else ""
    if known is None and not (text.isascii() and text.isdigit() and len(text) < 4):
        return {"type": "bytes"}
    precision, scale = known or (_SCALE + int(text), int(text))
    return _decimal(min(precision, _SCALE + scale) if scale <= _SCALE else precision, scale)
