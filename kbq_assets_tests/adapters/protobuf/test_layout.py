"""The kernel writes what Google's library reads from a message, or leaves the message to it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf import message_factory

from kbq_assets.adapters.protobuf import Descriptor, compile_types, layout_of, row_encoder
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.protobuf.encode import MessageEncoder
from kbq_assets.worker.translate import framed
from kbq_assets_tests.adapters.protobuf.test_fuzz import SCHEMA as ODD_SCHEMA
from kbq_assets_tests.adapters.protobuf.test_fuzz import damaged, message
from kbq_assets_tests.sizes import PROTOBUF_MESSAGES

SCHEMA = """
syntax = "proto3";
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
message Order {
  string id = 1; int64 customer = 2; double amount = 3; bool paid = 4; Status status = 5;
  google.protobuf.Timestamp at = 6; Address address = 7; repeated Line lines = 8; repeated int32 codes = 9;
  repeated string tags = 10; optional int32 rank = 11; oneof way { string email = 12; uint64 phone = 13; }
  google.protobuf.Int64Value limit = 14; google.protobuf.StringValue note = 15; bytes raw = 16;
  sint32 change = 17; sint64 shift = 18; fixed32 f = 19; sfixed32 g = 20; fixed64 h = 21; sfixed64 i = 22;
  float share = 23; uint32 count = 24; Empty empty = 25; repeated double points = 26; repeated Status past = 27;
  repeated google.protobuf.Timestamp times = 28; repeated google.protobuf.StringValue words = 29;
  google.protobuf.UInt64Value big = 30; google.protobuf.DoubleValue ratio = 31; map<string, int32> map = 32;
}
message Address { string city = 1; Geo geo = 3; string zip = 2; }
message Geo { double lat = 1; double lon = 2; }
message Line { string sku = 1; int32 pieces = 2; repeated Geo where = 3; }
message Empty {}
enum Status { NEW = 0; SENT = 1; LOST = -5; }
"""
TYPE = compile_types(SCHEMA, {}).at([0])
assert TYPE is not None
ORDER: Any = message_factory.GetMessageClass(TYPE)
NUMBERS = (0, 1, -1, 127, 128, 300, -(2**31), 2**31 - 1)
LARGE = (*NUMBERS, 2**63 - 1, -(2**63))
POSITIVE = (0, 1, 127, 128, 255, 256, 2**31, 2**32 - 1)


def encoder_of(type_: Descriptor) -> MessageEncoder:
    layout = layout_of(type_)
    assert layout is not None
    return MessageEncoder(layout, 7)


def encoded(encoder: MessageEncoder, messages: list[bytes]) -> list[bytes | None]:
    chunk = Chunk.from_messages([RawRecord(each, offset) for offset, each in enumerate(messages)])
    found = encoder.encode(chunk, np.arange(len(messages)))
    spans = zip(found.starts.tolist(), found.ends.tolist(), found.done.tolist(), strict=True)
    return [found.buffer[start:end].tobytes() if done else None for start, end, done in spans]


def expected(type_: Descriptor, data: bytes) -> bytes | None:
    row = row_encoder(type_)(data)
    return framed(7, row) if isinstance(row, bytes) else None


def order(chance: random.Random) -> Any:
    """A message with about half of its fields."""
    made = ORDER()
    for name, some in {
        "id": ("", "x", "Zürich", "y" * 300), "customer": LARGE, "amount": (0.0, -0.0, 1.5, float("inf"), float("nan")),
        "paid": (False, True), "status": (0, 1, -5), "rank": NUMBERS, "raw": (b"", b"\xff" * 9), "change": NUMBERS,
        "shift": LARGE, "f": POSITIVE, "g": NUMBERS, "h": (*POSITIVE, 2**63, 2**64 - 1), "i": LARGE,
        "share": (0.0, 0.1, -2.5), "count": POSITIVE,
    }.items():  # fmt: skip
        if chance.random() < 0.5:
            setattr(made, name, chance.choice(some))
    if chance.random() < 0.5:
        made.at.FromMicroseconds(chance.choice((0, 1, -1, 1_700_000_000_123_456)))
        made.address.city = "x"
        made.address.geo.lon = 13.4
    if chance.random() < 0.5:
        made.limit.value = chance.choice(LARGE)
        made.note.value = chance.choice(("", "x"))
        made.big.value = chance.choice((0, 2**64 - 1))
        made.ratio.value = chance.choice((0.0, 0.5))
        made.empty.SetInParent()
    if chance.random() < 0.5:
        made.email = "a@example.org"
    elif chance.random() < 0.5:
        made.phone = 2**63
    for _ in range(chance.randrange(4)):
        line = made.lines.add(sku="s", pieces=chance.choice(NUMBERS))
        for _ in range(chance.randrange(3)):
            line.where.add(lat=chance.random())
        made.times.add(seconds=5, nanos=chance.choice((0, 999, 999_999_999)))
        made.words.add(value=chance.choice(("", "w")))
    made.codes.extend(chance.choices(NUMBERS, k=chance.randrange(4)))
    made.tags.extend(chance.choices(("", "t"), k=chance.randrange(4)))
    made.points.extend(chance.choices((0.0, 1.5), k=chance.randrange(3)))
    made.past.extend(chance.choices((0, 1, -5), k=chance.randrange(3)))
    return made


def test_messages_as_libraries_write_them_need_no_python_objects() -> None:
    chance, encoder = random.Random(1), encoder_of(TYPE)
    messages = [order(chance).SerializeToString() for _ in range(2_000)]
    assert encoded(encoder, messages) == [expected(TYPE, each) for each in messages]


@pytest.mark.parametrize(
    "data",
    [
        ORDER(map={"a": 1}).SerializeToString(),
        ORDER(status=7).SerializeToString(),
        b"\xf8\x3f\x01",
        b"\x10\x01\xf8",
        b"\x0a\x01\xff",
        b"\x3a\x02\x0a\x00\x3a\x02\x12\x00",
        b"\x62\x01a\x68\x01",
        b"\x48\x01\x52\x01a\x48\x02",
        b"\x0a\x05abc",
        b"\x15\x00\x00\x00\x00",
        b"\x00\x01",
        b"\x32\x02\x08\xff",
        b"\x3a\x7f",
        b"\xff" * 11,
    ],
)
def test_the_rest_is_left(data: bytes) -> None:
    assert encoded(encoder_of(TYPE), [data]) == [None]


@pytest.mark.parametrize("seed", range(PROTOBUF_MESSAGES // 5_000))
def test_random_and_damaged_messages_are_the_same_records(seed: int) -> None:
    chance = random.Random(seed)
    odd = compile_types(ODD_SCHEMA, {}).at([2])
    assert odd is not None
    for type_, messages in (
        (TYPE, [damaged(order(chance).SerializeToString(), chance) for _ in range(1_000)]),
        (TYPE, [damaged(message(TYPE, chance), chance) for _ in range(2_000)]),
        (odd, [damaged(message(odd, chance), chance) for _ in range(2_000)]),
    ):
        found = encoded(encoder_of(type_), messages)
        taken = [index for index, each in enumerate(found) if each is not None]
        assert len(taken) > len(messages) // 10
        for index in taken:
            assert found[index] == expected(type_, messages[index]), messages[index]


def test_a_required_field_that_is_missing_is_left() -> None:
    type_ = compile_types('syntax = "proto2"; message M { required int32 a = 1; }', {}).at([0])
    assert type_ is not None
    assert encoded(encoder_of(type_), [b"", b"\x08\x01"]) == [None, framed(7, b"\x02\x02")]


def test_fields_by_number_and_columns_by_declaration() -> None:
    type_ = compile_types('syntax = "proto3"; message M { int32 b = 9; string a = 1; int32 c = 5; }', {}).at(
        [0]
    )
    assert type_ is not None
    data = b"\x28\x03\x48\x02\x0a\x01x"
    assert encoded(encoder_of(type_), [data]) == [expected(type_, data)] == [framed(7, b"\x04\x02x\x06")]


def test_a_type_deeper_than_the_kernel_has_no_layout() -> None:
    text = "".join(f"message M{n} {{ M{n + 1} m = 1; }}" for n in range(40)) + "message M40 { int32 a = 1; }"
    type_ = compile_types(f'syntax = "proto3"; {text}', {}).at([0])
    assert type_ is not None
    assert layout_of(type_) is None
