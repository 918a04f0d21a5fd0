"""Windows: what comes in comes out, as rows or as rejects, in offset order, in files that others can read."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.wire.chunk import END_OF_TIME, Chunk, RawRecord, encode_bytes
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.encode import (
    NO_SCHEMA_ID,
    EncodedFile,
    NewFile,
    RecordLimits,
    RejectedSchema,
    Route,
    ValueFormat,
)
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.staged_schema import (
    MetadataColumns,
    json_staged_schema,
    staged_schema,
    tombstone_schema,
)
from kbq_assets_tests.wire import generate, reference
from kbq_assets_tests.wire.samples import (
    DAY,
    MILLIS,
    SOURCE,
    TABLE,
    Sinks,
    avro_body,
    chunk_of,
    framed,
    read_rows,
    staged,
    texts,
    window,
)

ALL = MetadataColumns(key=True, headers=True)
TEXT = staged(("text", "string"))


@given(st.randoms(use_true_random=False), st.sampled_from(("snappy", "deflate", "null")))
@settings(max_examples=60, deadline=None)
def test_records_that_fastavro_writes_come_back_with_their_metadata(rng: random.Random, codec: Codec) -> None:
    schema = _without_logical_types(generate.make_schema(rng))
    node = avro.parse(schema)
    values = [generate.make_value(node, rng) for _ in range(rng.randint(1, 8))]
    messages = [
        RawRecord(
            framed(avro_body(schema, reference.tagged(node, value))),
            offset * 3,
            MILLIS + offset,
            rng.choice((None, b"", b"key")),
            rng.choice(([], [("h", b"1"), ("h", None)])),
        )
        for offset, value in enumerate(values)
    ]
    sinks = Sinks()
    encoder = window(sinks, {1: staged_schema(schema, ALL)}, codec=codec, block_bytes=200)
    for part in _split(messages, rng):
        assert not len(encoder.add(Chunk.from_messages(part, keys=True, headers=True)))
    (file,) = encoder.finish()
    assert repr(sinks.rows()) == repr(
        [
            reference.plain(node, value) | _metadata(message)
            for value, message in zip(values, messages, strict=True)
        ]
    )
    assert (file.rows, file.first_offset, file.last_offset) == (len(values), 0, 3 * len(values) - 3)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"}
    return [_without_logical_types(each) for each in schema] if isinstance(schema, list) else schema


def _split(messages: list[RawRecord], rng: random.Random) -> Iterator[list[RawRecord]]:
    while messages:
        size = rng.randint(1, len(messages))
        yield messages[:size]
        messages = messages[size:]


def _metadata(message: RawRecord) -> dict[str, Any]:
    moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=message.timestamp)
    return {
        "_kafka_topic": SOURCE.topic,
        "_kafka_partition": SOURCE.partition,
        "_kafka_offset": message.offset,
        "_kafka_timestamp": moment,
        "_kbq_epoch": SOURCE.epoch,
        "_kafka_key": message.key,
        "_kafka_headers": [{"key": key, "value": value} for key, value in message.headers],
        "event_date": moment.date(),
    }


@pytest.mark.parametrize("seed", range(5))
def test_every_record_is_a_row_or_a_reject(seed: int) -> None:
    rng = random.Random(seed)
    schemas = {schema_id: generate.make_schema(rng) for schema_id in range(1, 6)}
    nodes = {schema_id: avro.parse(schema) for schema_id, schema in schemas.items()}
    values: list[bytes | None] = [_some_value(nodes, rng) for _ in range(3000)]
    sinks = Sinks()
    encoder = window(
        sinks, {key: staged_schema(schema, ALL) for key, schema in schemas.items()}, block_bytes=5000
    )
    chunk = Chunk.from_messages(
        (RawRecord(value, offset, MILLIS) for offset, value in enumerate(values)), keys=True, headers=True
    )
    rejected: list[int] = []
    for first in range(0, len(chunk), 700):
        part = chunk.slice(first, first + 700)
        rejects = encoder.add(part)
        assert (np.diff(rejects.rows) > 0).all()
        rejected += part.offsets[rejects.rows].tolist()
    files = encoder.finish()
    offsets = [
        [row["_kafka_offset"] for row in _rows_without_logical_types(stream)]
        for stream in sinks.files.values()
    ]
    assert all(each == sorted(each) for each in offsets), "a file is in offset order"
    assert sorted([*rejected, *chain.from_iterable(offsets)]) == list(range(3000))
    assert encoder.rows == sum(file.rows for file in files) == 3000 - len(rejected)
    assert len(rejected) > 100
    assert _facts(sinks) == {
        (file.table, file.schema_id, file.first_offset): (file.rows, file.last_offset) for file in files
    }


def _some_value(nodes: dict[int, avro.AvroType], rng: random.Random) -> bytes | None:
    schema_id = rng.choice(list(nodes))
    body = reference.encode(nodes[schema_id], generate.make_value(nodes[schema_id], rng), rng)
    choice = rng.randrange(20)
    if choice < 16:
        return framed(body, schema_id)
    return (None, b"{}", framed(body, 9), generate.damaged(framed(body, schema_id), [body], rng))[choice - 16]


def _rows_without_logical_types(stream: io.BytesIO) -> list[dict[str, Any]]:
    # The values of other logical types are not all Python's; an attribute of another name is ignored.
    return read_rows(stream.getvalue().replace(b"logicalType", b"ignoredType"))


def _facts(sinks: Sinks) -> dict[tuple[str, int, int], tuple[int, int]]:
    facts = {}
    for file, stream in sinks.files.items():
        offsets = [row["_kafka_offset"] for row in _rows_without_logical_types(stream)]
        facts[file.table, file.schema_id, offsets[0]] = (len(offsets), offsets[-1])
        assert file.first_offset == offsets[0]
    return facts


def test_records_are_routed_by_schema_id_and_asked_for_once() -> None:
    asked: list[int] = []

    def resolve(schema_id: int) -> Route | RejectedSchema:
        asked.append(schema_id)
        if schema_id == 3:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, "it is recursive")
        return Route(f"shop.t{schema_id}", TEXT)

    sinks = Sinks()
    encoder = window(sinks, {}, resolve=resolve)
    for first in (0, 6):
        values = [
            framed(b"\x02" + bytes([65 + n]), schema_id) for n, schema_id in enumerate((2, 1, 3, 2, 3, 1))
        ]
        rejects = encoder.add(chunk_of(*values, first_offset=first))
        assert rejects.rows.tolist() == [2, 4]
        assert rejects.messages == ["it is recursive"] * 2
        assert rejects.schema_ids.tolist() == [3, 3]
    assert sorted(asked) == [1, 2, 3]
    assert {file.table: (file.first_offset, file.last_offset) for file in encoder.finish()} == {
        "shop.t1": (1, 11),
        "shop.t2": (0, 9),
    }
    assert [row["text"] for row in sinks.rows(table="shop.t1")] == ["B", "F", "B", "F"]


def test_a_column_may_have_the_schema_id_of_each_file() -> None:
    sinks, metadata = Sinks(), MetadataColumns(schema_id=True)
    encoder = window(
        sinks, {number: staged(("text", "string"), metadata=metadata) for number in (8, 300_000)}
    )
    values = [framed(b"\x02" + bytes([65 + n]), schema_id) for n, schema_id in enumerate((8, 300_000, 8))]
    assert not len(encoder.add(chunk_of(*values)))
    encoder.finish()
    for number, wanted in ((8, ["A", "C"]), (300_000, ["B"])):
        rows = sinks.rows(schema_id=number)
        assert [(row["text"], row["_kbq_schema_id"], row["_kbq_epoch"]) for row in rows] == [
            (text, number, 7) for text in wanted
        ]


def test_rejects_say_why_where_and_which_schema() -> None:
    encoder = window(Sinks(), {1: TEXT})
    values = [
        None,
        b"\x01",
        b"\x00\x00",
        framed(b"\x02a", 5),
        framed(b"\x02a"),
        framed(b"\x02\xff"),
        framed(b""),
    ]
    rejects = encoder.add(chunk_of(*values))
    reasons = [
        Reason.TOMBSTONE,
        Reason.WRONG_MAGIC,
        Reason.TOO_SHORT,
        Reason.UNKNOWN_SCHEMA,
        Reason.INVALID_UTF8,
        Reason.TRUNCATED,
    ]
    assert rejects.rows.tolist() == [0, 1, 2, 3, 5, 6]
    assert rejects.reasons.tolist() == reasons
    assert rejects.schema_ids.tolist() == [NO_SCHEMA_ID] * 3 + [5, 1, 1]
    assert rejects.messages[3:5] == [
        "the registry has no schema 5",
        "a string is not valid UTF-8 in field text (byte 5 of the value)",
    ]
    assert rejects.counts() == dict.fromkeys(reasons, 1)
    assert rejects.take(rejects.reasons == Reason.TRUNCATED).rows.tolist() == [6]
    assert rejects.take([0, 2]).messages == [Reason.TOMBSTONE.message, Reason.TOO_SHORT.message]


def test_a_position_in_a_translated_value_is_not_shown() -> None:
    rejects = window(Sinks(), {1: TEXT}).add(chunk_of(framed(b"\x02\xff")), is_translated=True)
    assert rejects.messages == ["a string is not valid UTF-8 in field text"]


def test_a_null_value_with_a_null_key_is_no_tombstone() -> None:
    messages = [RawRecord(None, 0, key=b"k"), RawRecord(None, 1, key=None)]
    rejects = window(Sinks(), {}).add(Chunk.from_messages(messages, keys=True))
    assert rejects.reasons.tolist() == [Reason.TOMBSTONE, Reason.NULL_VALUE]


def test_a_window_without_good_records_has_no_file() -> None:
    sinks = Sinks()
    encoder = window(sinks, {1: TEXT})
    assert len(encoder.add(chunk_of(b"bad", None))) == 2
    assert not len(encoder.add(chunk_of()))
    assert (encoder.finish(), sinks.files, encoder.bytes_written) == ((), {}, 0)


def test_json_values_are_payloads() -> None:
    sinks = Sinks()
    encoder = window(sinks, {0: json_staged_schema(MetadataColumns())}, value_format=ValueFormat.JSON)
    rejects = encoder.add(chunk_of(b'{"a": 1}', b"{", None, b" 7", '"é"'.encode(), b"", b"\xff"))
    assert [row["payload"] for row in sinks_rows(encoder, sinks)] == ['{"a": 1}', " 7", '"é"']
    assert dict(zip(rejects.rows.tolist(), rejects.reasons.tolist(), strict=True)) == {
        1: Reason.INVALID_JSON,
        2: Reason.TOMBSTONE,
        5: Reason.INVALID_JSON,
        6: Reason.INVALID_UTF8,
    }


def sinks_rows(encoder: Any, sinks: Sinks) -> list[dict[str, Any]]:
    encoder.finish()
    return sinks.rows()


def test_tombstones_of_a_json_topic_keep_their_place_as_null_payloads() -> None:
    sinks = Sinks()
    schema = json_staged_schema(MetadataColumns())
    encoder = window(sinks, {0: schema}, value_format=ValueFormat.JSON, tombstones=Route(TABLE, schema))
    assert encoder.add(chunk_of(b"1", None, b"x", b"2")).rows.tolist() == [2]
    rows = sinks_rows(encoder, sinks)
    assert [(row["_kafka_offset"], row["payload"]) for row in rows] == [(0, "1"), (1, None), (3, "2")]


def test_tombstones_of_an_avro_topic_are_rows_of_a_file_of_their_own() -> None:
    sinks = Sinks()
    route = Route(TABLE, tombstone_schema(MetadataColumns(key=True)))
    encoder = window(
        sinks, {1: staged(("text", "string"), metadata=MetadataColumns(key=True))}, tombstones=route
    )
    messages = [
        RawRecord(framed(b"\x02a"), 0),
        RawRecord(None, 1, key=b"gone"),
        RawRecord(None, 2, key=b"too"),
    ]
    assert not len(encoder.add(Chunk.from_messages(messages, keys=True)))
    encoder.finish()
    assert [row["_kafka_key"] for row in sinks.rows(schema_id=0)] == [b"gone", b"too"]
    assert [row["text"] for row in sinks.rows(schema_id=1)] == ["a"]


def test_the_file_facts_are_those_of_its_bytes() -> None:
    sinks = Sinks()
    encoder = window(
        sinks,
        {1: staged(("when", "string"), metadata=MetadataColumns(business_time=parse_business_time("when")))},
    )
    encoder.add(
        chunk_of(
            *(framed(encode_bytes(text)) for text in (b"2026-01-02", b"1970-01-03", b"no date")),
            first_offset=5,
        )
    )
    assert encoder.bytes_written < encoder.open_files[0].bytes_written + encoder.open_files[0].bytes_buffered
    (file,) = encoder.finish()
    data = next(iter(sinks.files.values())).getvalue()
    schema = staged(("when", "string"), metadata=MetadataColumns(business_time=parse_business_time("when")))
    assert [row["_event_time"].isoformat() for row in read_rows(data)] == [
        "2026-01-02T00:00:00+00:00",
        "1970-01-03T00:00:00+00:00",
        "2026-01-01T00:00:00.007000+00:00",  # Kafka's
    ]
    raw = sum(len(avro_body(json.loads(schema.json), row)) for row in read_rows(data))
    assert file == EncodedFile(
        TABLE,
        1,
        schema.fingerprint,
        3,
        raw,
        len(data),
        5,
        7,
        frozenset({DAY + 1, 2, DAY}),
        {48: 1, 24 * DAY: 1, 24 * DAY + 24: 1},
        (DAY + 1) * 86_400_000,
        1,
    )
    assert encoder.bytes_written == len(data)


def test_the_same_input_makes_the_same_bytes() -> None:
    def run(*sizes: int) -> bytes:
        sinks = Sinks()
        encoder = window(sinks, {1: TEXT}, block_bytes=300)
        whole = chunk_of(*texts(100))
        for first, until in zip((0, *sizes), (*sizes, 100), strict=True):
            encoder.add(whole.slice(first, until))
        encoder.finish()
        return next(iter(sinks.files.values())).getvalue()

    assert run() == run(1, 50, 51) == run(*range(1, 100))


def test_blocks_have_about_their_size_whatever_the_records() -> None:
    sinks = Sinks()
    encoder = window(sinks, {1: TEXT}, block_bytes=1000, codec="null")
    sizes = (10, 5000, 10, 10, 20_000, 900, 10)
    encoder.add(chunk_of(*(framed(encode_bytes(b"a" * size)) for size in sizes)))
    (file,) = encoder.finish()
    stream = next(iter(sinks.files.values()))
    stream.seek(0)
    assert [len(row["text"]) for row in sinks.rows()] == list(sizes)
    assert [block.num_records for block in fastavro.block_reader(io.BytesIO(stream.getvalue()))] == [
        1,
        1,
        2,
        1,
        2,
    ]
    assert file.bytes_raw > sum(sizes)


def test_many_small_records_fill_blocks_to_the_brim() -> None:
    sinks = Sinks()
    encoder = window(sinks, {1: TEXT}, block_bytes=2000)
    encoder.add(chunk_of(*texts(1000)))
    (file,) = encoder.finish()
    blocks = list(fastavro.block_reader(io.BytesIO(next(iter(sinks.files.values())).getvalue())))
    assert len(blocks) == pytest.approx(file.bytes_raw / 2000, abs=1.5)


def test_rotation_starts_a_new_file_with_the_next_record() -> None:
    sinks = Sinks()
    encoder = window(sinks, {1: TEXT, 2: TEXT}, block_bytes=500, codec="null")
    first: list[EncodedFile] = []
    for start in range(0, 250, 50):
        values = [framed(b"\x02a", 2 if start == 0 and n == 0 else 1) for n in range(50)]
        encoder.add(chunk_of(*values, first_offset=start))
        first += encoder.rotate(max_bytes=3_000)  # a hundred records
    rest = encoder.finish()
    assert [(file.schema_id, file.first_offset, file.last_offset) for file in first] == [
        (1, 1, 99),
        (1, 100, 199),
    ]
    assert [(file.schema_id, file.first_offset, file.last_offset) for file in rest] == [
        (2, 0, 0),
        (1, 200, 249),
    ]
    assert encoder.bytes_written == sum(file.bytes_written for file in (*first, *rest))
    assert sorted(row["_kafka_offset"] for row in sinks.rows()) == list(range(250))


def test_rotation_by_bytes_counts_what_is_in_the_sink() -> None:
    encoder = window(Sinks(), {1: TEXT}, block_bytes=500, codec="null")
    encoder.add(chunk_of(*texts(100)))
    size = encoder.open_files[0].bytes_written
    assert encoder.rotate(max_bytes=size + 1) == ()
    assert [file.rows for file in encoder.rotate(max_bytes=size)] == [100]
    assert encoder.open_files == ()


@pytest.mark.parametrize("timestamp", [-1, END_OF_TIME, 2**62, -(2**62)])
def test_a_kafka_timestamp_beyond_the_calendar_is_none(timestamp: int) -> None:
    # BigQuery would refuse the file, fastavro to read it.
    sinks = Sinks()
    encoder = window(sinks, {1: TEXT})
    encoder.add(Chunk.from_messages([RawRecord(framed(b"\x02a"), 0, timestamp)]))
    (row,) = sinks_rows(encoder, sinks)
    assert row["_kafka_timestamp"].timestamp() == -0.001
    assert row["event_date"].isoformat() == "1970-01-01"


def test_limits_are_the_callers() -> None:
    encoder = window(Sinks(), {1: TEXT}, limits=RecordLimits(max_bytes=10))
    rejects = encoder.add(chunk_of(framed(b"\x08abcd"), framed(b"\x0aabcde")))
    assert (rejects.rows.tolist(), rejects.reasons.tolist()) == ([1], [Reason.TOO_LARGE])


def test_a_row_that_bigquery_cannot_read_is_rejected() -> None:
    """The key counts too, although key and value are each within the topic's limits."""
    half, whole = bytes(8_100_000), bytes(16_000_000)
    values = [(half, b"k"), (half, half), (whole, b"k"), (b"x", b"k")]
    messages = [
        RawRecord(framed(encode_bytes(value)), offset, MILLIS, key)
        for offset, (value, key) in enumerate(values)
    ]
    schema = staged(("data", "bytes"), metadata=MetadataColumns(key=True))
    encoder = window(Sinks(), {1: schema}, limits=RecordLimits(max_bytes=2**30))
    rejects = encoder.add(Chunk.from_messages(messages, keys=True))
    assert (rejects.rows.tolist(), set(rejects.reasons.tolist())) == ([1, 2], {Reason.TOO_LARGE})
    assert "too large for a row" in rejects.messages[0]
    assert encoder.rows == 2


