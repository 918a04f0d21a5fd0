"""Business times in the forms that producers write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.avro.tree import AvroType, parse
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.business_time import (
    BusinessTime,
    Chosen,
    candidate_keys,
    choose_field,
    epoch_micros,
    name_rank,
    option_text,
    parse_business_time,
)
from kbq_assets.core.topics.json.numbers import Number

#: 2025-01-31T12:30:00Z
NOON = 1_738_326_600


@pytest.mark.parametrize(
    "value",
    [
        NOON,
        NOON * 1_000,
        NOON * 1_000_000,
        float(NOON),
        str(NOON),
        str(NOON * 1_000),
        "2025-01-31T12:30:00Z",
        "2025-01-31T12:30:00.000+00:00",
        "2025-01-31T14:30:00+02:00",
        "2025-01-31 12:30:00",
        " 2025-01-31T12:30Z ",
    ],
)
def test_every_way_is_the_same_moment_in_utc(value: object) -> None:
    assert epoch_micros(value) == NOON * 1_000_000


@pytest.mark.parametrize(
    ("value", "micros"),
    [
        ("2025-01-31", 1_738_281_600_000_000),
        ("20250131", 1_738_281_600_000_000),
        ("2025-01-31T12:30:00.123456Z", NOON * 1_000_000 + 123_456),
        (1738326600.25, NOON * 1_000_000 + 250_000),
        (Number("1738326600.250000001"), NOON * 1_000_000 + 250_000),
        (NOON * 1_000_000_000 + 999, NOON * 1_000_000),
        (10**8, 10**14),
        ("1970-01-01", 0),
        ("1969-12-31", -86_400_000_000),
    ],
)
def test_dates_and_fractions(value: object, micros: int) -> None:
    assert epoch_micros(value) == micros


@pytest.mark.parametrize(
    "value",
    [
        None, True, -1, 0, 20_250_131, float("nan"), float("inf"), 2**63, "", "soon", "31/01/2025", "9" * 30,
        Number("1e400"), "2025-13-01", [NOON], {}, "0001-01-01T00:00:00+23:59",
    ],
)  # fmt: skip
def test_what_is_no_time_is_none(value: object) -> None:
    assert epoch_micros(value) is None


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
UUID = {"type": "string", "logicalType": "uuid"}


def record(**fields: Any) -> AvroType:
    each = [{"name": name, "type": type_} for name, type_ in fields.items()]
    return parse({"type": "record", "name": "R", "fields": each})


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        (
            {"id": "long", "created_at": MILLIS, "eventTime": "string"},
            Chosen("eventTime", "text, by its name"),
        ),
        ({"date": DATE, "ts": "long"}, Chosen("ts", "a plain number, by its name")),
        ({"OccurredAt": ["null", MILLIS]}, Chosen("OccurredAt", "a timestamp, by its name")),
        (
            {"sold_date": DATE, "changed_at": "string", "paid_time": LOCAL},
            Chosen("paid_time", "a timestamp, by its name"),
        ),
        (
            {"changed_at": "long", "response_time": "long"},
            Chosen("changed_at", "a plain number, by its name"),
        ),
        ({"changed_at": "long", "received": MILLIS}, Chosen("received", "a timestamp, by its type")),
        ({"born": DATE, "received": MILLIS, "sent": MILLIS}, Chosen("received", "a timestamp, by its type")),
        ({"born": ["null", DATE]}, Chosen("born", "a date, by its type")),
        ({"time": [MILLIS, "string"], "ts": UUID}, Chosen("time", "text, by its name")),
        (
            {"date": "string", "timestamp": ["int", "null"]},
            Chosen("timestamp", "a plain number, by its name"),
        ),
        ({"response_time": "long", "birth": "string", "looked": "int", "time": ["string", "bytes"]}, None),
        ({"time": {"type": "int", "logicalType": "time-millis"}, "ts": "double", "date": "null"}, None),
        ({}, None),
    ],
)
def test_a_field_is_chosen_by_name_then_type(fields: dict[str, Any], chosen: Chosen | None) -> None:
    assert choose_field(record(**fields), BusinessTime()) == chosen


@given(st.permutations([("created_at", MILLIS), ("ts", "string"), ("sold_date", DATE), ("at", MILLIS)]))
def test_the_choice_by_name_does_not_depend_on_the_order_of_fields(fields: list[tuple[str, Any]]) -> None:
    assert choose_field(record(**dict(fields)), BusinessTime()) == Chosen(
        "created_at", "a timestamp, by its name"
    )


def test_of_several_candidates_the_first_with_a_time_counts() -> None:
    inner = {"type": "record", "name": "Meta", "namespace": "n", "fields": [{"name": "at", "type": "string"}]}
    schema = record(ts="bytes", first=["null", inner], second="n.Meta", when=MILLIS)
    for option, path in [
        ("ts|second.at|when", "second.at"),
        ("x|when", "when"),
        ("first.at", "first.at"),
        ("ts", "ts"),
    ]:
        business = parse_business_time(option)
        assert business is not None
        chosen = choose_field(schema, business)
        assert chosen is not None
        assert chosen.path == path
    assert choose_field(schema, BusinessTime(("x", "ts"))) is None


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("", None),
        ("auto", BusinessTime()),
        ("auto:epoch_ms", BusinessTime((), "epoch_ms")),
        ("a.b", BusinessTime(("a.b",))),
        ("a|b.c:epoch_s", BusinessTime(("a", "b.c"), "epoch_s")),
    ],
)
def test_the_option_is_a_field_or_several_or_auto(option: str, expected: BusinessTime | None) -> None:
    assert parse_business_time(option) == expected


@pytest.mark.parametrize("option", ["a:epoch", "a:", "a||b", "a..b", ":epoch_s"])
def test_a_wrong_option_is_refused_with_what_is_right(option: str) -> None:
    with pytest.raises(ConfigurationError, match="event_date="):
        parse_business_time(option)


def test_the_keys_of_a_catalogue_make_the_option() -> None:
    assert option_text({"field": "a", "candidates": ["b", "c"], "format": "epoch_s"}) == "a|b|c:epoch_s"
    assert option_text({"format": "epoch_ms"}) == "auto:epoch_ms"


def test_names_are_ranked_however_they_are_written() -> None:
    names = ["eventTime", "EVENT_TIME", "event-time", "_event_time", "EventTime"]
    assert {name_rank(name) for name in names} == {0}
    assert candidate_keys(["id", "sold_date", "ts", "updatedAt", "timestamp", "duration"]) == (
        "timestamp", "ts", "updatedAt", "sold_date",
    )  # fmt: skip


def test_a_document_has_the_time_of_its_first_candidate_that_is_one() -> None:
    document = {
        "event_time": "soon",
        "created_at": None,
        "ts": 350,
        "updated_at": NOON,
        "meta": {"at": "2025-01-31"},
    }
    assert BusinessTime().of_document(document) == NOON * 1_000_000
    assert BusinessTime(("meta.at", "updated_at")).of_document(document) == 1_738_281_600_000_000
    assert BusinessTime(("meta.at.x", "ts"), "epoch_s").of_document(document) == 350_000_000
    assert [BusinessTime().of_document(each) for each in ([NOON], NOON, {"ts": True})] == [None] * 3
