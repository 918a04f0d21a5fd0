"""A schema with everything that Protobuf has, and its messages."""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory

from kbq_assets.adapters.protobuf import compile_types

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum State { NEW = 0; PAID = 1; }
message Item { string sku = 1; int32 count = 2; }
message Order {
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  repeated Item items = 4;
  map<string, Item> by_sku = 5;
  State state = 6;
  oneof payment { string card = 7; Item voucher = 8; }
  google.protobuf.Int64Value limit = 9;
  google.protobuf.Struct more = 10;
  uint64 big = 11;
  double price = 12; float weight = 13; uint32 n = 14; sint64 z = 15; bytes raw = 16; bool ok = 17;
  google.protobuf.Duration took = 18;
  repeated int32 numbers = 19;
  fixed64 f = 20; sfixed32 s = 21;
  Item first = 22;
}
message Refund { message Reason { string text = 1; } Reason reason = 1; }
"""
NODE = 'syntax = "proto3"; message Node { int32 v = 1; Node next = 2; }'


def new(*indexes: int, schema: str = ORDER) -> Any:
    """An empty message of the type at a path."""
    type_ = compile_types(schema, {}).at(indexes)
    assert type_ is not None
    return message_factory.GetMessageClass(type_)()


def order(**fields: Any) -> Any:
    """An Order."""
    message = new(1)
    for name, value in fields.items():
        setattr(message, name, value)
    return message
