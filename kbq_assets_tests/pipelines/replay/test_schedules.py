"""Promotion and rollback during live loading, with a crash or another process before any of their writes: rows are
replaced exactly, never doubled, and reconciliation is true at every step."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import JobAlreadyExists, JobFailed, KbqError, Refused
from kbq_assets.core.loading import replacements
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.replay import promotion
from kbq_assets.core.replay.model import Replay, replay_path
from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.replay.promote import Replacer
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.platform import SOURCES, TOPIC, FakePlatform
from kbq_assets_tests.fakes.replay import FakeReplayTables
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import FakeWarehouse

ORDERS, SALES = (TableReference("shop", name) for name in ("orders", "sales"))
WRONG = SOURCES.replace("table=orders", "table=sales")
RANGE = {(0, 1), (0, 2), (1, 0)}
#: What may become of a write, and which other process may run just before it.
OUTCOMES = ("CRASH_BEFORE", "CRASH_AFTER", "CRASH_LATE", "LOST_REPLY", "OWN_RETRY", "UNAVAILABLE")
OTHERS = ("load", "promote", "rollback")
EVENTS = (*OUTCOMES, *OTHERS)


class World:
    """Rows of a range went to `sales`; a replay that is read says `orders`. Live traffic goes on. Without
    ``one_transaction``, the warehouse replaces table after table, as a lake does."""

    #: the source list that a replay is read by
    right = SOURCES

    def opened(self, folder: Path) -> FakePlatform:
        return FakePlatform(folder, keep_records=True, sources=WRONG)

    @property
    def warehouse(self) -> FakeWarehouse:
        """The one whose rows are replaced."""
        return self.platform.warehouse

    def __init__(self, folder: Path, *, one_transaction: bool = True) -> None:
        self.platform = self.opened(folder)
        self.warehouse.one_transaction = one_transaction
        self.produced = 0
        self.cycle()
        self.cycle()
        self.platform.source_topics.write_text(self.right)
        self.replays = self.parts().replays

        ends = Position(offsets={0: 1, 1: 0}), Position(offsets={0: 3, 1: 1})
        self.replays.propose(TOPIC, *ends)[1].apply()
        assert self.replays.read(1).is_done
        self.writes = 0

    def parts(self, faults: Callable[[Call], Outcome] | None = None) -> Parts:
        """The parts of a new process. With ``faults``, its writes may fail."""
        world = self.platform
        if faults is None:
            return world.reopened()
        world.store.faults = self.warehouse.faults = faults
        store, warehouse = world.store.view("promoter"), self.warehouse.view("promoter")
        return world.reopened(
            store=lambda: store,
            warehouse=lambda: warehouse,
            replay_tables=lambda: FakeReplayTables(self.warehouse, warehouse),
        )

    def cycle(self) -> None:
        """Two more records, extracted and loaded."""
        self.platform.produce(2)
        self.platform.produce(1, partition=1)
        self.produced += 3
        parts = self.parts()
        parts.extractor.extract()
        parts.loader.load()

    def rows(self, table: TableReference) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self.warehouse.rows(table))

    def check(self, *, counts: bool = True) -> None:
        """No row is doubled or lost, and one of the two tables has the whole range. In a lake, each table has all of
        it or nothing while it is replaced."""
        found, reconciler = [*self.rows(ORDERS), *self.rows(SALES)], self.parts().reconciler
        assert all(RANGE & set(self.rows(table)) in (set(), RANGE) for table in (ORDERS, SALES))
        is_between = not self.warehouse.one_transaction and self.replay().is_changing
        if not is_between:
            assert len(found) == len(set(found)) >= 6
            assert set(found) >= RANGE
        if counts:
            assert reconciler.counts().findings == ()
            assert is_between or reconciler.reconcile().findings == ()

    def replay(self) -> Replay:
        """The one replay, as it is stored."""
        return state.read(self.platform.store, Replay, replay_path(1)).value

    def finish(self) -> str:
        """What an operator does after any crash: continue, until nothing waits."""
        parts = self.parts()
        while self.platform.store.late:
            self.platform.store.deliver_late()
        while self.warehouse.late:
            self.warehouse.deliver_late()
        if parts.replays.find(1).phase not in ("read", "rolled_back"):
            parts.replays.continue_(1)
        self.cycle()
        self.check()
        assert len(self.rows(ORDERS)) + len(self.rows(SALES)) == self.produced
        waiting = [t for t in (ORDERS, SALES) if self._state(t).definition.replacing]
        assert waiting == []
        return parts.replays.find(1).phase

    def _state(self, table: TableReference) -> Any:
        found = self.parts().replays

        return state.read(found.live.load_store, TableState, table_state_path(table)).value


class Plan:
    """Lets an event happen before the nth write."""

    def __init__(self, world: World, events: dict[int, str]) -> None:
        self.world, self.events, self.writes = world, events, 0

    def __call__(self, call: Call) -> Outcome:
        if not call.writes:
            return Outcome.OK
        self.writes += 1
        event = self.events.get(self.writes, "")
        if event in OUTCOMES:
            return Outcome[event]
        if event == "load":
            self.world.cycle()
        elif event:
            act(self.world, self.world.parts(), event)
        self.world.check(counts=event != "")
        return Outcome.OK


def act(world: World, parts: Parts, event: str) -> None:
    """Promote or roll back, as far as it is allowed."""
    try:
        if event == "promote":
            parts.replays.propose_promotion(1).apply()
        else:
            parts.replays.propose_rollback(1).apply()
    except Refused:
        pass


def run(world: World, event: str, events: dict[int, str]) -> int:
    """Act under a plan; return the number of writes."""
    plan = Plan(world, events)
    parts = world.parts(plan)
    try:
        act(world, parts, event)
    except (Crash, KbqError):
        pass
    finally:
        world.platform.store.faults = world.warehouse.faults = None
    return plan.writes


@pytest.mark.slow
@pytest.mark.parametrize("one_transaction", [True, False])
@pytest.mark.parametrize("event", EVENTS)
def test_a_promotion_survives_an_event_before_each_of_its_writes(
    tmp_path: Path, event: str, one_transaction: bool
) -> None:
    number = 1
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, one_transaction=one_transaction)
        writes = run(world, "promote", {number: event})
        assert world.finish() in ("promoted", "read", "rolled_back")
        if writes < number:
            break
        number += 1
    assert number > 10


@pytest.mark.parametrize("one_transaction", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_schedules_of_promotions_rollbacks_loads_and_crashes(
    tmp_path: Path, seed: int, one_transaction: bool
) -> None:
    chance, world = random.Random(seed), World(tmp_path, one_transaction=one_transaction)
    for _ in range(4):
        events = {chance.randrange(1, 16): chance.choice(EVENTS) for _ in range(2)}
        run(world, chance.choice(["promote", "rollback"]), events)
        world.finish()


@pytest.mark.parametrize("one_transaction", [True, False])
def test_a_late_job_of_a_promotion_cannot_undo_its_rollback(tmp_path: Path, one_transaction: bool) -> None:
    world = World(tmp_path, one_transaction=one_transaction)
    with pytest.raises(Crash):
        act(world, world.parts(Script("replace", outcome=Outcome.CRASH_LATE)), "promote")
    world.platform.store.faults = world.platform.warehouse.faults = None
    act(world, world.parts(), "promote")
    act(world, world.parts(), "rollback")
    assert isinstance(world.platform.warehouse.deliver_late(), JobAlreadyExists)
    assert set(world.rows(SALES)) >= RANGE
    assert world.finish() == "rolled_back"


def test_a_promotion_that_the_warehouse_refuses_lets_its_tables_go_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(JobFailed):
        refused = Script("replace", before=_refuse)
        act(world, world.parts(refused), "promote")
    world.platform.store.faults = world.platform.warehouse.faults = None
    assert world.finish() == "read"
    act(world, world.parts(), "promote")
    assert (world.finish(), set(world.rows(ORDERS)) >= RANGE) == ("promoted", True)


def test_a_lakes_promotion_that_is_refused_after_its_first_table_goes_on(tmp_path: Path) -> None:
    """Nobody can give it up any more: its status says which table waits, and it continues."""
    world, asked = World(tmp_path, one_transaction=False), list[str]()

    def refused(call: Call) -> Outcome:
        if call.operation == "replace":
            asked.append(call.target)
            if len(asked) == 2:
                _refuse()
        return Outcome.OK

    with pytest.raises(JobFailed):
        act(world, world.parts(refused), "promote")
    world.platform.store.faults = world.platform.warehouse.faults = None
    assert world.replay().phase == "promoting"
    assert world.parts().replays.replaced(world.replay()) == {ORDERS: True, SALES: False}
    world.cycle()
    assert (world.finish(), set(world.rows(ORDERS)) >= RANGE) == ("promoted", True)
    assert world.parts().replays.replaced(world.replay()) == {}


def test_a_process_that_comes_late_to_a_replay_lets_no_table_wait(tmp_path: Path) -> None:
    """It looked for the job before another process promoted and accepted the replay: the shadows are gone."""
    world, asked = World(tmp_path), list[str]()

    def others(call: Call) -> Outcome:
        asked.append(call.operation)
        if asked[-2:-1] == ["get_job"]:
            world.platform.store.faults = world.platform.warehouse.faults = None
            act(world, world.parts(), "promote")
            world.parts().replays.propose_accept(1).apply()
        return Outcome.OK

    with pytest.raises(Refused, match="replay 1 is accepted"):
        world.parts(others).replays.propose_promotion(1).apply()
    world.cycle()
    world.check()
    assert set(world.rows(ORDERS)) >= RANGE


def test_a_table_that_a_late_process_let_wait_goes_on(tmp_path: Path) -> None:
    """The process died then. The replay has been accepted, and its shadows are gone."""
    world, path = World(tmp_path), table_state_path(ORDERS)
    act(world, world.parts(), "promote")
    promoted = world.parts().replays.find(1)
    world.parts().replays.propose_accept(1).apply()
    late = Replacing(1, promoted.job_id, {f"{TOPIC}/0/1": -2})
    state.change(world.platform.store, TableState, path, lambda now: replacements.begin_replacing(now, late))
    assert world.parts().replays.continue_(1).phase == "accepted"
    world.cycle()
    world.check()
    with pytest.raises(Refused):
        world.parts().replays.continue_(1)


def _refuse() -> None:
    raise JobFailed("the warehouse refuses it")


def _uncounted(begin: Callable[..., Any], now: TableState, found: Replacing) -> Any:
    return begin(now, replace(found, rows={}))


#: What is left out, and what then goes wrong.
MUTANTS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "R3: rows are not counted": (
        replacements,
        "begin_replacing",
        partial(_uncounted, replacements.begin_replacing),
    ),
    "R5: commits are not counted": (promotion, "replaced", lambda commit, *rest: commit),
    "R5: the tables never go on": (replacements, "end_replacing", lambda now, job_id, *, done: now),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_step_that_is_left_out_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    world = World(tmp_path)
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(AssertionError):
        run(world, "promote", {})
        world.finish()


@pytest.mark.parametrize("checked", [True, False])
def test_rows_of_the_range_that_are_loaded_later_would_be_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Why a promotion refuses while a file of the range waits (R3)."""
    platform = FakePlatform(tmp_path, keep_records=True, sources=WRONG)
    platform.produce(2)
    parts = platform.reopened()
    parts.extractor.extract()
    platform.source_topics.write_text(SOURCES)
    replays = platform.reopened().replays
    replays.propose(TOPIC, Position("earliest"), Position("latest"))[1].apply()
    replays.read(1)
    if not checked:
        monkeypatch.setattr(promotion, "check_settled", lambda *found: None)
    try:
        replays.propose_promotion(1).apply()
    except Refused:
        assert checked
    platform.reopened().loader.load()
    rows = [row.offset for table in (ORDERS, SALES) for row in platform.warehouse.rows(table)]
    assert (sorted(rows) == [0, 1]) == checked


