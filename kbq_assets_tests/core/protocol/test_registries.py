"""Registries: the topics that they expect, the schemas that a commit records, and lists that move to archives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import StateError
from kbq_assets.core.protocol.archives import DECISIONS, ArchiveRule
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop
from kbq_assets.core.protocol.schema_pins import accept_schemas, pin
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry

EMPTY = TopicRegistry()


def test_a_shard_is_announced_before_it_exists_and_active_afterwards() -> None:
    announced = EMPTY.announce("t", 0)
    assert announced.topics == {"t": TopicEntry(creating=(0,))}
    assert announced.activate("t", 0).topics == {"t": TopicEntry(active=(0,))}


def test_a_second_note_of_the_same_changes_nothing() -> None:
    announced = EMPTY.announce("t", 0)
    active = announced.activate("t", 0)
    assert announced.announce("t", 0) is announced
    assert active.announce("t", 0) is active
    assert active.activate("t", 0) is active


def test_shards_and_topics_keep_their_places() -> None:
    registry = EMPTY.announce("t", 0).announce("u", 0).announce("t", 1).activate("t", 1)
    assert registry.topics == {"t": TopicEntry((1,), (0,)), "u": TopicEntry(creating=(0,))}


def test_a_shard_may_be_active_without_an_announcement() -> None:
    assert EMPTY.activate("t", 2).topics == {"t": TopicEntry((2,))}


def test_topics_that_are_gone_are_noted_and_unknown_ones_are_not_added() -> None:
    registry = TopicRegistry({"t": TopicEntry((0,)), "u": TopicEntry((0,))}, {"lake": "active"})
    gone = registry.marked(["t", "nobody"], gone=True)
    assert gone.topics == {"t": TopicEntry((0,), gone=True), "u": TopicEntry((0,))}
    assert gone.warehouses == {"lake": "active"}
    assert gone.marked(["t"], gone=False) == registry


SHARDS = st.lists(st.tuples(st.sampled_from("tu"), st.integers(0, 3), st.booleans()), max_size=12)


COMMIT = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(5), 1: PartitionCommit(7)}, schema_ids={1: "a"})


@pytest.mark.parametrize(
    ("ids", "after"),
    [
        ({}, {1: "a"}),
        ({1: "a"}, {1: "a"}),
        ({2: "b"}, {1: "a", 2: "b"}),
        ({1: "a", 2: "a"}, {1: "a", 2: "a"}),
    ],
)
def test_a_commit_remembers_the_schemas_of_new_ids(ids: dict[int, str], after: dict[int, str]) -> None:
    pinned = pin(COMMIT, ids)
    assert pinned.schema_ids == after
    assert (pinned is COMMIT) is (after == COMMIT.schema_ids)
    assert pin(pinned, ids) is pinned


def test_another_schema_under_a_known_id_is_a_contradiction() -> None:
    with pytest.raises(StateError, match=r"^t: the registry changed schema 1 while it was read"):
        pin(COMMIT, {2: "b", 1: "other"})


def test_accepted_schemas_are_forgotten_and_their_partitions_resume() -> None:
    changed, other = Stop("schema_changed", "", 5, 6), Stop("bad_record", "", 7, 8)
    stopped = COMMIT.with_partition(0, PartitionCommit(5, stop=changed))
    stopped = stopped.with_partition(1, PartitionCommit(7, stop=other))
    after = accept_schemas(stopped)
    assert after.schema_ids == {}
    assert [state.stop for state in after.partitions.values()] == [None, other]
    assert accept_schemas(after) == after


@pytest.mark.parametrize(("count", "archived"), [(0, 0), (1, 0), (3, 0), (4, 2), (5, 2), (100, 2)])
def test_the_oldest_entries_move_once_there_are_too_many(count: int, archived: int) -> None:
    assert ArchiveRule(most=4, chunk=2).full_chunk(tuple(range(count))) == tuple(range(archived))


def test_decisions_that_stay_are_enough_to_read() -> None:
    left = list(range(DECISIONS.most))
    del left[: len(DECISIONS.full_chunk(tuple(left)))]
    assert len(left) >= DECISIONS.chunk


@settings(max_examples=25)
@given(SHARDS)
def test_no_shard_is_both_active_and_in_creation_or_listed_twice(steps: list[tuple[str, int, bool]]) -> None:
    registry, was_active = EMPTY, set[tuple[str, int]]()
    for topic, shard, activates in steps:
        registry = registry.activate(topic, shard) if activates else registry.announce(topic, shard)
        was_active |= {(topic, shard)} if activates else set()
    listed = [(t, s) for t, entry in registry.topics.items() for s in (*entry.active, *entry.creating)]
    assert len(listed) == len({*listed}) and {*listed} == {(t, s) for t, s, _ in steps}
    assert {(t, s) for t, entry in registry.topics.items() for s in entry.active} == was_active
