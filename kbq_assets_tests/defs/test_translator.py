"""Partition keys: stable, unambiguous, and free of what Dagster refuses."""

from __future__ import annotations

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.names import TableReference
from kbq_assets.core.offsets import TopicPartition
from kbq_assets.core.topics import parse_source_list
from kbq_assets.defs.translator import StagedKey, Translator
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


@pytest.mark.parametrize("text", ["", "t/0", "t/x/d.t", "t/0/d.t/1", "t/0/nodot", "a b/0/d.t", "../0/d.t"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        StagedKey.parse(text)


def test_every_line_of_the_source_list_is_an_external_asset() -> None:
    entries = parse_source_list("a.b dataset=d table=x\naudit-* route=record_name dataset=d\n", "list")
    specs = Translator().topic_specs(entries)
    assert [spec.key for spec in specs] == [dg.AssetKey(["kafka", "a.b"]), dg.AssetKey(["kafka", "audit-_"])]
    assert "d.x" in (specs[0].description or "")


def test_patterns_that_look_alike_make_one_asset() -> None:
    specs = Translator().topic_specs(parse_source_list("a*\na?\n", "list"))
    assert len(specs) == 1
