"""A table is created as its topics say. If several topics disagree, the safest option wins. Labels are valid in
BigQuery."""

from __future__ import annotations

import pytest

from kbq_assets.core.compaction.model import CompactionRule
from kbq_assets.core.loading.table_options import label_value, table_options
from kbq_assets.core.loading.tables import Column, TableOptions, clusterable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.topics.source_list import parse_source_list, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.core.catalog.documents import mistake_of

APPENDED = frozenset({StatementRule()})
TABLE = TableReference("sales", "orders")
LINE = (
    "shop.Orders cluster_by=customer,country owner=Team.Shop@example.org cost_center=C-17"
    " require_partition_filter=true partition_expiry_days=90"
)


def _options(lines: str, *topics: str, table: TableReference = TABLE) -> TableOptions:
    return table_options(table, topics, select_topics(parse_source_list(lines, "list"), topics))


def test_a_topics_options_are_its_tables() -> None:
    assert _options(LINE, "shop.Orders") == TableOptions(
        cluster_by=("customer", "country"),
        labels={"kbq": "v1", "topic": "shop_orders", "owner": "team_shop_example_org", "cost_center": "c-17"},
        require_partition_filter=True,
        expiry_days=90,
        rules=APPENDED,
    )


def test_without_options_a_table_is_only_labelled() -> None:
    assert _options("t", "t") == TableOptions(labels={"kbq": "v1", "topic": "t"}, rules=APPENDED)


def test_topics_that_are_no_longer_listed_count_as_default() -> None:
    assert table_options(TABLE, ["gone"], {}) == TableOptions(labels={"kbq": "v1", "topic": "gone"})


def test_partitioning_is_the_first_topics_that_asks_for_one() -> None:
    lines = "a partitioning=auto\nb partitioning=month\nc partitioning=hour"
    assert _options(lines, "c", "b", "a").partition_unit == "month"
    assert _options(lines, "a").partition_unit == ""
    assert "week" in mistake_of("a partitioning=week")


def test_compaction_is_the_first_topics_that_asks_for_something() -> None:
    lines = "a lake_compact=auto\nb lake_compact=complete lake_min_age_seconds=9\nc lake_compact=off"
    assert _options(lines, "c", "b", "a").compaction == CompactionRule(True, True, min_age_ms=9_000)
    assert _options(lines, "c").compaction == CompactionRule(False)
    assert _options(lines, "a").compaction == CompactionRule()


def test_several_topics_lose_the_least() -> None:
    lines = """
    a owner=x cost_center=1 partition_expiry_days=30
    b owner=x cost_center=2 partition_expiry_days=60 cluster_by=id require_partition_filter=true
    c owner=x
    """
    assert _options(lines, "b", "a") == TableOptions(
        cluster_by=("id",),
        labels={"kbq": "v1", "owner": "x"},
        require_partition_filter=True,
        expiry_days=60,
        rules=APPENDED,
    )
    assert _options(lines, "a", "b", "c").expiry_days == 0


def test_an_error_table_keeps_its_rows_and_may_be_read_without_a_filter() -> None:
    errors = _options(LINE, "shop.Orders", table=TableReference("sales", "kbq_errors"))
    assert (errors.expiry_days, errors.require_partition_filter) == (0, False)
    assert errors.cluster_by == ("_kafka_topic", "reason")
    assert errors.labels["owner"] == "team_shop_example_org"


@pytest.mark.parametrize(
    ("text", "label"),
    [("Order.Events v1", "order_events_v1"), ("ü" * 3, "___"), ("x" * 80, "x" * 63), ("", "")],
)
def test_a_label_is_what_the_warehouse_takes(text: str, label: str) -> None:
    assert label_value(text) == label


@pytest.mark.parametrize("option", ["cluster_by=a,,b", "cluster_by=a,b,c,d,e", "partition_expiry_days=-1"])
def test_options_that_no_table_can_have_are_refused_with_their_line(option: str) -> None:
    assert "list:1" in mistake_of(f"t {option}")


def test_columns_that_a_table_lacks_or_that_cannot_cluster_are_left_out() -> None:
    columns = [Column("id", "INT64"), Column("tags", "STRING", "REPEATED"), Column("price", "FLOAT64")]
    wanted = TableOptions(cluster_by=("price", "tags", "id", "gone"))
    assert clusterable(wanted, columns).cluster_by == ("id",)


def test_defaults_make_no_option() -> None:
    assert TopicSettings().destination.cluster_by == ()
