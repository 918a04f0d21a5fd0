"""Topics that were deleted on purpose are no longer expected."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.pipelines.operate.gone import propose_gone
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


@pytest.fixture
def store() -> FaultyMemoryStore:
    """Topics a.1 to a.3 and b, all read before."""
    made = FaultyMemoryStore()
    state.create_commits(
        made, [Commit(t, 0, "c", t, 1, {0: PartitionCommit(0)}) for t in ("a.1", "a.2", "a.3", "b")]
    )
    return made


@pytest.fixture
def kafka() -> FakeKafka:
    """A broker that shows only a.1."""
    made = FakeKafka()
    made.create_topic("a.1")
    return made


def gone(store: FaultyMemoryStore) -> list[str]:
    return [topic for topic, entry in state.topic_registry(store).topics.items() if entry.gone]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [("a.*", ["a.2", "a.3"]), ("b", ["b"]), ("*", ["a.2", "a.3", "b"]), ("a.[13]", ["a.3"])],
)
def test_topics_that_match_and_that_the_broker_does_not_show_are_gone(
    store: FaultyMemoryStore, kafka: FakeKafka, pattern: str, topics: list[str]
) -> None:
    proposal = propose_gone([store], kafka, pattern)
    assert proposal.lines == tuple(f"{topic}: it was deleted on purpose; its rows stay" for topic in topics)
    assert gone(store) == []
    proposal.apply()
    assert gone(store) == topics


@pytest.mark.parametrize("pattern", ["a.1", "B", "c", ""])
def test_a_topic_that_is_there_or_was_never_read_is_not_gone(
    store: FaultyMemoryStore, kafka: FakeKafka, pattern: str
) -> None:
    with pytest.raises(Refused, match="no topic matches") as error:
        propose_gone([store], kafka, pattern)
    assert "kbq status" in error.value.next_step


def test_nobody_says_twice_that_a_topic_is_gone(store: FaultyMemoryStore, kafka: FakeKafka) -> None:
    propose_gone([store], kafka, "b").apply()
    with pytest.raises(Refused):
        propose_gone([store], kafka, "b")


def test_a_topic_whose_commit_was_never_written_is_not_gone(kafka: FakeKafka) -> None:
    store = FaultyMemoryStore()
    state.create_commit(store, Commit("x", 0, "c", "x", 1, {}))
    announced = TopicRegistry({"b": TopicEntry(creating=(0,))})
    state.change(store, TopicRegistry, "commits/_topics.json", lambda _: announced)
    with pytest.raises(Refused):
        propose_gone([store], kafka, "b")


def test_a_backup_of_the_topic_expects_it_no_more_either(store: FaultyMemoryStore, kafka: FakeKafka) -> None:
    backup = FaultyMemoryStore()
    state.create_commit(backup, Commit("b", 0, "c", "b", 1, {}))
    proposal = propose_gone([store, backup], kafka, "b")
    assert proposal.lines == ("b: it was deleted on purpose; its rows stay",)
    proposal.apply()
    assert gone(store) == gone(backup) == ["b"]
