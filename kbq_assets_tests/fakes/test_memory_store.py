"""The store in memory keeps the contract, and fails on request."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any, cast

import pytest

from kbq_assets.core.errors import PreconditionFailed, Unavailable, UnknownOutcome
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets_tests.contracts.object_store import ObjectStoreContract, paths, stream
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore


class Retrying:
    """A store whose calls are repeated while it is unavailable, as pipelines do from run to run."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return _retried(found) if callable(found) else found


def _retried(call: Callable[..., object]) -> Callable[..., object]:
    @wraps(call)
    def until_available(*arguments: Any, **named: Any) -> object:
        while True:
            try:
                result = call(*arguments, **named)
            except Unavailable:
                continue
            return Retrying(result) if hasattr(result, "abort") else result

    return until_available


def every(period: int, outcome: Outcome) -> Callable[[Call], Outcome]:
    """Faults: each so manieth call ends like this."""
    numbers = count(1)
    return lambda call: outcome if next(numbers) % period == 0 else Outcome.OK


class TestMemoryStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyMemoryStore()


class TestMemoryStoreSeenByAProcess(ObjectStoreContract):
    many = 5_000  # the store itself has 50,000

    @pytest.fixture
    def store(self) -> ObjectStore:
        return FaultyMemoryStore().view("p")


class TestMemoryStoreThatIsOftenUnavailable(ObjectStoreContract):
    many = 5_000

    @pytest.fixture
    def store(self) -> ObjectStore:
        view = FaultyMemoryStore(every(3, Outcome.UNAVAILABLE)).view("p")
        return cast(ObjectStore, Retrying(view))

    def test_many_empty_objects_are_created_unless_they_exist(self, store: ObjectStore) -> None:
        failed = names = [f"done/{number}" for number in range(40)]
        for _ in range(8):
            failed = list(store.create_empty(failed))
        assert not failed
        assert sorted(paths(store)) == sorted(names)

    def test_empty_objects_report_their_failures_and_go_on(self, store: ObjectStore) -> None:
        names = [f"a/{number}" for number in range(10)]
        failures = store.create_empty(names)
        assert {type(error) for error in failures.values()} == {Unavailable}
        assert sorted([*paths(store), *failures]) == names

    def test_deletions_report_their_failures_and_go_on(self, store: ObjectStore) -> None:
        for number in range(10):
            store.create(f"a/{number}", b"")
        failures = store.delete_many([f"a/{number}" for number in range(10)])
        assert {type(error) for error in failures.values()} == {Unavailable}
        assert paths(store) == sorted(failures)


def faulty(outcome: Outcome) -> FaultyMemoryStore:
    """A store where every write through a view ends like this."""
    return FaultyMemoryStore(lambda call: outcome if call.writes else Outcome.OK)


@pytest.mark.parametrize(
    ("outcome", "raised", "applied"),
    [
        (Outcome.UNAVAILABLE, Unavailable, False),
        (Outcome.CRASH_BEFORE, Crash, False),
        (Outcome.CRASH_AFTER, Crash, True),
        (Outcome.CRASH_LATE, Crash, False),
        (Outcome.LOST_REPLY, UnknownOutcome, True),
        (Outcome.LATE, UnknownOutcome, False),
        (Outcome.OWN_RETRY, PreconditionFailed, True),
    ],
)
@pytest.mark.parametrize("operation", ["create", "swap", "close"])
def test_a_write_ends_as_the_fault_says(
    operation: str, outcome: Outcome, raised: type[BaseException], applied: bool
) -> None:
    store = faulty(outcome)
    generation = store.create("a", b"old")
    view = store.view("p")
    calls: dict[str, tuple[str, Callable[[], object]]] = {
        "create": ("b", lambda: view.create("b", b"new")),
        "swap": ("a", lambda: view.swap("a", b"new", generation)),
        "close": ("b", lambda: stream(view, "b", b"new")),
    }
    target, call = calls[operation]
    with pytest.raises(raised):
        call()
    assert (target in store.objects and store.objects[target].data == b"new") is applied
    assert len(store.late) == (1 if outcome in (Outcome.LATE, Outcome.CRASH_LATE) else 0)


def test_a_late_call_arrives_on_request_and_may_lose() -> None:
    store = faulty(Outcome.LATE)
    generation = store.create("a", b"1")
    for data in (b"2", b"3"):
        with pytest.raises(UnknownOutcome):
            store.view("zombie").swap("a", data, generation)
    assert store.deliver_late(1) is None
    assert store.get("a").data == b"3"
    assert isinstance(store.deliver_late(), PreconditionFailed)
    assert store.get("a").data == b"3"
    assert store.late == []


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
def test_a_process_can_die_reading(outcome: Outcome) -> None:
    store = FaultyMemoryStore(lambda call: outcome)
    store.create("a", b"")
    view = store.view("p")
    calls: list[Callable[[], object]] = [
        lambda: view.get("a"),
        lambda: view.list(""),
        lambda: view.open_read("a"),
    ]
    for call in calls:
        with pytest.raises(Crash):
            call()


def test_the_faults_get_caller_and_call() -> None:
    calls: list[Call] = []

    def note(call: Call) -> Outcome:
        calls.append(call)
        return Outcome.OK

    view = FaultyMemoryStore(note).view("p")
    generation = view.create("a", b"")
    view.swap("a", b"", generation)
    stream(view, "b", b"")
    view.copy("b", "c")
    view.get("a")
    list(view.list("", "a"))
    view.delete_many(["b", "c"])
    assert {call.process for call in calls} == {"p"}
    assert [(call.operation, call.target, call.writes) for call in calls] == [
        ("create", "a", True),
        ("swap", "a", True),
        ("close", "b", True),
        ("copy", "c", True),
        ("get", "a", False),
        ("list", "", False),
        ("delete", "b", True),
        ("delete", "c", True),
    ]
