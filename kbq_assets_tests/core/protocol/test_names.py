"""Names survive the round trip, and nothing else parses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import (
    StagedFileName,
    TableReference,
    backlog_path,
    check_topic,
    commit_path,
    sanitise_table,
    shard_of,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests import strategies


@given(strategies.staged_names)
def test_a_staged_name_parses_to_itself(name: StagedFileName) -> None:
    assert StagedFileName.parse(name.format()) == name


@given(strategies.done_names())
def test_a_done_name_parses_to_itself(name: DoneFileName) -> None:
    assert DoneFileName.parse(name.format()) == name


@given(strategies.done_names(short=True))
def test_a_short_done_name_parses_to_itself_when_its_topic_is_known(name: DoneFileName) -> None:
    known = frozenset({name.topic_partition.topic})
    assert DoneFileName.parse_short(name.format(), known) == name


@given(strategies.done_names(), st.booleans())
def test_bootstrap_reads_the_full_form_of_any_topic(name: DoneFileName, is_known: bool) -> None:
    known = frozenset({name.topic_partition.topic}) if is_known else frozenset()
    assert DoneFileName.parse_bootstrap(name.format(), known) == name


def test_bootstrap_distinguishes_the_two_forms() -> None:
    known = frozenset({"shop.orders"})
    full = DoneFileName.parse_bootstrap("done/shop.orders.3.sales.orders.7.10.19.done", known)
    short = DoneFileName.parse_bootstrap("done/shop.orders.3.sales.orders.10.19.done", known)
    assert (full.schema_id, full.first_offset, full.last_offset) == (7, 10, 19)
    assert (short.schema_id, short.first_offset, short.last_offset) == (None, 10, 19)
    assert full.topic_partition == short.topic_partition == TopicPartition("shop.orders", 3)


@pytest.mark.parametrize(
    "path",
    [
        "done/t.0.d.t.1.5.4.done",  # last before first
        "done/t.0.d.t.1.05.9.done",  # leading zero
        "done/t.x.d.t.1.5.9.done",  # no partition
        "done/t.0.d.t.1.5.9.avro",
        "done/t.0.d.t.5.9.done",  # the short form is only for bootstrap
        "done/t.0.d.t.1.5.99999999999999999999.done",
        "done/.0.d.t.1.5.9.done",
    ],
)
def test_what_is_not_a_done_name_is_refused(path: str) -> None:
    with pytest.raises(InvalidName, match=r"is not a name|cannot be part of"):
        DoneFileName.parse(path)


@pytest.mark.parametrize(
    "path",
    [
        "staging/1-a/t.0.d.t.1.avro",
        "staging/1/t.0.d.t.1.5.avro",
        "staging/1-/t.0.d.t.1.5.avro",
        "staging/x-a/t.0.d.t.1.5.avro",
        "elsewhere/1-a/t.0.d.t.1.5.avro",
        "staging/1-a/t.0.d.t.1.-5.avro",
    ],
)
def test_what_is_not_a_staged_name_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        StagedFileName.parse(path)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "_topics"])
def test_topics_that_no_file_name_can_carry_are_refused(topic: str) -> None:
    with pytest.raises(InvalidName):
        check_topic(topic)


@pytest.mark.parametrize("text", ["d", "d.", ".t", "d.t.u", "d-x.t", "d.t u"])
def test_what_is_not_a_table_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        TableReference.parse(text)


def test_a_name_too_long_for_a_file_system_is_refused_when_planned() -> None:
    name = StagedFileName(TopicPartition("t" * 249, 0), TableReference("d", "t"), 1, 0, 1, "a")
    with pytest.raises(InvalidName, match="over 255"):
        name.format()


@given(st.lists(st.tuples(strategies.topics, st.integers(0, 3)), unique=True, max_size=20))
def test_commits_of_different_shards_never_share_a_path(shards: list[tuple[str, int]]) -> None:
    paths = {commit_path(topic, shard) for topic, shard in shards}
    assert len(paths) == len(shards)
    assert "commits/_topics.json" not in paths


@given(st.lists(st.tuples(strategies.topic_partitions, strategies.epochs, strategies.offsets), unique=True))
def test_backlog_chunks_of_different_windows_never_share_a_path(
    windows: list[tuple[TopicPartition, int, int]],
) -> None:
    table = TableReference("d", "t")
    assert len({backlog_path(table, e, tp, first) for tp, e, first in windows}) == len(windows)


@given(st.text(max_size=300))
def test_any_text_sanitises_to_a_table_name(text: str) -> None:
    TableReference("d", sanitise_table(text))


def test_a_shard_holds_64_partitions() -> None:
    assert [shard_of(p) for p in (0, 63, 64, 127, 128)] == [0, 0, 1, 1, 2]
