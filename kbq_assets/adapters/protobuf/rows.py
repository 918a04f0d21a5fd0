"""Encodes messages as Avro records, with one encoding function per message type."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kbq_assets.adapters.protobuf.avro_schema import (
    DURATION,
    JSON_TYPES,
    TIMESTAMP,
    WRAPPERS,
    decimal_of,
    is_map,
)
from kbq_assets.adapters.protobuf.well_known import BadValue, decimal, duration, json_text, timestamp
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.reasons import Reason

Encode: TypeAlias = Callable[[Any], bytes]
#: Encodes a field of a message, given the message and the field's name. Raises BadValue.
Column: TypeAlias = Callable[[Any, str], bytes]

_NULL: Final = b"\x00"
_SOME: Final = b"\x02"
_END: Final = b"\x00"
#: The marker of a message type without fields, set to true.
_IS_SET: Final = b"\x02\x01"
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")
_F: Final[Any] = FieldDescriptor


def row_encoder(type_: Descriptor) -> Callable[[bytes], bytes | RejectedSchema]:
    """A function from a serialized message to an Avro record, or to the reason why it has none."""
    new = message_factory.GetMessageClass(type_)
    columns = columns_of(type_)

    def row(data: bytes) -> bytes | RejectedSchema:
        message = new()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return RejectedSchema(Reason.INVALID_PROTOBUF, Reason.INVALID_PROTOBUF.message)
        try:
            return b"".join([column(message, name) for name, column in columns])
        except Exception:  # any exception from the library makes this message an error row
            return _problem(message, columns)

    return row


def _problem(message: Message, columns: list[tuple[str, Column]]) -> RejectedSchema:
    """Why a message cannot become a record: its first field that cannot become a column."""
    for name, column in columns:
        try:
            column(message, name)
        except BadValue as refused:
            return RejectedSchema(refused.reason, f"{refused.reason.message}: in field {name}: {refused}")
        except Exception as error:
            return _invalid(f"field {name} cannot be read ({type(error).__name__})")
    return _invalid("it cannot be read")


def _invalid(why: str) -> RejectedSchema:
    return RejectedSchema(Reason.INVALID_PROTOBUF, f"{Reason.INVALID_PROTOBUF.message}: {why}")


def columns_of(type_: Descriptor) -> list[tuple[str, Column]]:
    """The columns of a message type with their field names, in order."""
    if not type_.fields:
        return [("", lambda message, name: _IS_SET)]
    return [(field.name, _field(field)) for field in type_.fields]


def _record(type_: Descriptor) -> Encode:
    columns = columns_of(type_)

    def encode(message: Message) -> bytes:
        return b"".join([column(message, name) for name, column in columns])

    return encode


def _field(field: FieldDescriptor) -> Column:
    if is_map(field):
        return _map(field)
    inner = _value(field)
    if field.is_repeated:
        return lambda message, name: _items(inner, getattr(message, name))
    if field.is_required:
        # Not `FindInitializationErrors`, which kills the process if a map key is not UTF-8 (protobuf 6.33).
        return _required(inner)
    if field.has_presence:
        return lambda message, name: (
            _SOME + inner(getattr(message, name)) if message.HasField(name) else _NULL
        )
    return lambda message, name: inner(getattr(message, name))


def _required(inner: Encode) -> Column:
    def encode(message: Message, name: str) -> bytes:
        if not message.HasField(name):
            raise BadValue(Reason.INVALID_PROTOBUF, f"the required field {name} is missing")
        return _SOME + inner(getattr(message, name))

    return encode


def _map(field: FieldDescriptor) -> Column:
    key = _value(field.message_type.fields_by_name["key"])
    value = _value(field.message_type.fields_by_name["value"])

    def encode(message: Message, name: str) -> bytes:
        found = getattr(message, name)
        # Maps have no order; sorting makes files deterministic.
        return _items(lambda each: key(each) + _SOME + value(found[each]), sorted(found))

    return encode


def _items(encode: Encode, items: Sequence[Any]) -> bytes:
    if not items:
        return _END
    # No list of all encoded items: an item may take one byte in the message, but 40 as an object.
    encoded = bytearray(encode_long(len(items)))
    for each in items:
        encoded += encode(each)
    return bytes(encoded + _END)


def _value(field: FieldDescriptor) -> Encode:
    if field.message_type is None:
        return _enum(field) if field.type == _F.TYPE_ENUM else _SCALARS[field.type]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return lambda found: encode_long(timestamp(found))
    if name == DURATION:
        return lambda found: encode_long(duration(found))
    if name in WRAPPERS:
        inner = _SCALARS[field.message_type.fields_by_name["value"].type]
        return lambda found: inner(found.value)
    if (digits := decimal_of(field)) is not None:
        precision, scale = digits
        return lambda found: _decimal(decimal(found, precision, scale))
    return _json if name in JSON_TYPES else _record(field.message_type)


def _enum(field: FieldDescriptor) -> Encode:
    names = {number: _text(value.name) for number, value in field.enum_type.values_by_number.items()}
    # A newer producer may send a number that has no name in the schema.
    return lambda number: names.get(number) or _text(str(number))


def _json(message: Message) -> bytes:
    return _text(json_text(message))


def _text(value: str) -> bytes:
    try:
        return encode_bytes(value.encode())
    except AttributeError:  # for proto2, the library returns bytes
        raise BadValue(Reason.INVALID_PROTOBUF, Reason.INVALID_UTF8.message) from None


def _decimal(value: int) -> bytes:
    return encode_bytes(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _bool(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


_SCALARS: Final[Mapping[int, Encode]] = {
    _F.TYPE_DOUBLE: _DOUBLE.pack,
    _F.TYPE_FLOAT: _FLOAT.pack,
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), encode_long),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), encode_long),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), encode_long),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), _decimal),
    _F.TYPE_BOOL: _bool,
    _F.TYPE_STRING: _text,
    _F.TYPE_BYTES: encode_bytes,
    _F.TYPE_ENUM: _text,
}