def test_a_failing_registry_or_sink_comes_out() -> None:
    def fail(_: object) -> Any:
        raise ConnectionError("away")

    for broken in ({"resolve": fail}, {"open_sink": fail}):
        with pytest.raises(ConnectionError):
            window(Sinks(), {1: TEXT}, **broken).add(chunk_of(framed(b"\x02a")))


@pytest.mark.parametrize(
    ("routes", "options"),
    [
        ({1: staged(("text", "string"), metadata=MetadataColumns(key=True))}, {}),
        ({1: staged(("text", "string"), metadata=MetadataColumns(headers=True))}, {}),
        ({1: json_staged_schema(MetadataColumns())}, {}),
        ({0: TEXT}, {"value_format": ValueFormat.JSON}),
        ({1: TEXT}, {"sync_marker": b"short"}),
        ({1: TEXT}, {"codec": "lzma"}),
    ],
)
def test_a_misused_encoder_says_so(routes: Any, options: Any) -> None:
    value = b"1" if options.get("value_format") else framed(b"\x02a")
    with pytest.raises(EncoderMisuse):
        window(Sinks(), routes, **options).add(chunk_of(value))


def test_values_are_not_copied_but_into_the_block() -> None:
    # 20 MB of values: only a block and its compressed form are allocated, and small change per record.
    encoder = window(Sinks(), {1: TEXT}, open_sink=lambda _: _Nowhere())
    value = framed(encode_bytes(b"a" * 10_000))
    chunk = chunk_of(*[value] * 2000)
    encoder.add(chunk.slice(0, 1))
    tracemalloc.start()
    try:
        encoder.add(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_huge_record_does_not_keep_its_memory() -> None:
    encoder = window(Sinks(), {1: TEXT}, open_sink=lambda _: _Nowhere())
    huge, small = chunk_of(framed(encode_bytes(b"a" * 8_000_000))), chunk_of(*texts(3))
    tracemalloc.start()
    try:
        encoder.add(huge)
        encoder.add(small)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1_000_000


class _Nowhere:
    def write(self, data: bytes, /) -> None:
        assert isinstance(data, bytes)


def test_the_chunk_is_left_as_it_was() -> None:
    chunk = chunk_of(*texts(50), b"bad", None)
    before = chunk.buffer.copy()
    encoder = window(Sinks(), {1: TEXT})
    encoder.add(chunk)
    encoder.finish()
    assert (chunk.buffer == before).all()


def test_a_window_can_be_encoded_without_the_gil() -> None:
    def run(_: int) -> bytes:
        sinks = Sinks()
        encoder = window(sinks, {1: TEXT}, block_bytes=1000)
        encoder.add(chunk_of(*texts(2000)))
        encoder.finish()
        return next(iter(sinks.files.values())).getvalue()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(run, range(16)))) == 1


def test_a_new_file_gets_what_its_name_needs() -> None:
    sinks = Sinks()
    window(sinks, {4: TEXT}).add(chunk_of(framed(b"\x02a", 4), first_offset=17))
    assert list(sinks.files) == [NewFile(TABLE, 4, TEXT.fingerprint, 17)]
