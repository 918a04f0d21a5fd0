"""Paths of state objects: each names exactly one object, and can be parsed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.names import (
    BACKLOG,
    COMPLETENESS,
    FIRST_WAREHOUSE,
    QUARANTINE,
    STAGING,
    TABLE_REGISTRY,
    TABLES,
    ManifestName,
    StagedFileName,
    TableReference,
    audit_path,
    backlog_path,
    backlog_prefix,
    check_topic,
    check_warehouse,
    checked_length,
    commit_path,
    commit_path_of,
    commit_topic,
    known_partition,
    known_table,
    manifest_prefix,
    marker_path,
    own_path,
    parse_number,
    quarantine_path,
    sanitise_table,
    schema_path,
    staged_path,
    table_state_path,
    warehouse_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests import strategies

TABLE = TableReference("sales", "orders")
FEW = settings(max_examples=25)
STAGED = "staging/3-9f2c/shop.orders.0.sales.orders.17.4200.avro"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (commit_path("shop.orders"), "commits/shop.orders.json"),
        (commit_path("shop.orders", 2), "commits/shop.orders@2.json"),
        (commit_path_of(TopicPartition("t", 63)), "commits/t.json"),
        (commit_path_of(TopicPartition("t", 64)), "commits/t@1.json"),
        (manifest_prefix("t", 0), "manifests/t/"),
        (manifest_prefix("t", 1), "manifests/t@1/"),
        (ManifestName("t", 1, 1764, "9f2c").format(), "manifests/t@1/1764-9f2c.json"),
        (table_state_path(TABLE), "tables/sales.orders.json"),
        (audit_path(TABLE, 20), "tables/@audit/sales.orders/20.json"),
        (marker_path("history"), "markers/history"),
        (backlog_prefix(TABLE), "backlog/sales.orders/"),
        (backlog_path(TABLE, 3, TopicPartition("t", 1), 9), "backlog/sales.orders/3-t.1.9.json"),
        (schema_path("0a1b"), "schemas/0a1b.json"),
        (quarantine_path(STAGED), "quarantine/3-9f2c/shop.orders.0.sales.orders.17.4200.avro"),
    ],
)
def test_paths_are_those_of_the_protocol(path: str, expected: str) -> None:
    assert path == expected


def test_a_staged_file_s_name_says_what_the_commit_needs() -> None:
    name = StagedFileName.parse(STAGED)
    assert name == StagedFileName(TopicPartition("shop.orders", 0), TABLE, 17, 4200, 3, "9f2c")
    assert name.mark_key == "shop.orders/0/3/17"


def test_a_quarantined_copy_leads_back_to_its_file() -> None:
    assert staged_path(quarantine_path(STAGED)) == STAGED


@pytest.mark.parametrize(
    "path",
    [
        "manifests/t/1-a.json.txt",
        "manifests/t/1.json",
        "manifests/t/1-.json",
        "manifests/t/-a.json",
        "manifests/t/x-a.json",
        "manifests/t@/1-a.json",
        "manifests/t@x/1-a.json",
        "manifests/t@01/1-a.json",
        "manifests/1-a.json",
        "commits/t/1-a.json",
        "manifests/a b/1-a.json",
    ],
)
def test_what_is_not_a_manifest_s_name_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        ManifestName.parse(path)


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("7", 7), ("10", 10), ("9223372036854775807", 2**63 - 1)]
)
def test_a_number_of_a_name_is_whole_and_fits_an_offset(text: str, number: int) -> None:
    assert parse_number(text, "p") == number


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "01", "00", "1.0", "1_0", " 1", "٣", "²", "9223372036854775808", "1" * 20]
)
def test_every_other_number_is_refused_with_the_path(text: str) -> None:
    with pytest.raises(InvalidName, match="'the/path' is not a name that KBQ writes") as caught:
        parse_number(text, "the/path")
    assert caught.value.next_step == f"expected a whole number instead of {text!r}"


@pytest.mark.parametrize(("size", "fits"), [(255, True), (256, False)])
@pytest.mark.parametrize("letter", ["a", "é"])
def test_a_base_name_is_measured_in_bytes(size: int, fits: bool, letter: str) -> None:
    name = letter * (size // len(letter.encode())) + "x" * (size % len(letter.encode()))
    if fits:
        assert checked_length(name) == name
        return
    with pytest.raises(InvalidName, match="is over 255"):
        checked_length(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("shop.orders-v1", "shop_orders_v1"),
        ("größe", "gr__e"),
        ("", "_"),
        ("a" * 300, "a" * 200),
        ("_kbq_completeness", "_kbq_completeness_"),
        ("_KBQ_Completeness", "_KBQ_Completeness_"),
        ("_kbq-completeness", "_kbq_completeness_"),
    ],
)
def test_a_topic_s_name_becomes_a_table_s(text: str, name: str) -> None:
    assert sanitise_table(text) == name


@pytest.mark.parametrize("text", ["d.t", "D_1.t-x", f"{'d' * 200}.{'t' * 200}"])
def test_a_table_is_written_as_dataset_and_table(text: str) -> None:
    assert str(TableReference.parse(text)) == text


@pytest.mark.parametrize("topic", ["a", "a.b-c_d", "x" * 249, "..."])
def test_kafka_s_names_of_topics_are_taken(topic: str) -> None:
    assert check_topic(topic) == topic


def test_parts_of_names_are_shared_values() -> None:
    assert known_partition("t", 3) is known_partition("t", 3)
    assert known_table("d", "t") is known_table("d", "t")


@pytest.mark.parametrize("name", ["lake", "bq2", "a", "a_1", "a" * 30])
def test_a_warehouse_has_a_short_lower_case_name(name: str) -> None:
    assert check_warehouse(name) == name


@pytest.mark.parametrize("name", ["", "Lake", "1a", "_a", "a-b", "a.b", "a" * 31, "é"])
def test_other_names_of_warehouses_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="cannot be the name of a warehouse"):
        check_warehouse(name)


#: Paths of the first warehouse, and what another one calls them.
SHARED = [
    "commits/t.json",
    "staging/1-a/x.avro",
    "manifests/t/1-a.json",
    "schemas/a.json",
    "x",
    "",
    TABLE_REGISTRY[:6],
]
OF_ONE = [
    ("tables/sales.orders.json", "tables/lake/sales.orders.json"),
    (TABLE_REGISTRY, "tables/lake/_tables.json"),
    ("tables/@audit/sales.orders/20.json", "tables/lake/@audit/sales.orders/20.json"),
    ("backlog/sales.orders/3-t.1.9.json", "backlog/lake/sales.orders/3-t.1.9.json"),
    ("quarantine/3-9f2c/x.avro", "quarantine/lake/3-9f2c/x.avro"),
    ("completeness/sales.json", "completeness/@lake/sales.json"),
    ("completeness/sales/1.avro", "completeness/@lake/sales/1.avro"),
    ("completeness/lake/1.avro", "completeness/@lake/lake/1.avro"),
]


@pytest.mark.parametrize("path", SHARED)
def test_paths_that_warehouses_share_stay(path: str) -> None:
    assert warehouse_path(path, "lake") == path
    assert own_path(path, "lake") == own_path(path, FIRST_WAREHOUSE) == path


@pytest.mark.parametrize(("path", "other"), OF_ONE)
def test_each_warehouse_has_paths_of_its_own(path: str, other: str) -> None:
    assert warehouse_path(path, FIRST_WAREHOUSE) == path
    assert warehouse_path(path, "lake") == other
    assert own_path(other, "lake") == path
    assert own_path(other, "copy") is None
    assert own_path(other, FIRST_WAREHOUSE) is None
    assert own_path(path, FIRST_WAREHOUSE) == path
    assert own_path(path, "lake") is None


@FEW
@given(
    strategies.tables,
    strategies.topic_partitions,
    strategies.epochs,
    strategies.offsets,
    st.sampled_from(["a", "lake"]),
)
def test_no_path_of_a_warehouse_is_another_one_s(
    table: TableReference, tp: TopicPartition, epoch: int, offset: int, warehouse: str
) -> None:
    file = StagedFileName(tp, table, 1, offset, epoch, "0a").format()
    paths = [
        table_state_path(table),
        backlog_path(table, epoch, tp, offset),
        quarantine_path(file),
        audit_path(table, 1),
    ]
    assert {path.partition("/")[0] + "/" for path in paths} == {TABLES, BACKLOG, QUARANTINE}
    for path in paths:
        other = warehouse_path(path, warehouse)
        assert own_path(other, warehouse) == own_path(path, FIRST_WAREHOUSE) == path
        assert own_path(other, FIRST_WAREHOUSE) is own_path(path, warehouse) is None


@FEW
@given(strategies.topics, st.integers(0, 99))
def test_the_path_of_a_commit_names_its_topic(topic: str, shard: int) -> None:
    assert commit_topic(commit_path(topic, shard)) == topic


@FEW
@given(strategies.topics, st.integers(0, 99), strategies.offsets, strategies.attempts)
def test_a_manifest_s_name_parses_to_itself(topic: str, shard: int, generation: int, random: str) -> None:
    name = ManifestName(topic, shard, generation, random)
    assert ManifestName.parse(name.format()) == name
    assert name.format() == f"{manifest_prefix(topic, shard)}{name.base}.json"


def test_folders_end_with_a_slash_and_none_begins_with_another() -> None:
    folders = [STAGING, TABLES, BACKLOG, QUARANTINE, COMPLETENESS]
    assert all(folder.endswith("/") for folder in folders)
    assert not [a for a in folders for b in folders if a != b and a.startswith(b)]
