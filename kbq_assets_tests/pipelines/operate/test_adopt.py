"""`kbq adopt` says whose rows a table has, and then feeds it from here or continues without the lost rows."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.origins import LABEL
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.operate import adopt
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.warehouse import FakeTable, FakeWarehouse, Row

T = TableReference("d", "t")
COLUMNS = (Column("_kafka_offset", "INT64"),)


class World:
    """A table of a staging area whose id is `here`, with a state that loaded nine rows."""

    def __init__(self) -> None:
        self.store = FaultyMemoryStore()
        self.warehouse = FakeWarehouse(self.store, self.store.path_of)
        state.create_table_state(self.store, T, "here")
        self.change(lambda now: dataclasses.replace(now, rows={"t/0/1": 4, "u/0/1": 5}))

    def change(self, function: object) -> None:
        assert callable(function)
        state.change(self.store, TableState, table_state_path(T), function)

    def park(self, reason: ParkReason) -> None:
        self.change(lambda now: table_state.park(now, reason, "no"))

    def table(self, *, rows: int, label: str = "") -> None:
        labels = {LABEL: label} if label else {}
        found = [Row(1, "t", 0, offset) for offset in range(rows)]
        self.warehouse.stored[T] = FakeTable(COLUMNS, TableOptions(), labels=labels, rows=found)

    @property
    def now(self) -> TableState:
        return state.read(self.store, TableState, table_state_path(T)).value


@pytest.fixture
def world() -> World:
    return World()


def test_a_table_that_was_dropped_goes_on_without_its_rows(world: World) -> None:
    world.park(ParkReason.TABLE_GONE)
    proposal = adopt.propose(world.store, world.warehouse, T)
    assert proposal.title == "continue without the lost rows of table d.t"
    assert proposal.lines[0].startswith("it does not exist, but KBQ loaded 9 rows into it.")
    assert proposal.lines[2:] == tuple(
        f"to load again what Kafka still has: kbq reset --topic {topic}" for topic in ("t", "u")
    )
    assert world.now.accepted.rows == 0
    proposal.apply()
    assert (world.now.accepted.rows, world.now.parked, sum(world.now.rows.values())) == (9, None, 9)


@pytest.mark.parametrize(
    ("parked", "next_step"),
    [
        (None, "kbq load --table d.t, then this command again"),
        (ParkReason.LOAD_FAILED, "kbq resume --table d.t, kbq load --table d.t, then this command again"),
    ],
)
def test_a_table_that_no_load_has_found_gone_is_not_given_up(
    world: World, parked: ParkReason | None, next_step: str
) -> None:
    if parked:
        world.park(parked)
    with pytest.raises(Refused, match="no load has parked it for that") as refused:
        adopt.propose(world.store, world.warehouse, T)
    assert refused.value.next_step == next_step


def test_rows_that_were_loaded_since_the_proposal_are_not_given_up(world: World) -> None:
    world.park(ParkReason.TABLE_GONE)
    first, second = (adopt.propose(world.store, world.warehouse, T) for _ in range(2))
    first.apply()
    world.change(lambda now: dataclasses.replace(now, rows={**now.rows, "t/0/1": 7}))
    second.apply()
    assert world.now.accepted.rows == 9


def test_a_table_of_another_staging_area_is_fed_from_here_on(world: World) -> None:
    world.table(rows=1234, label="there")
    world.park(ParkReason.FOREIGN_ROWS)
    proposal = adopt.propose(world.store, world.warehouse, T)
    assert proposal.title == "feed table d.t from this staging area"
    assert "its rows (1,234) come from the staging area there" in proposal.lines[0]
    assert world.warehouse.stored[T].labels == {LABEL: "there"}
    proposal.apply()
    assert (world.warehouse.stored[T].labels, world.now.parked) == ({LABEL: "here"}, None)
    assert world.now.accepted.rows == 0


@pytest.mark.parametrize("rows", [0, 5])
def test_a_table_of_this_staging_area_is_resumed_and_not_adopted(world: World, rows: int) -> None:
    world.table(rows=rows, label="here")
    with pytest.raises(Refused, match="belongs to this staging area") as error:
        adopt.propose(world.store, world.warehouse, T)
    assert error.value.next_step == "kbq resume --table d.t"


def test_a_table_that_nobody_loaded_is_not_adopted(world: World) -> None:
    with pytest.raises(NotFound, match=r"nothing was ever loaded into d\.x"):
        adopt.propose(world.store, world.warehouse, TableReference("d", "x"))
