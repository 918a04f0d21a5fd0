"""The kernels say of bytes what core/topics/business_time.py says of values, for any text and number."""

from __future__ import annotations

import datetime as dt
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.protocol.commits import MOST_DATES, MOST_HOURS
from kbq_assets.core.topics.business_time import ALL_TIMES, FORMATS, TimeBounds, epoch_micros
from kbq_assets.wire.chunk import Chunk, RawRecord, encode_bytes, encode_long
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.event_time import (
    DAY_MICROS,
    HOUR_MICROS,
    EventTimes,
    event_times,
    kafka_times,
)
from kbq_assets.wire.records.rows_per_hour import HourCounter
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets_tests.sizes import examples
from kbq_assets_tests.wire.samples import DAY, DAY_MILLIS, MILLIS, record_of

LIMITS = RecordLimits()
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
ISO = (
    "2026-01-01",
    "2024-02-29T23:59:59+14:00",
    "0001-01-01",
    "9999-12-31 00:00:00",
    "1969-12-31",
    "2000-02-29",
    "20000229",
    "20000229T101500Z",
    "2026-01-01t10:00z",
    "2026-01-01T10:00:00,5-05",
    " 2026-01-01T10:00:00.123456789+0530\n",
    "2026-01-01T10:00:00+01:00[Europe/Paris]",
    "1738326600",
    "1738326600000",
)
NOT_ISO = (
    "",
    " ",
    "2026-1-1",
    "2026-13-01",
    "2026-00-10",
    "2026-04-31",
    "2026-02-29",
    "1900-02-29",
    "2026/01/01",
    "+2026-01-01",
    "0000-01-01",
    "26-01-2026",
    "2026-01-3x",
    "2026-01-00",
    "2026-0101",
    "202601-01",
    "2026-01-01T",
    "2026-01-01T10",
    "2026-01-01T24:00",
    "2026-01-01T10:60",
    "2026-01-01T10:00:60",
    "2026-01-01T10:0000",
    "2026-01-01T10:00:00.",
    "2026-01-01T10:00:00+24:00",
    "2026-01-01T10:00:00+01:60",
    "2026-01-01T10:00:00+1",
    "2026-01-01T10:00:00Zx",
    "2026-01-01T10:00:00Z[UTC",
    "2026-01-01[UTC]",
    "2026-01-01Z",
    "0001-01-01T00:00:00+00:01",
    "9999-12-31T23:59:59-00:01",
    "12345",
    "9" * 19,
)


@pytest.mark.parametrize(
    ("kind", "encoded", "day"),
    [
        ({"type": "int", "logicalType": "date"}, encode_long(-3), -3),
        ({"type": "long", "logicalType": "timestamp-millis"}, encode_long(DAY_MILLIS * 5 - 1), 4),
        ({"type": "long", "logicalType": "timestamp-millis"}, encode_long(-1), -1),
        ({"type": "long", "logicalType": "timestamp-micros"}, encode_long(DAY_MILLIS * 6000), 6),
        ({"type": "long", "logicalType": "timestamp-nanos"}, encode_long(DAY_MILLIS * 7_000_000 + 1), 7),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, encode_long(DAY_MILLIS * 8000), 8),
        ("long", encode_long(86_400 * 9_000), 9_000),
        ("long", encode_long(86_400_000 * 9_000), 9_000),
        ("long", encode_long(20_250_131), None),
        ("long", encode_long(-1), None),
        ("int", encode_long(86_400 * 9_000), 9_000),
        ("string", encode_bytes(b"2026-01-01T01:00:00+02:00"), dt.date(2025, 12, 31).toordinal() - 719_163),
        ("string", encode_bytes(b"soon"), None),
    ],
)
@pytest.mark.parametrize("branch", [None, 0, 1])
def test_the_event_date_is_that_of_the_field_or_else_of_kafka(
    kind: Any, encoded: bytes, day: int | None, branch: int | None
) -> None:
    union = kind if branch is None else [kind, "null"] if branch == 0 else ["null", kind]
    body = encoded if branch is None else encode_long(branch) + encoded
    schema = record_of(("before", "string"), ("when", union), ("after", "int"))
    days, fallbacks = days_of(schema, "when", [b"\x04ab" + body + b"\x06"])
    assert (days, fallbacks) == (([day], 0) if day is not None else ([DAY], 1))


def test_a_null_event_date_is_that_of_kafka() -> None:
    schema = record_of(("when", ["null", {"type": "int", "logicalType": "date"}]))
    assert days_of(schema, "when", [b"\x00", b"\x02\x0a"]) == ([DAY, 5], 1)


