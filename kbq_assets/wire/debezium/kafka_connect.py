"""Kafka Connect's JSON with a schema: converts the schema to Avro, and encodes payloads with it.

Every field may be missing or null, because Debezium omits unknown columns of a deleted row.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from struct import Struct
from typing import Any, Final, TypeAlias

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.json.numbers import Number
from kbq_assets.wire.chunk import encode_bytes, encode_long

Encode: TypeAlias = Callable[[Any], bytes]
_PRIMITIVES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "string": "string",
    "bytes": "bytes",
}
_RANGES: Final = {"int": 2**31, "long": 2**63}
_FIELD: Final = "connect.field"


def avro_of_connect(schema: Any) -> Any:
    """The Avro schema of a Connect schema. Raises UnstageableSchema."""
    try:
        return _AvroWriter().of(schema)
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise UnstageableSchema("it is not a Kafka Connect schema", next_step="check the converter") from None


class _AvroWriter:
    def __init__(self) -> None:
        self._records = 0

    def of(self, schema: Any) -> Any:
        kind, name = schema["type"], schema.get("name")
        notes = {"connect.name": name} if isinstance(name, str) else {}
        if kind == "struct":
            self._records += 1
            own = self._name(name)
            fields = [self._field(each) for each in schema["fields"]]
            return {"type": "record", "name": own, "fields": fields, **notes}
        if kind == "array":
            return {"type": "array", "items": self._optional(schema["items"])}
        if kind == "map":
            return {"type": "map", "values": self._optional(schema["values"])}
        if kind not in _PRIMITIVES:
            raise UnstageableSchema(
                f"Kafka Connect has no type {str(kind)[:40]!r}", next_step="check the converter"
            )
        if isinstance(schema.get("parameters"), Mapping):
            notes["connect.parameters"] = schema["parameters"]
        return {"type": _PRIMITIVES[kind], **notes}

    def _optional(self, schema: Any) -> Any:
        return ["null", self.of(schema)] if schema.get("optional") else self.of(schema)

    def _field(self, schema: Any) -> Any:
        made, name = self.of(schema), str(schema["field"])
        is_list = schema["type"] in ("array", "map") and not schema.get("optional")
        return {"name": avro.word_name(name), "type": made if is_list else ["null", made], _FIELD: name}

    def _name(self, name: Any) -> str:
        """A unique name for a record, because Connect repeats types with the same name."""
        parts = [avro.word_name(each) for each in str(name or "Record").split(".")]
        return ".".join(parts) if self._records == 1 else f"connect_{self._records}.{parts[-1]}"


def encoder(root: avro.AvroType) -> Encode:
    """The function that encodes payloads. It raises ValueError for a payload that does not fit the schema."""
    return visit(root, _Encoders())


class _Encoders(SchemaVisitor[Encode]):
    def primitive(self, node: avro.Primitive) -> Encode:
        kind = node.kind
        if kind in _RANGES:
            return lambda value: _number(value, kind)
        if kind in ("float", "double"):
            pack = Struct("<f" if kind == "float" else "<d").pack
            return lambda value: _packed(_real(value), pack)
        if kind == "bytes":
            scale = _scale(node)
            return lambda value: encode_bytes(_bytes(value, scale))
        return {"null": _null, "boolean": _boolean, "string": _string}[kind]

    def array(self, node: avro.Array, items: Encode) -> Encode:
        def encode(value: Any) -> bytes:
            found = [items(each) for each in _checked(value, list)]
            return encode_long(len(found)) + b"".join(found) + (b"\x00" if found else b"")

        return lambda value: b"\x00" if value is None else encode(value)

    def map(self, node: avro.Map, values: Encode) -> Encode:
        def encode(value: Any) -> bytes:
            found = [_string(key) + values(each) for key, each in _entries(value)]
            return encode_long(len(found)) + b"".join(found) + (b"\x00" if found else b"")

        return lambda value: b"\x00" if value is None else encode(value)

    def union(self, node: avro.Union, branches: Sequence[Encode]) -> Encode:
        _, inner = branches  # null comes first: see `_AvroWriter`
        return lambda value: b"\x00" if value is None else b"\x02" + inner(value)

    def record(self, node: avro.RecordType, fields: Sequence[Encode]) -> Encode:
        names = [str(field.attributes[_FIELD]) for field in node.fields.values()]
        steps = list(zip(names, fields, strict=True))

        def encode(value: Any) -> bytes:
            found = _checked(value, dict)
            return b"".join(_at(name, step, found.get(name)) for name, step in steps)

        return encode


def _at(name: str, step: Encode, value: Any) -> bytes:
    try:
        return step(value)
    except ValueError as error:
        if error.args and str(error).startswith("field "):
            raise ValueError(f"field {name}.{str(error)[6:]}") from None
        raise ValueError(f"field {name}: {error}") from None


def _checked(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__}, not a {kind.__name__}")
    return value


def _entries(value: Any) -> Iterable[Any]:
    """The entries of a map. If its keys are optional, Connect writes a list of pairs."""
    if isinstance(value, dict):
        return value.items()
    pairs: list[Any] = _checked(value, list)
    if any(len(_checked(pair, list)) != 2 for pair in pairs):
        raise ValueError("an entry that is not a pair")
    return pairs


def _null(value: Any) -> bytes:
    return b""


def _boolean(value: Any) -> bytes:
    return b"\x01" if _checked(value, bool) else b"\x00"


def _string(value: Any) -> bytes:
    if isinstance(value, Number):
        raise ValueError("a number, not a str")
    return encode_bytes(str(_checked(value, str)).encode())


def _number(value: Any, kind: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int) or not -_RANGES[kind] <= value < _RANGES[kind]:
        raise ValueError(f"not an {kind}" if kind == "int" else f"not a {kind}")
    return encode_long(value)


def _real(value: Any) -> float:
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | Number):
        raise ValueError("not a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isinf(found):
        raise ValueError("a number that does not fit a double")
    return found


def _packed(value: float, pack: Callable[[float], bytes]) -> bytes:
    try:
        return pack(value)
    except OverflowError:
        raise ValueError("a number that does not fit a float") from None


def _scale(node: avro.Primitive) -> int:
    parameters: Mapping[str, Any] = next(iter(node.values_of("connect.parameters")), {})
    text = str(parameters.get("scale", ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


def _bytes(value: Any, scale: int) -> bytes:
    """Decode base64, or a decimal number if the converter writes decimals as numbers."""
    if isinstance(value, str) and not isinstance(value, Number):
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            raise ValueError("not base64") from None
    if isinstance(value, bool) or not isinstance(value, int | Number):
        raise ValueError("neither base64 nor a number")
    sign, digits, exponent = Decimal(value).as_tuple()
    shift = exponent + scale if isinstance(exponent, int) else 1001
    if abs(shift) > 1000:
        raise ValueError("a number that does not fit a decimal")
    unscaled, rest = divmod(int("".join(map(str, digits))) * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    if rest:
        raise ValueError(f"a number with more than {scale} decimal places")
    signed = int(-unscaled if sign else unscaled)
    return signed.to_bytes(signed.bit_length() // 8 + 1, "big", signed=True)