@pytest.mark.parametrize("checked", [True, False])
def test_two_replays_promoted_at_once_never_both_add_a_row_for_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """Records were skipped, so no table that both replace makes one of them wait (R3)."""
    platform = FakePlatform(tmp_path, keep_records=True, partitions=1)
    platform.source_topics.write_text(
        WRONG.replace("table=sales", "table=sales errors=skip max_record_bytes=4")
    )
    platform.produce(2)
    parts = platform.reopened()
    parts.extractor.extract()
    parts.loader.load()
    for number, sources in enumerate((SOURCES, WRONG), 1):
        platform.source_topics.write_text(sources)
        replays = platform.reopened().replays
        replays.propose(TOPIC, Position("earliest"), Position("latest"))[1].apply()
        assert replays.read(number).is_done
    if not checked:
        monkeypatch.setattr(Replacer, "_check_others", lambda *found: None)
    other = partial(_promoted, platform, 2)
    view = platform.warehouse.view("promoter")
    platform.warehouse.faults = Script("replace", before=other)
    dying = platform.reopened(replay_tables=lambda: FakeReplayTables(platform.warehouse, view))
    _promoted(platform, 1, dying)
    platform.warehouse.faults = None
    rows = [row.offset for table in (ORDERS, SALES) for row in platform.warehouse.rows(table)]
    assert (len(rows) == len(set(rows)) == 2) == checked


def _promoted(platform: FakePlatform, number: int, parts: Parts | None = None) -> None:
    with contextlib.suppress(Refused):
        (parts or platform.reopened()).replays.propose_promotion(number).apply()
