"""A topic's files that wait in backlogs, and chunks of backlogs that cannot be read."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import TableReference, backlog_path, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate.pending import Backlogs, DamagedChunk, Pending, give_up_chunks
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.strategies import staged_file, window

T = TableReference("d", "t")
A, B, C = staged_file(0, 5), staged_file(5, 9), staged_file(9, 12)
COMMIT = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(12)})


@pytest.fixture
def store() -> FaultyMemoryStore:
    made = FaultyMemoryStore()
    state.set_warehouses(made, TableRegistry, {"lake": "active"})
    state.create_table_state(made, T, "1")
    return made


def wait(store: FaultyMemoryStore | WarehouseStore, *files: StagedFile) -> None:
    """Put each file into a chunk of its own."""
    for file in files:
        name = file.name
        path = backlog_path(file.table, name.epoch, name.topic_partition, file.window)
        store.create(path, codec.dumps(BacklogChunk((file,))))


def damaged(store: FaultyMemoryStore | WarehouseStore, topic: str = "t", partition: int = 0) -> str:
    path = backlog_path(T, 3, TopicPartition(topic, partition), 40)
    store.create(path, b"{")
    return path


@pytest.mark.parametrize(
    ("topic", "partition", "asked", "shards", "is_own"),
    [
        ("t", 0, "t", {0}, True),
        ("t", 63, "t", {0}, True),
        ("t", 64, "t", {0}, False),
        ("t", 64, "t", {0, 1}, True),
        ("t.x", 0, "t", {0}, False),
        ("shop.a-b_c.v1", 2, "shop.a-b_c.v1", {0}, True),
        ("t.5", 2, "t", {0}, False),
        ("t", 0, "t", set(), False),
    ],
    ids=[
        "its own",
        "the last of its shard",
        "another shard",
        "one of two shards",
        "a longer name",
        "a name with points and hyphens",
        "a name that ends with a number",
        "no shard",
    ],
)
def test_a_chunk_that_cannot_be_read_is_known_by_its_name(
    topic: str, partition: int, asked: str, shards: set[int], is_own: bool
) -> None:
    store = FaultyMemoryStore()
    chunk = DamagedChunk(store, damaged(store, topic, partition))
    assert chunk.is_of(asked, shards) == is_own


def test_a_name_that_is_no_chunks_is_of_no_topic() -> None:
    store = FaultyMemoryStore()
    for name in ("x", "1-t.json", "1-t.x.0.json", "notes.txt"):
        assert not DamagedChunk(store, f"backlog/d.t/{name}").is_of("t", {0})


def test_rows_in_a_damaged_chunk_are_given_up_by_an_operator_alone(store: FaultyMemoryStore) -> None:
    wait(store, A)
    own, lake = damaged(store), damaged(WarehouseStore.of(store, "lake"))
    damaged(store, "other")
    with pytest.raises(Refused, match="cannot be read: rows of t wait there") as error:
        Backlogs.read(store, {}).damaged("t", {0}, gives_up=False)
    assert "--give-up-pending" in error.value.next_step
    found = Backlogs.read(store, {}).damaged("t", {0}, gives_up=True)
    assert [chunk.path for chunk in found] == [own, lake]
    assert str(found[0]) == f"gives up the files of {own}, which cannot be read"
    give_up_chunks(found)
    assert Backlogs.read(store, {}).damaged("t", {0}, gives_up=False) == []
    assert state.read(store, BacklogChunk, own).value == BacklogChunk(())
    assert [chunk.value.files for chunk in state.read_backlog(WarehouseStore.of(store, "lake"), T)] == [()]


def test_a_topic_with_readable_chunks_gives_nothing_up(store: FaultyMemoryStore) -> None:
    wait(store, A, B)
    assert Backlogs.read(store, {}).damaged("t", {0}, gives_up=False) == []


def backlog(store: FaultyMemoryStore, commit: Commit = COMMIT) -> list[str]:
    return [
        file.path
        for file in Pending.read(store).backlog(commit, Backlogs.read(store, {commit.shard: commit}))
    ]


def test_files_that_wait_in_backlogs_alone_are_those_of_the_commits_partitions(
    store: FaultyMemoryStore,
) -> None:
    others = staged_file(0, 5, topic="other"), staged_file(0, 5, partition=64)
    wait(store, A, B, C, *others)
    damaged(store)
    listed = dataclasses.replace(
        COMMIT,
        partitions={0: PartitionCommit(12, windows=(window(0, 5, A),))},
        given_up=(B.path,),
    )
    assert backlog(store, listed) == [C.path]
    assert backlog(store) == [A.path, B.path, C.path]
    assert backlog(store, dataclasses.replace(COMMIT, shard=1)) == [others[1].path]


def test_backlogs_are_read_again_for_a_commit_that_changed_since(store: FaultyMemoryStore) -> None:
    """Its files may have moved to a backlog."""
    backlogs = Backlogs.read(store, {0: COMMIT})
    wait(store, A)
    moved = dataclasses.replace(COMMIT, epoch=2)
    assert [list(backlogs.after(each)) for each in (COMMIT, moved)] == [[], [A]]


def load(store: FaultyMemoryStore | WarehouseStore, *files: StagedFile) -> None:
    rows = sum(file.rows for file in files)
    state.change(
        store,
        TableState,
        table_state_path(T),
        lambda now: table_state.record_success(table_state.begin_job(now, files, "p", "l"), rows),
    )


def test_a_file_is_pending_until_each_of_its_warehouses_has_it(store: FaultyMemoryStore) -> None:
    both = dataclasses.replace(A, warehouses=("", "lake"))
    commit = dataclasses.replace(COMMIT, partitions={0: PartitionCommit(12, windows=(window(0, 5, both),))})
    lake = WarehouseStore.of(store, "lake")
    state.create_table_state(lake, T, "2")
    wait(store, both)
    wait(lake, both)
    load(store, A)
    assert backlog(store) == [A.path]
    assert Pending.read(store).pruned(commit) == commit
    load(lake, A)
    assert backlog(store) == []
    assert Pending.read(store).pruned(commit).partitions[0].windows == ()
