"""State objects are read, created and swapped as their registry says, whatever the store responds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from kbq_assets.core.erasure.model import ErasedPartition, Erasure, log_path
from kbq_assets.core.errors import (
    ConfigurationError,
    CorruptState,
    MissingState,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.merging import MergedFile
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import QuarantinedFile, TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import (
    TABLE_REGISTRY,
    TOPIC_REGISTRY,
    TableReference,
    commit_path,
    table_state_path,
)
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.protocol import erasures, state
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.strategies import staged_file, window

T, U = TableReference("d", "t"), TableReference("d", "u")
PATH = table_state_path(T)
COMMIT = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(0)})


@pytest.fixture
def store() -> FaultyMemoryStore:
    return FaultyMemoryStore()


def counted(now: TableState) -> TableState:
    return dataclasses.replace(now, sequence=now.sequence + 1)


def sequence_of(store: FaultyMemoryStore) -> int:
    return state.read(store, TableState, PATH).value.sequence


def failing(store: FaultyMemoryStore, operation: str, *outcomes: Outcome) -> None:
    """Let the next calls of one kind end so; later ones succeed."""
    left = list(outcomes)

    def fault(call: Call) -> Outcome:
        return left.pop(0) if left and call.operation == operation else Outcome.OK

    store.faults = fault


# One object -----------------------------------------------------------------------------------------------------------


def test_an_object_that_is_not_there_is_found_as_none_and_read_as_an_error(store: FaultyMemoryStore) -> None:
    assert state.find(store, TableState, PATH) is None
    with pytest.raises(NotFound):
        state.read(store, TableState, PATH)


def test_an_object_that_exists_is_not_created_again(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u", 1))
    state.create(store, PATH, TableState("u", 2))
    assert sequence_of(store) == 1


def test_a_swap_of_an_object_that_changed_since_is_refused(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u"))
    old = state.read(store, TableState, PATH)
    state.swap(store, old, counted(old.value))
    with pytest.raises(PreconditionFailed):
        state.swap(store, old, counted(old.value))
    assert sequence_of(store) == 1


def test_a_swap_to_the_same_value_writes_nothing(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u"))
    old = state.read(store, TableState, PATH)
    assert state.swap(store, old, TableState("u")) is old
    assert state.read(store, TableState, PATH).generation == old.generation


@pytest.mark.parametrize(
    "outcomes",
    [
        (),
        (Outcome.LOST_REPLY,),
        (Outcome.OWN_RETRY,),
        (Outcome.LATE,),
        (Outcome.LATE, Outcome.LOST_REPLY),
        (Outcome.LATE, Outcome.LATE),
    ],
    ids=["at once", "lost reply", "own retry", "never applied", "then lost", "twice"],
)
def test_a_change_is_made_once_whatever_the_outcome_of_its_swap(
    store: FaultyMemoryStore, outcomes: tuple[Outcome, ...]
) -> None:
    state.create(store, PATH, TableState("u"))
    failing(store, "swap", *outcomes)
    changed = state.change(store.view("p"), TableState, PATH, counted)
    while store.late:
        store.deliver_late()
    assert (changed.value.sequence, sequence_of(store)) == (1, 1)


def test_a_change_that_never_gets_through_ends(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u"))
    calls = 0

    def others(call: Call) -> Outcome:
        nonlocal calls
        if call.operation == "swap":
            calls += 1
            state.change(store, TableState, PATH, lambda now: dataclasses.replace(now, uuid=f"{calls}"))
        return Outcome.OK

    store.faults = others
    with pytest.raises(Unavailable, match=r"tables/d\.t\.json could .*: others changed it 20 times") as error:
        state.change(store.view("p"), TableState, PATH, counted)
    assert (error.value.next_step, calls) == ("run the command again", 20)


def test_a_change_ends_after_a_few_swaps_without_an_answer(store: FaultyMemoryStore) -> None:
    """Each takes minutes, although reads are answered."""
    state.create(store, PATH, TableState("u"))
    calls: list[Call] = []

    def silent(call: Call) -> Outcome:
        calls.append(call)
        return Outcome.LATE if call.operation == "swap" else Outcome.OK

    store.faults = silent
    with pytest.raises(Unavailable, match=r"tables/d\.t\.json could not be changed: swap .* no answer"):
        state.change(store.view("p"), TableState, PATH, counted)
    assert [call.operation for call in calls].count("swap") == 3


def interrupted_by(
    store: FaultyMemoryStore, other: Callable[[TableState], TableState]
) -> Callable[[TableState], TableState]:
    """`counted`, while another writer changes the object once before its swap."""
    others = [other]

    def change(now: TableState) -> TableState:
        if others:
            state.change(store, TableState, PATH, others.pop())
        return counted(now)

    return change


def test_a_change_of_two_writers_has_both(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u"))
    parked = interrupted_by(store, lambda now: table_state.park(now, ParkReason.OPERATOR, "no"))
    found = state.change(store, TableState, PATH, parked).value
    assert found == table_state.park(TableState("u", 1), ParkReason.OPERATOR, "no")
    assert state.read(store, TableState, PATH).value == found


def test_a_change_that_another_writer_made_alike_counts_as_made(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u"))
    state.change(store, TableState, PATH, interrupted_by(store, counted))
    assert sequence_of(store) == 1


@pytest.mark.parametrize(
    ("outcome", "error"), [(Outcome.UNAVAILABLE, Unavailable), (Outcome.REFUSED, ConfigurationError)]
)
def test_a_store_that_does_not_answer_ends_a_change_at_once(
    store: FaultyMemoryStore, outcome: Outcome, error: type[Exception]
) -> None:
    state.create(store, PATH, TableState("u"))
    failing(store, "swap", outcome)
    with pytest.raises(error):
        state.change(store.view("p"), TableState, PATH, counted)
    assert sequence_of(store) == 0


def test_an_error_of_the_change_itself_reaches_the_caller(store: FaultyMemoryStore) -> None:
    state.create(store, PATH, TableState("u"))

    def fail(now: TableState) -> TableState:
        raise CorruptState("no")

    with pytest.raises(CorruptState):
        state.change(store, TableState, PATH, fail)


# Registries -----------------------------------------------------------------------------------------------------------


def test_an_empty_area_has_empty_registries_and_reading_creates_none(store: FaultyMemoryStore) -> None:
    assert state.topic_registry(store) == TopicRegistry()
    assert state.table_registry(store) == TableRegistry()
    assert store.objects == {}


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("commits/t.json", state.topic_registry),
        (PATH, state.table_registry),
        ("tables/@lake/d.t.json", state.table_registry),
    ],
)
def test_a_registry_that_is_missing_beside_other_objects_is_lost(
    store: FaultyMemoryStore, path: str, read: Callable[[FaultyMemoryStore], object]
) -> None:
    store.create(path, b"{}")
    with pytest.raises(MissingState, match="is missing but"):
        read(store)


def test_states_are_announced_created_and_activated(store: FaultyMemoryStore) -> None:
    created = state.create_table_states(store, {T: "1", U: "2"})
    assert {table: found.value.uuid for table, found in created.items()} == {T: "1", U: "2"}
    registry = state.table_registry(store)
    assert (registry.active, registry.creating, registry.staging_id) == ({"d.t": "1", "d.u": "2"}, {}, "1")
    assert state.create_table_state(store, T, "3").value.uuid == "1"
    assert state.create_table_states(store, {}) == {}


@pytest.mark.parametrize("operation", ["create", "swap"])
def test_a_state_whose_creator_died_keeps_its_uuid(store: FaultyMemoryStore, operation: str) -> None:
    state.create_table_state(store, U, "0")
    failing(store, operation, Outcome.OK if operation == "swap" else Outcome.UNAVAILABLE, Outcome.UNAVAILABLE)
    with pytest.raises(Unavailable):
        state.create_table_state(store.view("p"), T, "1")
    assert state.table_registry(store).creating == {"d.t": "1"}
    assert state.create_table_state(store, T, "2").value.uuid == "1"


def test_commits_are_created_once_and_in_the_registry(store: FaultyMemoryStore) -> None:
    other = dataclasses.replace(COMMIT, shard=1, partitions={64: PartitionCommit(5)})
    created = state.create_commits(store, [COMMIT, other])
    assert [found.value for found in created] == [COMMIT, other]
    assert state.topic_registry(store).topics == {"t": TopicEntry((0, 1))}
    again = state.create_commit(store, dataclasses.replace(COMMIT, cluster_id="other"))
    assert again.value == COMMIT
    assert state.create_commits(store, []) == []


def test_a_commit_that_the_store_refuses_stays_announced(store: FaultyMemoryStore) -> None:
    other = dataclasses.replace(COMMIT, topic="u")
    store.faults = lambda call: Outcome.REFUSED if call.target == "commits/u.json" else Outcome.OK
    found, refused = state.create_each_commit(store.view("p"), [COMMIT, other])
    assert isinstance(found, state.Versioned)
    assert isinstance(refused, ConfigurationError)
    topics = state.topic_registry(store).topics
    assert topics == {"t": TopicEntry(active=(0,)), "u": TopicEntry(creating=(0,))}
    with pytest.raises(ConfigurationError):
        state.create_commits(store.view("p"), [other])


ERASURE = Erasure(4, "t", "c", "id", {0: ErasedPartition(1, 1, 9, (2, 3))})


def test_a_new_commit_knows_of_the_erasures_of_its_topic(store: FaultyMemoryStore) -> None:
    assert erasures.enter(store, ERASURE) == erasures.enter(store, ERASURE) == 4
    commit = state.create_commit(store, COMMIT).value
    assert (commit.erasures, erasures.erased_of(store, commit, 0)) == (4, (2, 3))
    assert erasures.erased_of(store, dataclasses.replace(commit, topic_id="other"), 0) == ()
    assert erasures.erased_of(store, COMMIT, 0) == ()


def test_the_commits_of_a_topic_are_raised_and_one_that_is_not_written_is_waited_for(
    store: FaultyMemoryStore,
) -> None:
    erasures.raise_commits(store, "t", 4)
    state.create_commit(store, COMMIT)
    erasures.raise_commits(store, "t", 4)
    assert state.read(store, Commit, "commits/t.json").value.erasures == 4
    state.change(store, TopicRegistry, TOPIC_REGISTRY, lambda now: now.announce("t", 1))
    with pytest.raises(Unavailable, match="is announced but not written") as error:
        erasures.raise_commits(store, "t", 5)
    assert error.value.next_step == "kbq extract --topic t"


def test_a_topic_without_erasures_has_no_log(store: FaultyMemoryStore) -> None:
    assert erasures.read_log(store, "t") is None
    erasures.enter(store, ERASURE)
    log = erasures.read_log(store, "t")
    assert log is not None
    assert (log.version, log.partitions) == (4, {0: (2, 3)})
    assert log_path("t") in store.objects


# Many objects ---------------------------------------------------------------------------------------------------------


def damage(store: FaultyMemoryStore, path: str) -> None:
    found = store.get(path)
    store.swap(path, found.data[:-2], found.generation)


def test_an_object_that_cannot_be_read_is_left_out_alone(store: FaultyMemoryStore) -> None:
    state.create_commits(store, [COMMIT, dataclasses.replace(COMMIT, topic="u")])
    state.create_table_states(store, {T: "1", U: "2"})
    damage(store, "commits/u.json")
    damage(store, table_state_path(U))
    assert [found.value.topic for found in state.read_commits(store)] == ["t"]
    assert [head.value.topic for head in state.read_heads(store, state.topic_registry(store))] == ["t"]
    assert list(state.read_table_states(store)) == [T]
    store.delete(commit_path("u", 0))
    assert [found.value.topic for found in state.read_commits(store)] == ["t"]


def test_a_state_that_is_refused_is_an_error_unless_it_is_skipped(store: FaultyMemoryStore) -> None:
    state.create_table_states(store, {T: "1", U: "2"})
    store.faults = lambda call: Outcome.REFUSED if call.target == PATH else Outcome.OK
    with pytest.raises(ConfigurationError):
        state.read_table_states(store.view("p"))
    assert list(state.read_table_states(store.view("p"), skips=(ConfigurationError,))) == [U]
    with pytest.raises(ConfigurationError):
        state.warehouse_states(store.view("p"))
    assert list(state.warehouse_states(store.view("p"), skips_failed=True).by_name[""]) == [U]


def test_each_warehouse_has_its_own_states_until_it_is_removed(store: FaultyMemoryStore) -> None:
    state.create_table_state(store, T, "1")
    state.set_warehouses(store, TableRegistry, {"lake": "active", "sea": "active"})
    state.create_table_state(WarehouseStore.of(store, "lake"), U, "2")
    found = state.warehouse_states(store)
    assert {name: list(tables) for name, tables in found.by_name.items()} == {"": [T], "lake": [U], "sea": []}
    state.set_warehouses(store, TableRegistry, {"lake": "removed"})
    later = state.warehouse_states(WarehouseStore.of(store, "sea"))
    assert (sorted(later.by_name), later.removed) == (["", "sea"], frozenset({"lake"}))
    assert state.table_registry(store).active == {"d.t": "1"}


def test_files_are_in_use_in_commits_backlogs_jobs_and_quarantine(store: FaultyMemoryStore) -> None:
    committed, waiting, loading, source, back, lost = (staged_file(n, n + 1) for n in range(6))
    commit = dataclasses.replace(
        COMMIT, partitions={0: PartitionCommit(1, windows=(window(0, 1, committed),))}
    )
    state.create_commit(store, commit)
    state.create_table_state(store, T, "1")
    merged = MergedFile(source, (0,))
    records = (QuarantinedFile(back, "bad", retry=True), QuarantinedFile(lost, "bad"))
    state.change(
        store,
        TableState,
        PATH,
        lambda now: dataclasses.replace(
            table_state.begin_job(now, (loading,), "p", "l", merged=(merged,)), quarantined=records
        ),
    )
    store.create("backlog/d.t/1-t.0.1.json", codec.dumps(BacklogChunk((waiting,))))
    used = state.files_in_use(store, state.read_commits(store))
    assert sorted(used) == sorted(f.path for f in (committed, waiting, loading, source, back))


def test_an_unknown_outcome_of_a_create_is_for_the_caller(store: FaultyMemoryStore) -> None:
    failing(store, "create", Outcome.LATE)
    with pytest.raises(UnknownOutcome):
        state.create(store.view("p"), TABLE_REGISTRY, TableRegistry())
