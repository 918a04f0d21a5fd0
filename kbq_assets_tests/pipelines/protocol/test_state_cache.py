"""A cache of state objects never returns a state older than the given listing."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import CorruptState, NotFound, Unavailable
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import codec
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


class CountedStore:
    """A store whose reads are counted."""

    def __init__(self) -> None:
        self.memory = FaultyMemoryStore(self._count)
        self.view = self.memory.view("p")
        self.reads: list[str] = []

    def _count(self, call: Call) -> Outcome:
        if call.operation == "get":
            self.reads.append(call.target)
        return Outcome.OK


def put(counted: CountedStore, path: str, sequence: int) -> None:
    value = TableState("u", sequence)
    if path in counted.memory.objects:
        state.change(counted.memory, TableState, path, lambda _: value)
    else:
        counted.memory.create(path, codec.dumps(value))


def read(cache: StateCache, *paths: str) -> list[object]:
    """The sequence numbers of states as they are listed now, or the types of errors."""
    found = cache.read(TableState, paths, cache.listing("tables/"))
    return [each.value.sequence if isinstance(each, state.Versioned) else type(each) for each in found]


def test_an_object_that_did_not_change_is_read_once() -> None:
    counted = CountedStore()
    cache = StateCache(counted.view)
    put(counted, "tables/a", 1)
    put(counted, "tables/b", 2)
    assert read(cache, "tables/b", "tables/a") == [2, 1]
    put(counted, "tables/a", 3)
    assert read(cache, "tables/b", "tables/a") == [2, 3]
    assert sorted(counted.reads) == ["tables/a", "tables/a", "tables/b"]


def test_an_object_that_is_gone_is_forgotten() -> None:
    counted = CountedStore()
    cache = StateCache(counted.view)
    put(counted, "tables/a", 1)
    assert read(cache, "tables/a") == [1]
    counted.memory.delete("tables/a")
    assert read(cache, "tables/a") == [NotFound]
    put(counted, "tables/a", 2)
    assert read(cache, "tables/a") == [2]


def test_a_listing_of_another_prefix_forgets_nothing() -> None:
    counted = CountedStore()
    cache = StateCache(counted.view)
    put(counted, "tables/a", 1)
    assert read(cache, "tables/a") == [1]
    cache.listing("commits/")
    assert read(cache, "tables/a") == [1]
    assert counted.reads == ["tables/a"]


def test_an_object_that_changes_after_the_listing_is_read_again_next_time() -> None:
    counted = CountedStore()
    cache = StateCache(counted.view)
    put(counted, "tables/a", 1)
    listed = cache.listing("tables/")
    put(counted, "tables/a", 2)
    [found] = cache.read(TableState, ["tables/a"], listed)
    assert isinstance(found, state.Versioned)
    assert found.value.sequence == 2
    assert read(cache, "tables/a") == [2]


def test_errors_are_in_the_place_of_their_objects_and_are_not_kept() -> None:
    counted = CountedStore()
    cache = StateCache(counted.view)
    put(counted, "tables/a", 1)
    counted.memory.create("tables/b", b"{")
    assert read(cache, "tables/b", "tables/a", "tables/c") == [CorruptState, 1, NotFound]
    counted.memory.delete("tables/b")
    put(counted, "tables/b", 2)
    assert read(cache, "tables/b") == [2]
    counted.memory.down = True
    with pytest.raises(Unavailable):
        cache.listing("tables/")


@pytest.mark.parametrize(("room", "reads"), [(0, 4), (10_000, 2)])
def test_what_does_not_fit_is_read_each_time(room: int, reads: int) -> None:
    counted = CountedStore()
    cache = StateCache(counted.view, room)
    put(counted, "tables/a", 1)
    put(counted, "tables/b", 1)
    for _ in range(2):
        assert read(cache, "tables/a", "tables/b") == [1, 1]
    assert len(counted.reads) == reads


def test_room_returns_when_an_object_leaves_or_changes() -> None:
    counted = CountedStore()
    put(counted, "tables/a", 1)
    size = len(counted.memory.objects["tables/a"].data)
    cache = StateCache(counted.view, size)
    for sequence in range(1, 6):
        put(counted, "tables/a", sequence)
        assert read(cache, "tables/a") == [sequence]
        assert read(cache, "tables/a") == [sequence]
    assert len(counted.reads) == 5


def test_a_result_is_computed_again_only_for_another_basis() -> None:
    cache, computed = StateCache(FaultyMemoryStore()), list[str]()

    def compute() -> int:
        computed.append("x")
        return len(computed)

    assert [cache.derived("a", basis, compute) for basis in (1, 1, 2, 1)] == [1, 1, 2, 3]
    assert cache.derived("b", 1, compute) == 4
