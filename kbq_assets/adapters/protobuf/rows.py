"""Messages as Avro records: a schema and an encoding function per message type."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from kbq_assets.core.errors import EncodingError
from kbq_assets.wire.chunk import encode_bytes, encode_long

Encode: TypeAlias = Callable[[Any], bytes]

_NULL: Final = b"\x00"
_SOME: Final = b"\x02"
_END: Final = b"\x00"
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_F: Final[Any] = FieldDescriptor

_JSON_TYPES: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "FieldMask", "Empty")
)
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


def avro_schema_of(type_: Descriptor) -> dict[str, Any]:
    """The Avro schema of a message type. Raises EncodingError for one without columns, or that contains itself."""
    return _record_schema(type_, ())


def row_encoder(type_: Descriptor) -> Callable[[bytes], bytes | None]:
    """A function from a serialized message to an Avro record; it returns None for other bytes."""
    new = message_factory.GetMessageClass(type_)
    encode = _record(type_)

    def row(data: bytes) -> bytes | None:
        message = new()
        try:
            message.ParseFromString(data)
            return encode(message)
        except Exception:  # any exception of the library makes this message an error row
            return None

    return row


# Schemas


def _record_schema(type_: Descriptor, outer: tuple[str, ...]) -> dict[str, Any]:
    if type_.full_name in outer:
        raise EncodingError(
            f"message {type_.full_name} contains itself, and no warehouse has recursive column types",
            next_step="register a schema of fixed depth",
        )
    if not type_.fields:
        raise EncodingError(f"message {type_.full_name} has no field", next_step="give it one")
    inside = (*outer, type_.full_name)
    fields = [{"name": f.name, "type": _field_schema(f, inside)} for f in type_.fields]
    # A type may occur at several places, and Avro allows each name once: the path makes it unique.
    name = "_".join((*[n.replace(".", "_") for n in outer[1:]], type_.full_name.replace(".", "_")))
    return {"type": "record", "name": name if outer else type_.name, "fields": fields}


def _field_schema(field: FieldDescriptor, outer: tuple[str, ...]) -> Any:
    where = (*outer, field.name)
    if _is_map(field):
        entry = field.message_type
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        pair = [
            {"name": "key", "type": _type(key, where)},
            {"name": "value", "type": _nullable(value, where)},
        ]
        name = "_".join(n.replace(".", "_") for n in (*where, "entry"))
        return {"type": "array", "items": {"type": "record", "name": name, "fields": pair}}
    if field.is_repeated:
        return {"type": "array", "items": _type(field, where)}
    return _nullable(field, where) if field.has_presence else _type(field, where)


def _nullable(field: FieldDescriptor, outer: tuple[str, ...]) -> Any:
    return ["null", _type(field, outer)]


def _type(field: FieldDescriptor, outer: tuple[str, ...]) -> Any:
    if field.message_type is None:
        return _SCALARS[field.type][0]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return {"type": "long", "logicalType": "timestamp-micros"}
    if name == _DURATION:
        return "long"
    if name in _WRAPPERS:
        return _SCALARS[field.message_type.fields_by_name["value"].type][0]
    if name in _JSON_TYPES:
        return {"type": "string", "sqlType": "JSON"}
    return _record_schema(field.message_type, outer)


# Values


def _record(type_: Descriptor) -> Encode:
    columns = [(field.name, _field(field)) for field in type_.fields]

    def encode(message: Message) -> bytes:
        return b"".join([column(message, name) for name, column in columns])

    return encode


def _field(field: FieldDescriptor) -> Callable[[Message, str], bytes]:
    if _is_map(field):
        return _map(field)
    inner = _value(field)
    if field.is_repeated:
        return lambda message, name: _items([inner(each) for each in getattr(message, name)])
    if field.has_presence:
        return lambda message, name: (
            _SOME + inner(getattr(message, name)) if message.HasField(name) else _NULL
        )
    return lambda message, name: inner(getattr(message, name))


def _map(field: FieldDescriptor) -> Callable[[Message, str], bytes]:
    key = _value(field.message_type.fields_by_name["key"])
    value = _value(field.message_type.fields_by_name["value"])

    def encode(message: Message, name: str) -> bytes:
        found = getattr(message, name)
        # Maps have no order; sorting makes files deterministic.
        return _items([key(each) + _SOME + value(found[each]) for each in sorted(found)])

    return encode


def _items(encoded: list[bytes]) -> bytes:
    return encode_long(len(encoded)) + b"".join(encoded) + _END if encoded else _END


def _value(field: FieldDescriptor) -> Encode:
    if field.message_type is None:
        return _enum(field) if field.type == _F.TYPE_ENUM else _SCALARS[field.type][1]
    name = field.message_type.full_name
    if name in (_TIMESTAMP, _DURATION):
        return lambda found: encode_long(found.seconds * 1_000_000 + found.nanos // 1_000)
    if name in _WRAPPERS:
        inner = _SCALARS[field.message_type.fields_by_name["value"].type][1]
        return lambda found: inner(found.value)
    return _json if name in _JSON_TYPES else _record(field.message_type)


def _enum(field: FieldDescriptor) -> Encode:
    names = {number: _text(value.name) for number, value in field.enum_type.values_by_number.items()}
    # A newer producer may send a number for which the schema has no name.
    return lambda number: names.get(number) or _text(str(number))


def _json(message: Message) -> bytes:
    return _text(json.dumps(json_format.MessageToDict(message), ensure_ascii=False, separators=(",", ":")))


def _text(value: str) -> bytes:
    return encode_bytes(value.encode())


def _decimal(value: int) -> bytes:
    return encode_bytes(value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bool(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


_UNSIGNED: Final = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
_SCALARS: Final[Mapping[int, tuple[Any, Encode]]] = {
    _F.TYPE_DOUBLE: ("double", _DOUBLE.pack),
    _F.TYPE_FLOAT: ("float", _FLOAT.pack),
    _F.TYPE_INT32: ("int", encode_long),
    _F.TYPE_SINT32: ("int", encode_long),
    _F.TYPE_SFIXED32: ("int", encode_long),
    _F.TYPE_UINT32: ("long", encode_long),
    _F.TYPE_FIXED32: ("long", encode_long),
    _F.TYPE_INT64: ("long", encode_long),
    _F.TYPE_SINT64: ("long", encode_long),
    _F.TYPE_SFIXED64: ("long", encode_long),
    _F.TYPE_UINT64: (_UNSIGNED, _decimal),
    _F.TYPE_FIXED64: (_UNSIGNED, _decimal),
    _F.TYPE_BOOL: ("boolean", _bool),
    _F.TYPE_STRING: ("string", _text),
    _F.TYPE_BYTES: ("bytes", encode_bytes),
    _F.TYPE_ENUM: ("string", _text),
}


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)
