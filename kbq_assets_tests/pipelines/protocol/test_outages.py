"""A store that is silent for everything is asked once in a while, and not for each object."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import NotFound, Unavailable
from kbq_assets.pipelines.protocol.outages import PAUSE_SECONDS, SILENT_CALLS, SILENT_OBJECTS, guarded
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore, warehouse_of
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.contracts.object_store import ObjectStoreContract
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


class TestGuardedStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return guarded(FaultyMemoryStore())


class Silent:
    """A store that answers only for ``answered`` paths, and the calls that reached it."""

    def __init__(self) -> None:
        self.answered: set[str] = set()
        self.calls: list[str] = []
        self.clock = FakeClock()
        self.store = guarded(FaultyMemoryStore(self._outcome).view("p"), self.clock.monotonic)

    def _outcome(self, call: Call) -> Outcome:
        self.calls.append(call.target)
        return Outcome.OK if call.target in self.answered else Outcome.UNAVAILABLE

    def get(self, path: str) -> str:
        try:
            self.store.get(path)
        except (NotFound, Unavailable) as error:
            return error.message
        raise AssertionError("the store is empty")


def test_after_a_few_silent_calls_the_store_is_not_asked() -> None:
    silent = Silent()
    answers = [silent.get(f"o{n}") for n in range(10)]
    assert silent.calls == [f"o{n}" for n in range(SILENT_CALLS)]
    assert set(answers[SILENT_CALLS:]) == {f"the store does not answer: get o{SILENT_CALLS - 1}: no answer"}


def test_an_answer_between_silent_calls_shows_that_the_store_answers() -> None:
    silent = Silent()
    silent.answered = {f"o{n}" for n in range(0, 100, SILENT_CALLS)}
    for n in range(100):
        silent.get(f"o{n}")
    assert len(silent.calls) == 100


def test_one_call_in_a_pause_asks_again_and_its_answer_ends_the_silence() -> None:
    silent = Silent()
    for _ in range(SILENT_CALLS):
        silent.get("o")
    silent.clock.sleep(PAUSE_SECONDS)
    assert [silent.get("probe"), silent.get("later")] == [
        "get probe: no answer",
        "the store does not answer: get probe: no answer",
    ]
    silent.clock.sleep(PAUSE_SECONDS)
    silent.answered = {"probe", "later"}
    assert [silent.get("probe"), silent.get("later")] == ["probe does not exist", "later does not exist"]


def test_listings_and_many_deletions_are_not_tried_either() -> None:
    silent = Silent()
    for _ in range(SILENT_CALLS):
        with pytest.raises(Unavailable):
            list(silent.store.paths("p/"))
    failed = {**silent.store.delete_many(["a", "b"]), **silent.store.create_empty(["c"])}
    assert {path: type(error) for path, error in failed.items()} == dict.fromkeys("abc", Unavailable)
    with pytest.raises(Unavailable):
        next(silent.store.list("p/"))
    assert len(silent.calls) == SILENT_CALLS


def test_many_deletions_that_all_fail_count_as_one_silent_call() -> None:
    silent = Silent()
    silent.store.delete_many(["a", "b", "c"])
    silent.get("d")
    assert silent.get("e") == "get e: no answer"


def test_a_warehouses_view_stays_one() -> None:
    store = guarded(WarehouseStore.of(FaultyMemoryStore(), "lake"))
    assert warehouse_of(store) == "lake"


class Slow(Silent):
    """A store that answers every second call, and lets the caller wait in vain for the others."""

    SECONDS = 40.0

    def __init__(self, objects: int) -> None:
        super().__init__()
        self.answered = {f"o{n}" for n in range(0, objects, 2)}

    def _outcome(self, call: Call) -> Outcome:
        outcome = super()._outcome(call)
        self.clock.sleep(0.01 if outcome is Outcome.OK else self.SECONDS)
        return outcome


@pytest.mark.parametrize("objects", [40, 4_000])
def test_a_store_that_is_silent_for_every_second_call_delays_a_step_by_a_few_of_them(objects: int) -> None:
    slow = Slow(objects)
    for n in range(objects):
        slow.get(f"o{n}")
    assert len(slow.calls) == 2 * SILENT_OBJECTS
    assert slow.clock.monotonic() == pytest.approx(SILENT_OBJECTS * Slow.SECONDS, abs=1)


def test_a_store_that_is_long_silent_for_a_few_objects_is_asked_for_all_others() -> None:
    slow = Slow(2 * SILENT_OBJECTS - 2)
    for n in range(100):
        slow.get(f"o{n % (2 * SILENT_OBJECTS - 2)}")
    assert len(slow.calls) == 100


class Together(Slow):
    """A store for which several calls wait at the same time, as those of threads do."""

    def __init__(self, calls: int) -> None:
        super().__init__(0)
        self.waiting = [f"o{n}" for n in range(calls)]

    def _outcome(self, call: Call) -> Outcome:
        if not self.waiting:
            return super()._outcome(call)
        self.get(self.waiting.pop())
        return Outcome.UNAVAILABLE


def test_calls_that_wait_at_the_same_time_count_once() -> None:
    together = Together(SILENT_OBJECTS)
    together.get("first")
    together.clock.sleep(PAUSE_SECONDS)
    together.answered = {"probe"}
    assert together.get("probe") == "probe does not exist"
    together.get("silent")
    assert together.get("probe") == "probe does not exist"
