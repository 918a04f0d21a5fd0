"""A removed warehouse: nothing waits for it, and its replays end."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.core.replay.model import Bounds, Phase, Replay, replay_path
from kbq_assets.pipelines.operate.remove_warehouse import propose_removal
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.strategies import staged_file, window

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
        "gives up 9 rows of 2 staged files not loaded into it",
        "rows among them for this warehouse only: 4",
    )
    assert statuses(shared) == {("lake", "active"), ("sea", "active")}
    proposal.apply()
    assert statuses(shared) == {("lake", "removed"), ("sea", "active")}
    assert state.warehouse_states(shared).waiting(LAKE) == []
    assert state.warehouse_states(shared).waiting(BOTH) == [""]


def test_a_warehouse_that_waits_for_nothing_gives_up_nothing(shared: FaultyMemoryStore) -> None:
    lines = propose_removal(shared, shared, "sea").lines
    assert lines[0] == "gives up 0 rows of 0 staged files not loaded into it"


@pytest.mark.parametrize("name", ["first", ""])
def test_an_unknown_warehouse_is_refused_with_those_that_there_are(
    shared: FaultyMemoryStore, name: str
) -> None:
    with pytest.raises(NotFound, match="no warehouse other than the first is called") as error:
        propose_removal(shared, shared, name)
    assert error.value.next_step == "name one of these: lake, sea"
    with pytest.raises(NotFound) as alone:
        propose_removal(FaultyMemoryStore(), FaultyMemoryStore(), name)
    assert alone.value.next_step == "there is only the first, which must stay"


def test_a_warehouse_is_removed_once(shared: FaultyMemoryStore) -> None:
    propose_removal(shared, shared, "lake").apply()
    with pytest.raises(Refused, match="was already removed"):
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
    assert ends == ["ends replay 7 of t: its shadow tables stay"]
    proposal.apply()
    assert state.read(shared, Replay, replay_path(7)).value.phase == after
    assert state.read(shared, Replay, replay_path(8)).value == replays[8]
    left = [path for path in shared.objects if path.startswith("replayed/")]
    assert left == ["replayed/8/staging/1-a/x"]
    with pytest.raises(Refused, match="was already removed"):
        propose_removal(shared, shared, "lake")
