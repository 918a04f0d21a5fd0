"""Messages that no producer should send: each is a valid row or a rejection, and the process lives.

``KBQ_FUZZ`` is 50 times the number of messages, since they take Python's time; ``KBQ_FUZZ_SEED`` is the seed.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import numpy as np

from kbq_assets.adapters.protobuf import avro_schema_of, compile_types, row_encoder
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import RecordLimits, describe

MESSAGES = int(os.environ.get("KBQ_FUZZ", "0")) // 50 or 4_000
SEED = int(os.environ.get("KBQ_FUZZ_SEED", "0"))
SCHEMA = """
syntax = "proto2";
import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto"; import "google/protobuf/any.proto";
import "google/protobuf/wrappers.proto"; import "google/protobuf/struct.proto"; import "google/protobuf/empty.proto";
import "google/protobuf/field_mask.proto"; import "google/type/money.proto";
import "confluent/meta.proto"; import "confluent/type/decimal.proto";
message E {}
enum K { A = 0; B = 5; C = -1; }
message I {
  required int32 y = 1; optional string s = 2; repeated E e = 3; optional group G = 4 { optional bytes z = 1; }
}
message M {
  optional google.protobuf.Timestamp a = 1; optional google.protobuf.Duration b = 2;
  repeated google.protobuf.Int64Value c = 3; optional google.protobuf.Struct d = 4;
  repeated google.protobuf.Value e = 5; optional google.protobuf.FieldMask f = 6;
  optional google.protobuf.Any g = 7; optional google.protobuf.Empty h = 8;
  optional confluent.type.Decimal i = 9 [(confluent.field_meta) = {
    params: [{key: "precision", value: "20"}, {key: "scale", value: "4"}]}];
  optional confluent.type.Decimal j = 10; optional google.type.Money k = 11;
  map<string, I> l = 12; map<int64, K> m = 13; repeated K n = 14; optional uint64 o = 15; optional float p = 16;
  optional I q = 17; oneof x { E r = 18; string t = 19; } repeated string u = 20; map<bool, double> v = 21;
  repeated sint64 w = 22 [packed = true]; optional google.protobuf.ListValue y = 23;
  map<string, google.protobuf.Timestamp> z = 24; repeated fixed64 aa = 25;
}
"""
#: Wire types of fields whose values are no varint, by FieldDescriptorProto.Type.
WIRE_TYPES = {1: 1, 6: 1, 16: 1, 2: 5, 7: 5, 15: 5, 9: 2, 12: 2, 11: 2, 10: 3}
NUMBERS = (0, 1, 5, 127, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 253402300800, 999999999, 2**64 - 500)
TEXTS = (b"", b"abc", "é€".encode(), b"foo_Bar", b"a_b.c", b"\x7f" * 9, b"\xff", b",\xe0/\x02")


def varint(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def message(type_: Any, rng: random.Random, depth: int = 0) -> bytes:
    """A message of some fields in any order, a few of them unknown or of another wire type."""
    made = b""
    for _ in range(rng.randrange(5)):
        field = rng.choice(type_.fields) if type_.fields and rng.random() < 0.95 else None
        wire = (
            WIRE_TYPES.get(field.type, 0) if field is not None and rng.random() < 0.97 else rng.randrange(6)
        )
        number = field.number if field is not None else rng.randrange(1, 40)
        inner = field.message_type if field is not None and depth < 8 else None
        made += varint(number << 3 | wire)
        if wire == 0:
            made += varint(rng.choice((*NUMBERS, rng.getrandbits(64))))
        elif wire in (1, 5):
            made += rng.choice((rng.randbytes(8), b"\0" * 6 + b"\xf8\x7f"))[: 8 if wire == 1 else 4]
        elif wire == 2:
            body = message(inner, rng, depth + 1) if inner else rng.choice((*TEXTS, rng.randbytes(9)))
            made += varint(len(body)) + body
        elif wire == 3:
            made += (message(inner, rng, depth + 1) if inner else b"") + varint(number << 3 | 4)
    return made


def damaged(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    if made and rng.random() < 0.2:
        made[rng.randrange(len(made))] = rng.randrange(256)
    return bytes(made)


def test_every_message_is_a_valid_row_or_a_rejection() -> None:
    rng = random.Random(SEED)
    type_ = compile_types(SCHEMA, {}).at([2])
    assert type_ is not None
    encode, program = (
        row_encoder(type_),
        staged_schema(json.dumps(avro_schema_of(type_)), MetadataColumns()).program,
    )
    for first in range(0, MESSAGES, 2_000):
        made = (encode(damaged(message(type_, rng), rng)) for _ in range(first, min(MESSAGES, first + 2_000)))
        rows = [b"\0\0\0\0\1" + row for row in made if isinstance(row, bytes)]
        chunk = Chunk.from_messages(RawRecord(row, offset) for offset, row in enumerate(rows))
        found = validate_avro(chunk, program, np.arange(len(rows)), RecordLimits())
        wrong = [describe(program, found, i) for i in np.flatnonzero(found.reasons).tolist()]
        assert not wrong, f"KBQ_FUZZ_SEED={SEED}: {wrong[:3]}"