def test_the_newest_time_is_one_that_a_record_gave() -> None:
    schema = record_of(("when", ["null", {"type": "int", "logicalType": "date"}]))
    reported, none = [b"\x00", b"\x02\x0a", b"\x02\x06", b"\x00"], [b"\x00", b"\x00"]
    counter = HourCounter()
    for bodies, newest in ((none, 0), (reported, 5 * DAY_MICROS // 1000), (none, 5 * DAY_MICROS // 1000)):
        times, fallbacks, highest = times_of(schema, "when", bodies)
        assert fallbacks == 2
        counter.add(times, highest)
        assert counter.newest_ms == newest
    assert counter.hours == {5 * 24: 1, 3 * 24: 1, DAY * 24: 6}


def test_the_event_date_may_be_inside_records_and_several_branches() -> None:
    date = {"type": "int", "logicalType": "date"}
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    inner = record_of(("when", ["null", date, millis, "string"]), name="Inner")
    schema = record_of(("first", ["null", inner]), ("second", "Inner"))
    bodies = [
        b"\x00\x02\x0a",
        b"\x02\x02\x0e\x00",
        b"\x02\x04" + encode_long(DAY_MILLIS * 3) + b"\x00",
        b"\x02\x00\x02\x0a",
    ]
    assert days_of(schema, "first.when", bodies) == ([DAY, 7, 3, DAY], 2)


def test_a_field_that_a_schema_does_not_have_gives_no_date() -> None:
    assert days_of(record_of(("id", "int")), "when", [b"\x02"]) == ([DAY], 1)


def test_without_a_field_the_kafka_timestamp_is_no_fallback() -> None:
    assert days_of(record_of(("id", "int")), None, [b"\x02"]) == ([DAY], 0)


@pytest.mark.parametrize("timestamp", [-1, 2**62, -(2**62)])
def test_a_record_without_any_time_gets_the_first_day(timestamp: int) -> None:
    chunk = Chunk.from_messages([RawRecord(b"\x02", 0, timestamp)])
    program = compile_program(avro.parse(record_of(("id", "int"))), ["when"])
    captures = validate_avro(chunk, program, None, LIMITS, prefix=0).captures
    assert event_times(chunk, np.array([0]), captures).times.tolist() == [0]
    counter = HourCounter()
    counter.add_kafka(chunk.timestamps)
    assert (counter.hours, counter.days) == ({0: 1}, frozenset({0}))


@pytest.mark.parametrize("text", [*ISO, *NOT_ISO])
def test_kernel_and_reference_agree(text: str) -> None:
    assert (epoch_micros(text) is not None) is (text in ISO)
    assert micros_of([text]) == [epoch_micros(text)]


moments = st.datetimes(
    timezones=st.sampled_from([None, dt.UTC, dt.timezone(dt.timedelta(hours=-5, minutes=-30))])
)


@settings(max_examples=examples(300))
@given(
    moments,
    st.sampled_from(["auto", "minutes", "seconds", "milliseconds", "microseconds"]),
    st.sampled_from("T "),
)
def test_what_python_writes_is_read_as_python_reads_it(
    moment: dt.datetime, precision: str, between: str
) -> None:
    text = moment.isoformat(between, precision)
    read = dt.datetime.fromisoformat(text)
    read = read.replace(tzinfo=dt.UTC) if read.tzinfo is None else read
    expected: int | None = (read - EPOCH) // dt.timedelta(microseconds=1)
    try:
        read.astimezone(dt.UTC)
    except OverflowError:
        expected = None  # only in another zone's calendar
    assert micros_of([text]) == [expected] == [epoch_micros(text)]


_DATE, _CLOCK = r"\d{4}-?\d\d-?\d\d", r"\d\d:?\d\d(:?\d\d([.,]\d{0,8})?)?"


@settings(max_examples=examples(500))
@given(
    st.one_of(
        st.from_regex(
            r"\A\s?\d{4}-?\d\d-?\d\d([Tt ]\d\d:?\d\d(:?\d\d([.,]\d{0,8})?)?(Z|z|[+-]\d\d:?(\d\d)?)?.?)?\s?\Z"
        ),
        st.integers(0, 10**20).map(str),
        st.text(max_size=40),
    ),
    st.sampled_from(sorted(FORMATS)),
)
@example("20250131", "epoch_s")
def test_any_text_is_read_alike(text: str, format_: str) -> None:
    assert micros_of([text], format_) == [epoch_micros(text, format_)]


@settings(max_examples=examples(300))
@given(
    st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-(10**12), 10**12), st.sampled_from(sorted(FORMATS))
)
@example(10**8, "")
@example(10**8 - 1, "")
def test_any_number_is_read_alike(number: int, format_: str) -> None:
    schema = record_of(("when", "long"))
    times, fallbacks, _ = times_of(schema, "when", [encode_long(number)], FORMATS[format_])
    found = None if fallbacks else int(times[0])
    assert found == epoch_micros(number, format_)


def micros_of(texts: Sequence[str], format_: str = "") -> list[int | None]:
    bodies = [encode_bytes(text.encode("utf-8", "replace")) for text in texts]
    return [
        None if fallbacks else int(times[0])
        for times, fallbacks, _ in (
            times_of(record_of(("when", "string")), "when", [body], FORMATS[format_]) for body in bodies
        )
    ]


def test_hours_are_counted_whatever_their_spread() -> None:
    rng = np.random.default_rng(1)
    counter, expected = HourCounter(), Counter[int]()
    chunks = [
        np.full(10, 5 * HOUR_MICROS + 1),
        rng.integers(-(3 * HOUR_MICROS), 40 * HOUR_MICROS, 1000),
        rng.integers(-(10**6) * HOUR_MICROS, 10**6 * HOUR_MICROS, 50),
        np.empty(0, np.int64),
    ]
    for times in chunks:
        counter.add(times)
        expected.update((times // HOUR_MICROS).tolist())
    assert counter.hours == dict(sorted(expected.items()))
    assert counter.days == {hour // 24 for hour in expected}
    assert counter.newest_ms == max(int(times.max()) for times in chunks if len(times)) // 1000


def test_kafka_times_are_counted_like_others() -> None:
    timestamps = np.array([MILLIS, MILLIS + 1, MILLIS + DAY_MILLIS, -1, 2**60])
    one, other = HourCounter(), HourCounter()
    for part in (timestamps[:2], timestamps):
        one.add_kafka(part)
        other.add(kafka_times(part))
    assert (one.hours, one.days, one.newest_ms) == (other.hours, other.days, MILLIS + DAY_MILLIS)


def test_a_file_lists_the_hours_with_most_rows_and_a_bounded_number() -> None:
    counter = HourCounter()
    scattered = np.arange(70 * MOST_HOURS) * HOUR_MICROS
    counter.add(np.repeat(scattered[10:12], 3))
    counter.add(scattered)
    assert len(counter.hours) == MOST_HOURS
    assert (counter.hours[10], counter.hours[11]) == (4, 4)
    assert len(counter.days) == -(-70 * MOST_HOURS // 24)


def test_days_are_listed_up_to_a_bound_and_beyond_it_none() -> None:
    counter = HourCounter()
    counter.add(np.arange(MOST_DATES) * DAY_MICROS)
    assert counter.days == set(range(MOST_DATES))
    counter.add(np.array([MOST_DATES * DAY_MICROS]))
    counter.add_kafka(np.array([MILLIS]))
    assert counter.days == frozenset()


@pytest.mark.thorough
def test_times_all_over_the_centuries_take_bounded_memory() -> None:
    rng = np.random.default_rng(1)
    counter = HourCounter()
    tracemalloc.start()
    try:
        for _ in range(8):
            counter.add(rng.integers(-(10**6) * HOUR_MICROS, 10**6 * HOUR_MICROS, 50_000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3_000_000
    assert len(counter.hours) == MOST_HOURS


def test_times_out_of_bounds_are_the_kafka_time_and_counted() -> None:
    """From the first day on, until two days after the Kafka time's day."""
    first, end = DAY - 100, DAY + 3
    micros = [first * DAY_MICROS - 1, first * DAY_MICROS, end * DAY_MICROS - 1, end * DAY_MICROS]
    texts = [(EPOCH + dt.timedelta(microseconds=each)).isoformat() for each in micros]
    schema, bodies = record_of(("when", "string")), [encode_bytes(text.encode()) for text in texts]
    bounds = TimeBounds(first, 2)
    found = times_of(schema, "when", bodies, bounds=bounds)
    assert (found.times.tolist(), found.fallbacks) == ([MILLIS * 1000, *micros[1:3], MILLIS * 1000], 2)
    assert found.newest == micros[2]
    assert times_of(schema, "when", bodies).fallbacks == 0
    for no_measure in (-1, 0, 2**62):
        found = times_of(schema, "when", bodies, bounds=bounds, timestamp=no_measure)
        assert (found.times.tolist()[1:], found.fallbacks) == (micros[1:], 1)


def times_of(
    schema: Any,
    field: str | None,
    bodies: Sequence[bytes],
    unit: int = 0,
    *,
    bounds: TimeBounds = ALL_TIMES,
    timestamp: int = MILLIS,
) -> EventTimes:
    chunk = Chunk.from_messages(RawRecord(body, offset, timestamp) for offset, body in enumerate(bodies))
    program = compile_program(avro.parse(schema), [field] if field else [])
    validation = validate_avro(chunk, program, None, LIMITS, prefix=0)
    assert not validation.reasons.any()
    return event_times(chunk, np.arange(len(chunk)), validation.captures, unit, bounds)


def days_of(schema: Any, field: str | None, bodies: Sequence[bytes]) -> tuple[list[int], int]:
    times, fallbacks, _ = times_of(schema, field, bodies)
    times = times if len(times) else kafka_times(np.full(len(bodies), MILLIS))
    return (times // DAY_MICROS).tolist(), fallbacks
