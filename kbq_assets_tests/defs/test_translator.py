"""Partition keys: stable, unambiguous, and free of what Dagster refuses."""

from __future__ import annotations

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, parse_source_list
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.defs.translator import AssetTranslator, StagedKey, column_schema
from kbq_assets_tests.strategies import tables, topic_partitions

keys = st.builds(StagedKey, topic_partitions, tables)


def test_the_key_names_topic_partition_and_table() -> None:
    key = StagedKey(TopicPartition("nyc.flights.v1", 3), TableReference("nyc", "flights"))
    assert key.format() == "nyc.flights.v1/3/nyc.flights"


@given(keys)
def test_a_key_parses_back(key: StagedKey) -> None:
    assert StagedKey.parse(key.format()) == key


@given(st.integers(3, 12), st.integers(0, 12))
def test_dots_in_a_row_are_never_a_range_to_dagster(first: int, second: int) -> None:
    key = StagedKey(TopicPartition(f"a{'.' * first}b{'.' * second}", 0), TableReference("d", "t"))
    assert "..." not in key.format()
    assert StagedKey.parse(key.format()) == key


@given(st.lists(keys, min_size=50, max_size=50))
@settings(max_examples=5, deadline=None)
def test_dagster_accepts_every_key(some: list[StagedKey]) -> None:
    names = {key.format() for key in some}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("staged_files", sorted(names))
        assert set(instance.get_dynamic_partitions("staged_files")) == names


@pytest.mark.parametrize(
    "text",
    ["", "t/0", "t", "t/d.t", "t/x/d.t", "t/-1/d.t", "t/0/d.t/1", "t/0/nodot", "a b/0/d.t", "../0/d.t"],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        StagedKey.parse(text)


def test_every_line_of_the_source_list_is_an_external_asset() -> None:
    entries = parse_source_list("a.b dataset=d table=x\naudit-* route=record_name dataset=d\n", "list")
    specs = AssetTranslator().topic_specs(entries)
    assert [spec.key for spec in specs] == [
        dg.AssetKey(["kafka", "a.b"]),
        dg.AssetKey(["kafka", "audit-any"]),
    ]
    assert "d.x" in (specs[0].description or "")


def test_patterns_of_the_same_name_make_one_asset() -> None:
    specs = AssetTranslator().topic_specs(parse_source_list("a?\na_\n", "list"))
    assert len(specs) == 1


@pytest.mark.parametrize(
    ("owner", "shown"),
    [
        ("growth", "team:growth"),
        ("team:growth", "team:growth"),
        ("ada@example.org", "ada@example.org"),
        ("ops@example.solutions", "team:ops@example.solutions"),
        ("o'brien@example.com", "team:o'brien@example.com"),
        ("jörg@example.de", "team:jörg@example.de"),
        ("team:", "team:data-platform"),
    ],
)
def test_owners_of_the_source_list_own_their_topics(owner: str, shown: str) -> None:
    [spec] = AssetTranslator().topic_specs(
        parse_source_list(f"a dataset=d owner={owner} cost_center=4711/b\n", "list")
    )
    assert (spec.owners, spec.tags["kbq/cost_center"]) == ([shown], "4711_b")


@given(st.one_of(st.text(), st.emails(), st.text().map("team:{}".format)), st.text())
def test_whatever_a_catalogue_has_about_owners_and_costs_dagster_takes(owner: str, cost_center: str) -> None:
    settings = TopicSettings.of(dataset="d", owner=owner, cost_center=cost_center)
    [spec] = AssetTranslator().topic_specs([SourceEntry("a", settings)])
    assert len(spec.owners) == 1


def test_a_topic_is_shown_at_the_line_that_decides_about_it() -> None:
    entries = parse_source_list("a.b\na.*\n", "list")
    assert AssetTranslator().topic_assets(entries, ["a.b", "a.c", "b"]) == {
        "a.b": dg.AssetKey(["kafka", "a.b"]),
        "a.c": dg.AssetKey(["kafka", "a.any"]),
    }


@pytest.mark.parametrize("dataset", ["kafka", "staged", "sales"])
def test_topics_staged_files_and_tables_never_share_a_key(dataset: str) -> None:
    translator = AssetTranslator(prefix=("kbq",))
    table = translator.dataset_key(TableReference(dataset, "orders"))
    others = {translator.staged_key("orders"), translator.topic_key("orders")}
    assert table not in others
    assert {key.path[0] for key in (table, *others)} == {"kbq"}


def test_fields_of_records_are_columns_by_their_path() -> None:
    inner = Column("city", "STRING", "REQUIRED")
    columns = column_schema([Column("a", "INT64"), Column("to", "STRUCT", "REPEATED", (inner,))]).columns
    assert [(c.name, c.type, c.constraints.nullable) for c in columns] == [
        ("a", "INT64", True),
        ("to", "ARRAY<STRUCT>", True),
        ("to.city", "STRING", False),
    ]
