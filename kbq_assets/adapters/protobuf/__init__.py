"""Protobuf values as Avro records. protoc compiles the schemas, and Google's own library parses the messages.

    double, float        double, float          Timestamp              timestamp-micros
    int32, sint32, …     int                    Duration               long, microseconds
    uint32, fixed32      long                   wrappers (Int64Value…) their scalar, nullable
    int64, sint64, …     long                   Struct, Value, …       JSON
    uint64, fixed64      decimal(20, 0)         other messages         record, nullable
    bool, string, bytes  the same               repeated               array
    enum                 string, its name       map                    array of {key, value}

An absent proto3 scalar without `optional` has its default, as in Protobuf. Absent members of a `oneof` and absent
`optional` fields are null. The schema of a message that contains itself cannot be staged. A message type without fields
becomes a record with a single marker, `_kbq_is_set`, so that the table only gains columns when the type gains fields.
confluent.type.Decimal is a decimal if the field's `field_meta` has precision and scale, otherwise a record.
"""

from google.protobuf.descriptor import Descriptor

from kbq_assets.adapters.protobuf.avro_schema import avro_schema_of
from kbq_assets.adapters.protobuf.compiler import MessageTypes, compile_types
from kbq_assets.adapters.protobuf.fields import fields_of
from kbq_assets.adapters.protobuf.layout import layout_of
from kbq_assets.adapters.protobuf.rows import row_encoder

__all__ = [
    "Descriptor",
    "MessageTypes",
    "avro_schema_of",
    "compile_types",
    "fields_of",
    "layout_of",
    "row_encoder",
]
