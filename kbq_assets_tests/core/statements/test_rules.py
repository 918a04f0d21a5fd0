"""A table's rule comes from its topics; its key identifies rows; names of companion tables are distinct."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.table_options import table_options
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.keys import check_variants, key_columns
from kbq_assets.core.statements.rules import StatementRule, rule_of
from kbq_assets.core.statements.side_tables import (
    deleted_table,
    ledger_table,
    scratch_number,
    scratch_table,
)
from kbq_assets.core.topics.error_tables import ERROR_TABLE
from kbq_assets.core.topics.topic_settings import TopicSettings

T = TableReference("d", "orders")
APPEND, BY_ID, BY_X = StatementRule(), StatementRule("upsert", ("id",)), StatementRule("upsert", ("x",))
HISTORY = StatementRule("scd2", ("id",))


@pytest.mark.parametrize(
    ("wanted", "stored", "rule"),
    [
        ([], APPEND, APPEND),
        ([], BY_ID, BY_ID),
        ([BY_ID], APPEND, BY_ID),
        ([APPEND], BY_ID, APPEND),
        ([BY_ID, BY_ID], BY_ID, BY_ID),
        ([HISTORY], replace(HISTORY, deletes="mark"), HISTORY),
    ],
)
def test_topics_decide_and_a_table_without_known_topics_keeps_its_rule(
    wanted: list[StatementRule], stored: StatementRule, rule: StatementRule
) -> None:
    assert rule_of(T, wanted, stored, stored) == rule


BY_VERSION = StatementRule("snapshot", version="v")


@pytest.mark.parametrize(
    ("wanted", "stored"),
    [
        ([BY_ID, APPEND], APPEND),
        ([BY_X], BY_ID),
        ([StatementRule("insert_new", ("id",))], BY_ID),
        ([StatementRule("snapshot", version="other")], BY_VERSION),
        ([StatementRule("upsert", ("id",), "mark")], BY_ID),
        ([BY_ID], StatementRule("upsert", ("id",), "mark")),
    ],
)
def test_topics_that_disagree_and_another_key_are_refused(
    wanted: list[StatementRule], stored: StatementRule
) -> None:
    with pytest.raises(ConfigurationError, match=r"orders"):
        rule_of(T, wanted, stored, stored)


def test_options_of_topics_become_rules_and_error_tables_append() -> None:
    settings = {
        "a": TopicSettings.of(load="upsert", key="id,at.day", deletes="mark", tie="timestamp"),
        "b": TopicSettings(),
    }
    rule = StatementRule("upsert", ("id", "at.day"), "mark", "timestamp")
    assert table_options(T, ["a", "gone"], settings).rules == {rule}
    assert table_options(T, ["a", "b"], settings).rules == {rule, APPEND}
    assert table_options(TableReference("d", ERROR_TABLE), ["a"], settings).rules == frozenset()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"load": "upsert"}, "no key"),
        ({"load": "upsert", "key": "_kafka_key"}, "keys=true"),
        ({"load": "upsert", "key": "_key.id"}, "key_format"),
        ({"load": "upsert", "key": "id,_key.id", "key_format": "json"}, "_key has no fields"),
        ({"load": "scd2", "key": "_key.id", "key_format": "text"}, "_key has no fields"),
        ({"load": "upsert", "key": "id", "tombstones": "row"}, "would delete nothing"),
        ({"load": "upsert", "key": "id", "require_partition_filter": "true"}, "require_partition_filter"),
        ({"load": "upsert", "key": "id,id"}, "columns: key"),
        ({"load": "upsert", "key": "a b"}, "columns: key"),
        ({"load": "replace"}, "one of append, upsert"),
        ({"load": "insert_new"}, "load=insert_new: no key"),
        ({"load": "delete_insert", "key": "id"}, "no version"),
        ({"load": "delete_insert", "version": "v"}, "no key"),
        ({"load": "snapshot"}, "no version"),
        ({"load": "snapshot", "version": "v", "key": "id"}, "key: load=snapshot does not use it"),
        ({"load": "snapshot", "version": "v,w"}, "one column"),
        ({"load": "insert_new", "key": "id", "deletes": "mark"}, "load=upsert"),
        ({"load": "insert_new", "key": "id", "within_days": "-1"}, "0 or more"),
        ({"load": "upsert", "key": "id", "within_days": "3"}, "load=insert_new"),
        ({"load": "delete_insert", "key": "id", "version": "v", "tie": "timestamp"}, "load=upsert"),
        ({"load": "scd2"}, "load=scd2: no key"),
        ({"load": "scd2", "key": "id", "tombstones": "row"}, "would delete nothing"),
        ({"within_days": "3"}, "load=append does not use it"),
        ({"load": "insert_new", "key": "id", "tombstones": "row"}, "tombstones=skip"),
        ({"load": "insert_new", "key": "_kafka_key"}, "keys=true"),
        (
            {"load": "snapshot", "version": "v", "require_partition_filter": "true"},
            "require_partition_filter",
        ),
        (
            {
                "load": "insert_new",
                "key": "_key.id",
                "key_format": "avro",
                "format": "debezium",
                "order": "offset",
            },
            "load=upsert, or load=append",
        ),
    ],
)
def test_options_that_contradict_an_upsert_are_refused_with_a_next_step(
    options: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        TopicSettings.of(**options)
    assert named in str(refused.value)


COLUMNS = (
    Column("id", "INT64"),
    Column("price", "FLOAT64"),
    Column("tags", "STRING", "REPEATED"),
    Column(
        "_key",
        "STRUCT",
        fields=(Column("id", "STRING"), Column("at", "STRUCT", fields=(Column("n", "DATE"),))),
    ),
)


def test_a_key_may_be_columns_and_fields_of_records() -> None:
    found = key_columns(T, ("id", "_key.id", "_key.at.n"), COLUMNS)
    assert [column.type for column in found] == ["INT64", "STRING", "DATE"]


@pytest.mark.parametrize("path", ["price", "tags", "_key", "day"])
def test_a_column_whose_values_have_no_order_is_no_version(path: str) -> None:
    columns = (*COLUMNS, Column("day", "BIGNUMERIC"))  # texts, in DuckDB
    with pytest.raises(ConfigurationError, match="`version` does not allow"):
        key_columns(T, [path], columns, "version")


@pytest.mark.parametrize("path", ["no", "id.x", "_key", "_key.no", "price", "tags", "_key.at"])
def test_a_column_that_identifies_no_row_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"orders"):
        key_columns(T, (path,), COLUMNS)


def _of_key(*fields: str) -> tuple[Column, ...]:
    return (Column("_key", "STRUCT", fields=tuple(Column(name, "STRING") for name in fields)),)


CHANGE = (Column("__source", "STRUCT"), Column("__op", "STRING"), Column("__deleted", "BOOL"))


@pytest.mark.parametrize(
    ("rule", "staged", "named"),
    [
        (StatementRule("upsert", ("id",)), (Column("id__string", "STRING"),), "id__string instead of id"),
        (StatementRule("upsert", ("_key.id",)), _of_key("id__string"), "_key.id__string instead of _key.id"),
        (
            StatementRule("insert_new", ("a", "id")),
            (Column("id__bytes", "BYTES"),),
            "id__bytes instead of id",
        ),
        (StatementRule("snapshot", version="v"), (Column("v__date", "DATE"),), "v__date instead of v"),
        (
            StatementRule("upsert", ("id",)),
            (*CHANGE[:2], Column("__deleted__bool", "BOOL")),
            "__deleted__bool instead of __deleted",
        ),
    ],
)
def test_a_variant_of_a_column_that_a_statement_needs_is_refused(
    rule: StatementRule, staged: tuple[Column, ...], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        check_variants(T, rule, staged)
    assert "kbq reset --topic T --give-up-pending" in str(refused.value.next_step)


@pytest.mark.parametrize(
    ("rule", "staged"),
    [
        (StatementRule(), (Column("id__string", "STRING"),)),
        (StatementRule("upsert", ("id",)), (Column("id", "INT64"), Column("id__string", "STRING"))),
        (StatementRule("upsert", ("id",)), (Column("id__old", "STRING"),)),
        (StatementRule("upsert", ("id",)), (Column("__deleted__bool", "BOOL"), Column("__op", "STRING"))),
        (StatementRule("upsert", ("_key.id",)), (*_of_key("id"), *CHANGE)),
        (StatementRule("upsert", ("_key.id",)), ()),
    ],
)
def test_other_columns_are_no_variants(rule: StatementRule, staged: tuple[Column, ...]) -> None:
    check_variants(T, rule, staged)


def test_a_scratch_table_knows_the_number_of_its_load_job() -> None:
    scratch = scratch_table(T, "kbq-9f2c-17")
    assert (scratch.dataset, scratch_number(scratch.table, "9f2c")) == ("d", 17)
    assert [scratch_number(name, "9f2c") for name in ("orders", "_kbq_batch_9f2c_", scratch.table + "x")] == [
        None
    ] * 3
    assert scratch_number(scratch.table, "9f2") is None


def test_tables_that_belong_to_targets_with_long_names_are_distinct() -> None:
    long = [TableReference("d", "x" * 199 + end) for end in "ab"]
    companions = [of(table) for of in (ledger_table, deleted_table) for table in long]
    assert len(set(companions)) == 4
    assert all(len(table.table) <= 200 for table in companions)
