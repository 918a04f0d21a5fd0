"""Which options of a topic require or exclude each other, and their combined meaning."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.compaction.model import CompactionRule
from kbq_assets.core.errors import ConfigurationError, InvalidName
from kbq_assets.core.protocol.names import COMPLETENESS_TABLE, TableReference
from kbq_assets.core.topics.error_tables import (
    ERROR_TABLE,
    check_error_table,
    check_table_of_rows,
    is_error_table,
)
from kbq_assets.core.topics.ordering_options import is_late_table
from kbq_assets.core.topics.topic_settings import OPTIONS, TopicSettings

of = TopicSettings.of
APPLY = "INSERT INTO {{ table }} SELECT * FROM {{ batch }}"

#: Options that contradict each other, and the next step.
CONTRADICTIONS: list[Any] = [
    ({"framing": "single_object", "format": "protobuf"}, "format=avro or debezium"),
    ({"framing": "single_object", "format": "json"}, "format=avro or debezium"),
    ({"framing": "header", "format": "json"}, "format=avro or debezium or json_schema or protobuf"),
    ({"framing": "header", "format": "json_columns"}, "format=avro or debezium or json_schema or protobuf"),
    ({"framing": "none", "format": "json"}, "format=avro or debezium or json_schema or protobuf"),
    ({"framing": "none"}, "value_schema=<the id in the registry>"),
    ({"framing": "none", "value_schema": "shop-value"}, "value_schema=<the id in the registry>"),
    ({"framing": "none", "value_schema": "1234567890"}, "value_schema=<the id in the registry>"),
    ({"framing": "none", "value_schema": "7", "key_format": "avro"}, "key_format=bytes, json or text"),
    ({"framing": "none", "value_schema": "7", "key_format": "protobuf"}, "key_format=bytes, json or text"),
    ({"order": "hour", "complete_after_seconds": 0}, "complete_after_seconds=900"),
    ({"late_rows": "park"}, "order=hour"),
    ({"late_rows": "table", "order": "offset"}, "order=hour"),
    ({"late_rows": "table", "order": "hour", "load": "insert_new", "key": "id"}, "load=append"),
    ({"gate": "person"}, "order=offset"),
    ({"hold_until": "m"}, "order=offset"),
    ({"gate": "sql", "order": "offset"}, "set both, or neither"),
    ({"gate_sql": "SELECT 1", "order": "offset"}, "set both, or neither"),
    ({"gate": "person,person", "order": "offset"}, "gate=sql, person, check:<name>, or several of them"),
    ({"gate": "check:", "order": "offset"}, "gate=sql, person, check:<name>, or several of them"),
    ({"gate": "check:a-b", "order": "offset"}, "gate=sql, person, check:<name>, or several of them"),
    ({"gate": "nobody", "order": "offset"}, "gate=sql, person, check:<name>, or several of them"),
    ({"hold_until": "a/b", "order": "offset"}, "letters, digits, '_', '.' and '-', at most 100"),
    ({"hold_until": "a" * 101, "order": "offset"}, "letters, digits, '_', '.' and '-', at most 100"),
    ({"format": "json_columns", "route": "record_name"}, "route=topic"),
    ({"format": "json_schema", "route": "record_name"}, "route=topic"),
    ({"validate": True}, "format=json_schema"),
    ({"validate": True, "format": "protobuf"}, "format=json_schema"),
    ({"max_bytes": 10_485_759}, "raise max_bytes, or lower max_record_bytes"),
    ({"max_bytes": 1, "max_record_bytes": 2}, "raise max_bytes, or lower max_record_bytes"),
    ({"dataset": "{key}"}, "set error_dataset= to the dataset of errors_table"),
    ({"route": "record_name", "table": "{key}"}, "table={record}, or route=topic"),
    ({"format": "json", "table": "{field.a}"}, "format=json_columns"),
    ({"format": "json_columns", "table": "{record}"}, "a field"),
    ({"errors_table": "bad_records"}, "at most 100 characters"),
    ({"table": "kbq_errors"}, "choose another name"),
    ({"order": "offset", "load": "upsert", "key": "_kafka_key", "keys": True, "tombstones": "row"}, "order=none"),
    ({"order": "offset", "load": "scd2", "key": "_kafka_key", "keys": True, "tombstones": "row"}, "order=none"),
    ({"format": "debezium", "load": "upsert", "key": "_kafka_key", "keys": True}, "order=offset"),
    ({"format": "debezium", "load": "upsert", "key": "id", "order": "offset"}, "key=_key.<field> with key_format"),
    (
        {"format": "debezium", "load": "upsert", "key": "_kafka_key", "keys": True,
         "order": "offset", "tombstones": "row"},
        "tombstones=skip",
    ),
    ({"format": "debezium", "load": "scd2", "key": "id"}, "load=upsert, or load=append"),
    ({"load": "sql"}, "sql=<its text>, in a catalog entry"),
    ({"sql": APPLY}, "leave it out, or load=sql"),
    ({"bytes_per_day": 5}, "leave it out, or load=upsert or insert_new"),
    ({"load": "upsert", "key": "_key", "keys": True}, "key_format=avro"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "next_step"), CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused_with_a_way_out(
    options: dict[str, Any], next_step: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        of(**options)
    assert next_step in caught.value.next_step


@pytest.mark.parametrize(
    "options",
    [
        {"framing": "single_object"},
        {"framing": "single_object", "format": "debezium", "value_schema": "shop-value"},
        {"framing": "header", "format": "protobuf"},
        {"framing": "none", "value_schema": "123456789", "key_format": "json"},
        {"order": "hour"},
        {"order": "hour", "late_rows": "table"},
        {"order": "offset", "gate": "sql,person,check:orders_1", "gate_sql": "SELECT 1", "hold_until": "a-b.c_1"},
        {"format": "json", "validate": True},
        {"max_bytes": 10_485_760},
        {"max_bytes": 0, "max_record_bytes": 5},
        {"dataset": "{key}", "error_dataset": "d"},
        {"dataset": "{topic.1}"},
        {"route": "record_name", "table": "{topic}"},
        {"errors_table": "kbq_errors__team"},
        {"order": "offset", "tombstones": "row", "load": "append"},
        {"load": "sql", "sql": APPLY, "tombstones": "row", "require_partition_filter": True},
        {"load": "sql", "sql": APPLY, "format": "debezium"},
        {"load": "scd2", "key": "id"},
        {"load": "scd2", "key": "_kafka_key", "keys": True, "tombstones": "row"},
        {"load": "upsert", "key": "_key.id", "key_format": "avro", "tombstones": "row"},
        {"format": "debezium", "load": "upsert", "key": "_key.id", "key_format": "avro", "order": "hour"},
    ],
)  # fmt: skip
def test_options_that_fit_each_other_are_settings(options: dict[str, Any]) -> None:
    assert of(**options) != TopicSettings()


def test_options_are_changed_by_name_with_text_or_values() -> None:
    settings = of(
        max_records=5, keys=True, cluster_by=["a", "b"], pii={"a": "drop", "_key": "keep"}, priority=7
    )
    same = of(max_records="5", keys="true", cluster_by="a,b", pii="a:drop,_key:keep", priority="7")
    assert settings == same
    assert settings.with_options(max_records=0).extraction.max_records == 0
    assert settings.with_options() == settings


def test_a_change_that_contradicts_what_stays_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="late_rows"):
        of(order="hour", late_rows="park").with_options(order="offset")


def test_every_option_can_be_given_its_default() -> None:
    given = {name: each.default for name, each in OPTIONS.items()}
    assert TopicSettings().with_options(**given) == TopicSettings()


@pytest.mark.parametrize(
    ("options", "table"),
    [
        ({"dataset": "d"}, "d.kbq_errors"),
        ({"dataset": "d", "errors_table": "kbq_errors__x"}, "d.kbq_errors__x"),
        ({"dataset": "{key}", "error_dataset": "e"}, "e.kbq_errors"),
        ({"dataset": "d", "error_dataset": "e"}, "e.kbq_errors"),
    ],
)
def test_bad_records_go_to_the_table_of_their_dataset(options: dict[str, Any], table: str) -> None:
    assert str(of(**options).error_table) == table


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, "kafka.shop_orders"),
        ({"dataset": "d", "table": "x"}, "d.x"),
        ({"dataset": "d", "route": "record_name"}, "d.<record name>"),
        ({"dataset": "d", "table": "x_{key}"}, "d.x_{key}"),
    ],
)
def test_a_destination_is_shown_as_a_table_or_a_pattern(options: dict[str, Any], target: str) -> None:
    assert of(**options).destination.target("shop.orders") == target


def test_a_topic_whose_records_choose_has_no_one_table() -> None:
    destination = of(table="x_{key}").destination
    assert destination.by_record
    with pytest.raises(ConfigurationError, match=r"shop\.orders has no single table"):
        destination.table_for("shop.orders")


def test_a_dataset_that_no_warehouse_allows_is_no_table() -> None:
    with pytest.raises(InvalidName):
        of(dataset="a-b").destination.table_for("t")


def test_the_settings_of_a_topic_have_its_name_in_their_templates() -> None:
    template = of(dataset="{topic.1}", table="t_{topic.2}")
    filled = template.for_topic("shop.orders")
    assert str(filled.destination.table_for("shop.orders")) == "shop.t_orders"
    plain = of(dataset="d")
    assert plain.for_topic("shop.orders") is plain


@pytest.mark.parametrize(
    ("options", "unit"), [({}, ""), ({"partitioning": "auto"}, ""), ({"partitioning": "month"}, "month")]
)
def test_the_warehouse_chooses_the_partitions_unless_the_topic_does(
    options: dict[str, Any], unit: str
) -> None:
    assert of(**options).destination.partition_unit == unit


@pytest.mark.parametrize(("priority", "name"), [("high", "high"), ("8", "high"), ("4", "normal"), ("7", "7")])
def test_a_priority_has_its_name_if_it_has_one(priority: str, name: str) -> None:
    assert of(priority=priority).extraction.priority_name == name


@pytest.mark.parametrize(
    ("options", "decoded", "stored"),
    [({}, False, False), ({"keys": True}, False, True), ({"key_format": "json"}, True, True)],
)
def test_keys_are_stored_as_bytes_or_decoded(options: dict[str, Any], decoded: bool, stored: bool) -> None:
    keys = of(**options).keys
    assert (keys.are_decoded, keys.are_stored) == (decoded, stored)


@pytest.mark.parametrize(
    ("options", "has_minimum", "longest"),
    [
        ({}, False, 0),
        ({"quiet_seconds": 60}, False, 60),
        ({"min_records": 5}, True, 3600),
        ({"min_bytes": 5, "max_wait_seconds": 7, "quiet_seconds": 60}, True, 7),
    ],
)
def test_small_data_waits_as_long_as_its_topic_says(
    options: dict[str, Any], has_minimum: bool, longest: int
) -> None:
    waits = of(**options).waits
    assert (waits.has_minimum, waits.longest_seconds) == (has_minimum, longest)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, CompactionRule()),
        ({"lake_compact": "off"}, CompactionRule(enabled=False)),
        ({"lake_compact": "complete"}, CompactionRule(enabled=True, complete_only=True)),
        (
            {
                "lake_file_bytes": 1,
                "lake_min_files": 2,
                "lake_min_age_seconds": 3,
                "lake_days_after_seconds": 4,
            },
            CompactionRule(None, False, 1, 2, 3000, 4000),
        ),
    ],
)
def test_options_of_a_lake_are_a_rule_of_compaction(options: dict[str, Any], rule: CompactionRule) -> None:
    assert of(**options).lake.rule == rule


@pytest.mark.parametrize(
    ("options", "deletes"),
    [
        ({"load": "scd2", "key": "_kafka_key", "keys": True, "tombstones": "row"}, "mark"),
        ({"load": "scd2", "key": "id"}, "remove"),
        ({"load": "upsert", "key": "_kafka_key", "keys": True, "tombstones": "row"}, "remove"),
        ({"load": "upsert", "key": "id", "deletes": "mark"}, "mark"),
    ],
)
def test_a_history_with_tombstones_marks_them(options: dict[str, Any], deletes: str) -> None:
    assert of(**options).rule.deletes == deletes


@pytest.mark.parametrize(
    ("days", "expected"), [("0", 0), ("2", 2), ("3652059", 3_652_059), ("9999999999", 3_652_059)]
)
def test_no_business_time_counts_beyond_what_a_warehouse_stores(days: str, expected: int) -> None:
    bounds = of(event_date_days_ahead=days, event_date_from="0001-01-01").records.event_bounds
    assert bounds.days_ahead == expected
    assert bounds.first_micros == -62_135_596_800_000_000


@pytest.mark.parametrize(
    ("path", "action"), [("email", "drop"), ("_key", "keep"), ("other", ""), ("email.x", "")]
)
def test_the_decision_about_a_field_is_found_by_its_path(path: str, action: str) -> None:
    assert of(pii="email:drop,_key:keep").privacy.action(path) == action


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("kbq_errors", True),
        ("kbq_errors__a", True),
        ("kbq_errors_a", False),
        ("errors", False),
        ("KBQ_ERRORS", False),
    ],
)
def test_a_table_of_bad_records_is_known_by_its_name(name: str, is_one: bool) -> None:
    assert is_error_table(TableReference("d", name)) is is_one


@pytest.mark.parametrize("name", ["kbq_errors", "kbq_errors__a", f"{ERROR_TABLE}__{'a' * 88}"])
def test_names_of_tables_of_bad_records_are_taken(name: str) -> None:
    check_error_table(name)
    assert is_error_table(TableReference("d", name))
    with pytest.raises(ConfigurationError, match="is reserved for bad records"):
        check_table_of_rows(name.upper())


@pytest.mark.parametrize(
    "name", ["", "kbq_errors_", "kbq_errors__", "kbq_errors__a-b", f"{ERROR_TABLE}__{'a' * 89}"]
)
def test_other_names_are_not(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"errors_table={name} is not a valid name"):
        check_error_table(name)


@pytest.mark.parametrize("name", ["", "orders", COMPLETENESS_TABLE])
def test_rows_may_go_to_every_other_table(name: str) -> None:
    check_table_of_rows(name)


@pytest.mark.parametrize(
    ("table", "late_rows", "is_late"),
    [("t_late", "table", True), ("t_late", "park", False), ("late", "table", False), ("t", "table", False)],
)
def test_late_rows_have_a_table_if_a_topic_asks_for_one(table: str, late_rows: str, is_late: bool) -> None:
    ordering = [of().ordering, of(order="hour", late_rows=late_rows).ordering]
    assert is_late_table(TableReference("d", table), ordering) is is_late
    assert not is_late_table(TableReference("d", table), [])
