"""Templates of names, the names made from records' words, and reserved names."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.destinations import (
    Names,
    Unknown,
    fill,
    name_part,
    parse_template,
    text_of,
    with_topic,
)
from kbq_assets.core.topics.source_list import SourceEntry, parse_source_list, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings

TOPIC = "shop_prod.orders-v1"


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("orders", ()),
        ("orders_{header.x-country|none}", ("header.x-country",)),
        ("{field.a.b}_{field.a.b}{key}", ("field.a.b", "key")),
        ("{record}", ("record",)),
        ("{topic}_{topic.12}", ("topic", "topic.12")),
    ],
)
def test_a_template_says_what_it_asks_of_records(text: str, asked: tuple[str, ...]) -> None:
    assert parse_template("table", text).inputs == asked


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a_{b}", "records have no 'b'"),
        ("{field.}", "records have no 'field.'"),
        ("{field.a..b}", "records have no 'field.a..b'"),
        ("{header.}", "records have no 'header.'"),
        ("{topic.0}", "records have no 'topic.0'"),
        ("{}", "records have no ''"),
        ("{key", "unmatched brace"),
        ("key}", "unmatched brace"),
        ("{{key}}", "unmatched brace"),
        ("{key|}", "the default is not usable in names"),
        ("{key|ä}", "the default is not usable in names"),
    ],
)
def test_what_is_no_template_is_refused_with_the_option_s_name(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^table.*{re.escape(message)}"):
        parse_template("table", text)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"key": "A", "field.a": "b c"}, "t_a_b_c"),
        ({"key": "-1", "field.a": "x.Y"}, "t__1_x_y"),
        ({"key": None, "field.a": "1"}, Unknown("key is missing or empty")),
        ({"key": "", "field.a": "1"}, Unknown("key is missing or empty")),
        ({"key": "a", "field.a": None}, "t_a_none"),
        ({"key": "a"}, "t_a_none"),
        ({"key": "a", "field.a": "é"}, Unknown("field.a is 'é', unusable as a name")),
        ({"key": "..", "field.a": "x"}, Unknown("key is '..', unusable as a name")),
    ],
)
def test_words_of_records_become_lower_case_names(
    values: Mapping[str, str | None], name: str | Unknown
) -> None:
    assert fill(parse_template("table", "t_{key}_{field.a|None}"), values) == name


def test_values_are_texts_as_people_write_them() -> None:
    assert list(map(text_of, (True, False, -3, "x", b"k", b"\xff", None))) == [
        "true", "false", "-3", "x", "k", "\N{REPLACEMENT CHARACTER}", None,
    ]  # fmt: skip


@given(st.text(), st.text())
def test_no_two_words_make_names_that_differ_by_case_alone(one: str, other: str) -> None:
    first, second = name_part(one), name_part(other)
    assert first is None or re.fullmatch(r"[a-z0-9_]*[a-z0-9][a-z0-9_]*", first)
    assert first is None or second is None or first == second or first.lower() != second.lower()
    assert name_part(one.upper() if one.isascii() else one) in (first, None)


def test_a_topic_s_name_and_its_parts_stand_in_templates() -> None:
    assert (
        with_topic("{topic}-{topic.2}_{topic.3}{topic.9|x}{key}", TOPIC)
        == "shop_prod_orders_v1-prod_ordersx{key}"
    )
    assert with_topic("{topic.9}", TOPIC) == "{topic.9}"
    entry = parse_source_list("shop_* dataset={topic.1} table={topic.4}_{key} error_dataset=d", "list")[0]
    chosen = select_topics([entry], [TOPIC])[TOPIC]
    destination = chosen.destination
    assert (str(destination.template), destination.by_record) == ("shop.v1_{key}", True)
    assert entry.settings.destination.target("shop_*") == "{topic.1}.{topic.4}_{key}"


def test_a_template_that_the_topic_s_name_fills_is_a_table_like_others() -> None:
    chosen = select_topics([SourceEntry(TOPIC, TopicSettings.of(table="{topic.1}"))], [TOPIC])[TOPIC]
    found = chosen.destination
    table = "kafka.shop"
    assert (found.by_record, str(found.table_for(TOPIC)), found.target(TOPIC)) == (False, table, table)


NAMES = Names(TOPIC, "Sales", ("Orders_DE", "orders_x*", "other.*"))


@pytest.mark.parametrize(
    ("dataset", "table", "found"),
    [
        ("Sales", "orders_de", "Sales.Orders_DE"),
        ("Sales", "orders_x1", "Sales.orders_x1"),
        ("other", "any", "other.any"),
        ("Sales", "orders", None),
        ("Sales", "kbq_errors", None),
        ("other", "kbq_x", None),
        ("other", "x" * 201, None),
        ("other", "x" * 200, None),  # fits no file name
    ],
)
def test_a_record_chooses_a_known_table_or_none(dataset: str, table: str, found: str | None) -> None:
    chosen = NAMES.table(dataset, table)
    assert (str(chosen) if isinstance(chosen, TableReference) else None) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"route": "python:x"}, "route=python:x"),
        ({"route": "else"}, "route=else"),
        (
            {"route": "record_name", "table": "{key}"},
            "route=record_name and a template both choose the table",
        ),
        ({"dataset": "d_{key}"}, "dataset=d_{key}: each record chooses its own"),
        ({"max_tables": 0}, "max_tables=0"),
        ({"tables": "a,A"}, "tables: a and A differ only by case"),
        ({"tables": "a b"}, "tables: 'a b' is not a name"),
        ({"format": "json", "table": "{field.a}"}, "table: field.a: format=json has one column"),
        ({"format": "json_columns", "table": "{record}"}, "table: {record}: JSON records have no names"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(message)}"):
        TopicSettings.of(**options)


@pytest.mark.parametrize(
    ("template", "pii", "is_kept"),
    [
        ("{field.a}", "b:drop", True),
        ("{field.a}", "a:keep", True),
        ("{field.a}", "a:pseudonym", False),
        ("{field.a.b}", "a:drop", False),
        ("{field.a}", "a.b:truncate:1", False),
        ("{field.ab}", "a:drop", True),
        ("{key}", "_key:pseudonym", False),
        ("{key}", "a:drop", False),
        ("{key}", "_key:keep", True),
        ("{header.x}", "a:drop", False),
        ("{header.x}", "_headers:keep", True),
        ("{record}", "a:drop", True),
    ],
)
def test_personal_data_is_in_no_name(template: str, pii: str, is_kept: bool) -> None:
    if is_kept:
        assert TopicSettings.of(table=template, pii=pii).destination.by_record
    else:
        with pytest.raises(ConfigurationError, match="would appear in table names"):
            TopicSettings.of(table=template, pii=pii)


@pytest.mark.parametrize(
    ("template", "pii"),
    [
        ("{field.gr_u00f6_u00dfe}", "größe:pseudonym"),
        ("{field.größe}", "gr_u00f6_u00dfe:truncate:1"),
        ("{field.a.e_mail}", "a.e-mail:pseudonym"),
    ],
)
def test_a_field_s_other_name_is_the_same_personal_data(template: str, pii: str) -> None:
    for kind in ("avro", "debezium"):
        with pytest.raises(ConfigurationError, match="would appear in table names"):
            TopicSettings.of(table=template, pii=pii, format=kind)
    # Keys of documents have no other names.
    assert TopicSettings.of(table=template, pii=pii, format="json_columns").destination.by_record


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("errors_table", "errors"),
        ("errors_table", "kbq_errors_x"),
        ("table", "kbq_errors"),
        ("table", "KBQ-errors__x"),
    ],
)
def test_tables_of_bad_records_and_of_rows_have_different_names(option: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match="bad records"):
        TopicSettings.of(**{option: name})
    found = TopicSettings.of(dataset="d", errors_table="kbq_errors__billing")
    assert str(found.error_table) == "d.kbq_errors__billing"
