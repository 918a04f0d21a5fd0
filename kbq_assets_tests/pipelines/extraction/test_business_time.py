"""Business time from the log to the table: date, column, file hours and counts follow the same rule."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.business_time import epoch_micros
from kbq_assets.core.topics.source_list import parse_source_list, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.pipelines.bench import TP, Bench
from kbq_assets_tests.wire.samples import avro_body, framed

TABLE = TableReference("d", "t")
KAFKA_MS = 1_700_000_000_000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
HOUR = 3_600_000_000
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


#: Tests of values try all centuries.
ANY_TIME: dict[str, Any] = {"event_date_from": "0001-01-01", "event_date_days_ahead": 3_652_059}


def bench_of(
    event_date: str, *fields: tuple[str, Any], window: WindowLimits | None = None, **options: Any
) -> Bench:
    bench = Bench(
        TopicSettings.of(dataset="d", table="t", event_date=event_date, **(ANY_TIME | options)),
        window=window or WindowLimits(),
    )
    bench.warehouse.keep_records = True
    bench.registry.schemas[8] = json.dumps(_schema(fields))
    return bench


def _schema(fields: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": type_} for name, type_ in fields],
    }


def produce(bench: Bench, **values: Any) -> None:
    schema = json.loads(bench.registry.schemas[8])
    bench.kafka.produce(TP, framed(avro_body(schema, values), 8), key=b"k", timestamp=KAFKA_MS)


def micros(moment: dt.datetime) -> int:
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


reported = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.datetimes(timezones=st.just(dt.UTC)).map(dt.datetime.isoformat),
    st.integers(KAFKA_MS - 10**8, KAFKA_MS + 10**8).map(str),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(reported, min_size=1, max_size=12))
def test_date_column_hours_and_counts_agree_with_the_reference(values: list[str | None]) -> None:
    bench = bench_of(
        "auto", ("id", "long"), ("eventTime", ["null", "string"]), window=WindowLimits(records=5)
    )
    for value in values:
        produce(bench, id=1, eventTime=value)
    own = [None if value is None else epoch_micros(value) for value in values]
    expected = [KAFKA_MS * 1000 if time is None else time for time in own]
    counts = bench.extract().totals
    files = list(bench.commit().files)
    hours = sum((Counter(file.events.hours) for file in files), Counter[int]())
    assert counts.event_time_fallbacks == sum(file.events.fallbacks for file in files) == own.count(None)
    assert hours == Counter(time // HOUR for time in expected)
    assert max(0, *(file.events.newest_ms for file in files)) == max(0, *filter(None, own), 0) // 1000
    bench.load()
    rows = sorted(bench.warehouse.records(TABLE), key=lambda row: int(row["_kafka_offset"]))
    assert [micros(row["_event_time"]) for row in rows] == expected
    assert [row["event_date"] for row in rows] == [row["_event_time"].date() for row in rows]
    assert {micros(row["_kafka_timestamp"]) for row in rows} == {KAFKA_MS * 1000}


def test_each_table_of_a_topic_has_the_newest_time_that_its_own_records_have() -> None:
    bench = bench_of("at", ("land", "string"), ("at", ["null", MILLIS]))
    bench.settings = bench.settings.with_options(table="t_{field.land}")
    for land, at in (("fr", 5), ("de", None), ("fr", None), ("de", None), ("fr", 3), ("it", 9)):
        produce(bench, land=land, at=at)
    bench.extract()
    found = {f.table.table: (f.events.newest_ms, f.events.fallbacks) for f in bench.commit().files}
    assert found == {"t_fr": (5, 1), "t_de": (0, 2), "t_it": (9, 0)}


@pytest.mark.parametrize("subject", [{1: 8, 2: 9}, {1: 8}, None])
def test_a_field_that_no_version_has_stops_its_topic_and_names_the_one_that_was_meant(
    subject: dict[int, int] | None,
) -> None:
    """A version that lacks the field is no mistake, nor is a topic whose subject has another name."""
    bench = bench_of("orderd_at", ("id", "long"), ("ordered_at", MILLIS))
    bench.registry.schemas[9] = json.dumps(_schema((("orderd_at", MILLIS),)))
    if subject is not None:
        bench.registry.subjects[f"{TP.topic}-value"] = subject
    produce(bench, id=1, ordered_at=5)
    stops = bench.extract().stops
    if subject == {1: 8}:
        [stop] = stops
        expected = (
            f"no version of {TP.topic}-value has the field orderd_at of event_date; did you mean ordered_at?"
        )
        assert expected in stop.message
    else:
        assert not stops


def test_topics_of_a_pattern_share_options_but_not_their_fields() -> None:
    [line] = parse_source_list("shop.* dataset=d event_date=ordered_at", "topics")
    [exact] = parse_source_list("shop.a dataset=d event_date=ordered_at", "topics")
    chosen = [select_topics([each], ["shop.a"])["shop.a"].records.event_date for each in (line, exact)]
    assert [each.is_optional for each in chosen if each] == [True, False]


def test_a_table_that_is_older_than_the_option_gets_the_column() -> None:
    bench = bench_of("", ("id", "long"), ("at", MILLIS))
    produce(bench, id=1, at=5)
    bench.extract()
    bench.load()
    bench.settings = bench.settings.with_options(event_date="at")
    produce(bench, id=2, at=KAFKA_MS + 7)
    bench.extract()
    bench.load()
    [column] = [each for each in bench.warehouse.columns(TABLE) or () if each.name == "_event_time"]
    assert (column.type, column.mode) == ("TIMESTAMP", "NULLABLE")
    first, second = bench.warehouse.records(TABLE)
    assert first.get("_event_time") is None
    assert micros(second["_event_time"]) == (KAFKA_MS + 7) * 1000


def test_a_records_own_field_of_the_columns_name_stays() -> None:
    bench = bench_of("auto", ("id", "long"), ("_event_time", "string"))
    produce(bench, id=1, _event_time="2025-01-31T23:30:00-02:00")
    bench.extract()
    bench.load()
    [row] = bench.warehouse.records(TABLE)
    assert (row["_event_time"], row["event_date"]) == ("2025-01-31T23:30:00-02:00", dt.date(2025, 2, 1))


def test_tombstones_among_the_rows_have_the_kafka_time_and_are_no_fallbacks() -> None:
    bench = bench_of("at", ("id", "long"), ("at", MILLIS), tombstones="row", keys=True)
    produce(bench, id=1, at=5)
    bench.kafka.produce(TP, None, key=b"k", timestamp=KAFKA_MS)
    assert bench.extract().totals.event_time_fallbacks == 0
    bench.load()
    assert {micros(row["_event_time"]) for row in bench.warehouse.records(TABLE)} == {5_000, KAFKA_MS * 1000}


@pytest.mark.parametrize(
    ("option", "number", "moment"),
    [
        ("sent", 1_738_326_600, 1_738_326_600_000_000),
        ("sent:epoch_s", 350, 350_000_000),
        ("sent:epoch_ms", -1, -1_000),
        ("sent:epoch_us", 7, 7),
        ("sent:epoch_ns", 1_999, 1),
        ("sent:epoch_s", 10**17, KAFKA_MS * 1000),
        ("gone|sent:epoch_s", 350, 350_000_000),
    ],
)
def test_plain_numbers_are_in_the_unit_that_is_stated(option: str, number: int, moment: int) -> None:
    bench = bench_of(option, ("sent", "long"))
    produce(bench, sent=number)
    bench.extract()
    bench.load()
    [row] = bench.warehouse.records(TABLE)
    assert micros(row["_event_time"]) == moment


def test_a_time_of_a_wrong_clock_is_the_kafka_time_and_counted() -> None:
    """From 2000 on, until two days after the Kafka time's day, if the topic says nothing."""
    seconds = KAFKA_MS // 1000
    bench = bench_of("sent:epoch_s", ("sent", "long"), event_date_from="2000-01-01", event_date_days_ahead=2)
    assert bench.settings.records == TopicSettings.of(event_date="sent:epoch_s").records
    produce(bench, sent=seconds - 5)
    produce(bench, sent=5)
    produce(bench, sent=seconds + 4 * 86_400)
    report = bench.extract()
    assert report.totals.event_time_fallbacks == 2
    bench.load()
    rows = sorted(bench.warehouse.records(TABLE), key=lambda row: int(row["_kafka_offset"]))
    assert [micros(row["_event_time"]) // 10**6 for row in rows] == [seconds - 5, seconds, seconds]
    assert [row["sent"] for row in rows] == [seconds - 5, 5, seconds + 4 * 86_400]
