"""Topics that were deleted on purpose, and warehouses that are removed: nothing waits for them any more."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.core.replay.model import Bounds, Phase, Replay, replay_path
from kbq_assets.pipelines.operate.gone import propose_gone
from kbq_assets.pipelines.operate.remove_warehouse import propose_removal
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.kafka import FakeKafka
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.strategies import staged_file, window


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
    """A broker that shows a.1 alone."""
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
    with pytest.raises(Refused, match="no topic that was read") as error:
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


# Warehouses -----------------------------------------------------------------------------------------------------------

BOTH = dataclasses.replace(staged_file(0, 5), warehouses=("", "lake"))
LAKE = dataclasses.replace(staged_file(5, 9), warehouses=("lake",))
FIRST = staged_file(9, 11)


@pytest.fixture
def shared() -> FaultyMemoryStore:
    """The staging area of the first warehouse, a lake and a sea, with three files that nobody has loaded."""
    store = FaultyMemoryStore()
    state.set_warehouses(store, TableRegistry, {"lake": "active", "sea": "active"})
    state.set_warehouses(store, TopicRegistry, {"lake": "active", "sea": "active"})
    windows = tuple(window(file.window, file.until, file) for file in (BOTH, LAKE, FIRST))
    state.create_commit(store, Commit("t", 0, "c", "id", 1, {0: PartitionCommit(11, windows=windows)}))
    return store


def statuses(store: FaultyMemoryStore) -> set[tuple[str, str]]:
    registries = state.table_registry(store), state.topic_registry(store)
    return {item for each in registries for item in each.warehouses.items()}


def test_a_removal_names_the_rows_that_it_gives_up_before_it_does(shared: FaultyMemoryStore) -> None:
    proposal = propose_removal(shared, shared, "lake")
    assert proposal.lines[:2] == (
        "gives up 9 rows of 2 staged files that it has not loaded",
        "4 of these rows are for no other warehouse",
    )
    assert statuses(shared) == {("lake", "active"), ("sea", "active")}
    proposal.apply()
    assert statuses(shared) == {("lake", "removed"), ("sea", "active")}
    assert state.warehouse_states(shared).waiting(LAKE) == []
    assert state.warehouse_states(shared).waiting(BOTH) == [""]


def test_a_warehouse_that_waits_for_nothing_gives_up_nothing(shared: FaultyMemoryStore) -> None:
    lines = propose_removal(shared, shared, "sea").lines
    assert lines[0] == "gives up 0 rows of 0 staged files that it has not loaded"


@pytest.mark.parametrize("name", ["first", ""])
def test_an_unknown_warehouse_is_refused_with_those_that_there_are(
    shared: FaultyMemoryStore, name: str
) -> None:
    with pytest.raises(NotFound, match="no warehouse besides the first is called") as error:
        propose_removal(shared, shared, name)
    assert error.value.next_step == "name one of these: lake, sea"
    with pytest.raises(NotFound) as alone:
        propose_removal(FaultyMemoryStore(), FaultyMemoryStore(), name)
    assert alone.value.next_step == "there is only the first, which stays"


def test_a_warehouse_is_removed_once(shared: FaultyMemoryStore) -> None:
    propose_removal(shared, shared, "lake").apply()
    with pytest.raises(Refused, match="was removed already"):
        propose_removal(shared, shared, "lake")


@pytest.mark.parametrize(
    ("phase", "after"),
    [
        (Phase.READING, Phase.DROPPED),
        (Phase.READ, Phase.DROPPED),
        (Phase.PROMOTED, Phase.ACCEPTED),
        (Phase.ROLLED_BACK, Phase.DROPPED),
        (Phase.ACCEPTED, Phase.ACCEPTED),
    ],
)
def test_a_replay_of_a_removed_warehouse_ends_and_leaves_no_files(
    shared: FaultyMemoryStore, phase: Phase, after: Phase
) -> None:
    replays = {
        7: Replay(7, "t", 1, {0: Bounds(0, 5)}, warehouse="lake").at(phase),
        8: Replay(8, "t", 1, {0: Bounds(0, 5)}).at(phase),
    }
    for number, replay in replays.items():
        state.create(shared, replay_path(number), replay)
        shared.create(f"replayed/{number}/staging/1-a/x", b"")
    proposal = propose_removal(shared, shared, "lake")
    ends = [line for line in proposal.lines if line.startswith("ends replay")]
    assert ends == ([] if phase == after else ["ends replay 7 of t: its shadow tables stay"])
    proposal.apply()
    assert state.read(shared, Replay, replay_path(7)).value.phase == after
    assert state.read(shared, Replay, replay_path(8)).value == replays[8]
    left = [path for path in shared.objects if path.startswith("replayed/")]
    kept = ["replayed/7/staging/1-a/x"] if phase == after else []
    assert left == [*kept, "replayed/8/staging/1-a/x"]
