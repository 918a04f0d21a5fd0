"""The Avro schema of a message type, and the Avro type for each Protobuf type."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from kbq_assets.core.errors import EncodingError

TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
DECIMAL: Final = "confluent.type.Decimal"
JSON_TYPES: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "FieldMask", "Empty")
)
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
#: The column of a message type without fields: true if the message is present.
MARKER: Final = "_kbq_is_set"
#: Most fields at all depths, which is BigQuery's limit of columns. Nested types can multiply fields without bound.
_MOST_FIELDS: Final = 10_000
#: The depth that the library parses by default.
_DEPTH: Final = 100
#: The digits of BigQuery's BIGNUMERIC. DuckDB's decimals have fewer, so it stores text.
_MOST_DIGITS: Final = 76
_F: Final[Any] = FieldDescriptor
_UNSIGNED: Final = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
_SCALARS: Final[dict[int, Any]] = {
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_FLOAT: "float",
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), "int"),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), "long"),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), "long"),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), _UNSIGNED),
    _F.TYPE_BOOL: "boolean",
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "bytes",
    _F.TYPE_ENUM: "string",
}


def avro_schema_of(type_: Descriptor) -> dict[str, Any]:
    """The Avro schema of a message type. Raises EncodingError if it contains itself or has too many fields."""
    return _Schema().record(type_, _TypePath())


def is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)


def decimal_of(field: FieldDescriptor) -> tuple[int, int] | None:
    """Precision and scale of a field of Confluent's decimal type; None if its ``field_meta`` lacks them."""
    if field.message_type is None or field.message_type.full_name != DECIMAL:
        return None
    pool = field.file.pool
    try:  # the option is defined in the schema's own pool, not in Google's class of options
        options = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions"))
        meta = pool.FindExtensionByName("confluent.field_meta")
        found: Any = options.FromString(field.GetOptions().SerializeToString())
        params = found.Extensions[meta].params
        precision, scale = int(params["precision"]), int(params["scale"])
    except (KeyError, ValueError, DecodeError):
        return None
    return (precision, scale) if 0 <= scale <= precision and 0 < precision <= _MOST_DIGITS else None


@dataclass(frozen=True)
class _TypePath:
    """The place of a type: the types that contain it, and the names of fields and types on the path to it."""

    types: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    path: str = ""

    def at(self, name: str) -> _TypePath:
        return replace(self, parts=(*self.parts, name), path=f"{self.path}.{name}" if self.path else name)

    def inside(self, type_: Descriptor) -> _TypePath:
        parts = (*self.parts, type_.full_name) if self.types else self.parts
        return replace(self, types=(*self.types, type_.full_name), parts=parts)


@dataclass
class _Schema:
    """A schema that is being built."""

    names: set[str] = field(default_factory=set)
    fields: int = 0

    def record(self, type_: Descriptor, place: _TypePath) -> dict[str, Any]:
        self._check(type_, place)
        # A type may occur at several places, but Avro allows each name only once. The path makes it unique.
        name = self._name(*place.parts, type_.full_name) if place.types else self._name(type_.name)
        inside = place.inside(type_)
        fields = [{"name": f.name, "type": self._field(f, inside.at(f.name))} for f in type_.fields]
        marker = {"name": MARKER, "type": ["null", "boolean"]}
        return {"type": "record", "name": name, "fields": fields or [marker]}

    def _check(self, type_: Descriptor, place: _TypePath) -> None:
        at = f" at field {place.path}" if place.path else ""
        if type_.full_name in place.types:
            raise EncodingError(
                f"message {type_.full_name} contains itself{at}, but no warehouse has recursive column types",
                next_step="register a schema of fixed depth",
            )
        self.fields += len(type_.fields)
        if self.fields > _MOST_FIELDS or len(place.types) > _DEPTH:
            raise EncodingError(
                f"more than {_MOST_FIELDS} fields, or {_DEPTH} levels of messages{at}",
                next_step="register a smaller schema",
            )

    def _name(self, *parts: str) -> str:
        """A name made of parts. If different parts give the same name, it gets a number."""
        plain = name = "_".join(part.replace(".", "_") for part in parts)
        number = 1
        while name in self.names:
            number += 1
            name = f"{plain}_{number}"
        self.names.add(name)
        return name

    def _field(self, field: FieldDescriptor, place: _TypePath) -> Any:
        if is_map(field):
            entry = field.message_type
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            pair = [
                {"name": "key", "type": self._type(key, place)},
                {"name": "value", "type": ["null", self._type(value, place)]},
            ]
            name = self._name(place.types[0], *place.parts, "entry")
            return {"type": "array", "items": {"type": "record", "name": name, "fields": pair}}
        found = self._type(field, place)
        if field.is_repeated:
            return {"type": "array", "items": found}
        return ["null", found] if field.has_presence else found

    def _type(self, field: FieldDescriptor, place: _TypePath) -> Any:
        if field.message_type is None:
            return _SCALARS[field.type]
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return {"type": "long", "logicalType": "timestamp-micros"}
        if name == DURATION:
            return "long"
        if name in WRAPPERS:
            return _SCALARS[field.message_type.fields_by_name["value"].type]
        if name in JSON_TYPES:
            return {"type": "string", "sqlType": "JSON"}
        if (digits := decimal_of(field)) is not None:
            return {"type": "bytes", "logicalType": "decimal", "precision": digits[0], "scale": digits[1]}
        return self.record(field.message_type, place)
