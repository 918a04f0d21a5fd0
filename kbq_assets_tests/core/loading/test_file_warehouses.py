"""A staged file stays until every warehouse that needs it has loaded it."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.file_warehouses import WarehouseStates, is_done_with
from kbq_assets.core.loading.table_state import QuarantinedFile, TableState, mark_key
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file

TABLE = TableReference("d", "t")
FILE = staged_file(5, 9)
BOTH = dataclasses.replace(FILE, warehouses=("", "lake"))
LAKE = dataclasses.replace(FILE, warehouses=("lake",))
EMPTY = TableState("u")
HAS = TableState("u", marks={mark_key(FILE): 9})
PART = TableState("u", marks={mark_key(FILE): 8})
#: It has the file, and an operator brings it back from quarantine.
RETRIES = dataclasses.replace(HAS, quarantined=(QuarantinedFile(FILE, "bad", retry=True),))
PARKED = table_state.park(EMPTY, ParkReason.LOAD_FAILED, "no")


def states(removed: frozenset[str] = frozenset(), **tables: TableState) -> WarehouseStates:
    """Table states by warehouse; ``first`` is the first one."""
    return WarehouseStates(
        {"" if name == "first" else name: {TABLE: state} for name, state in tables.items()}, removed
    )


GONE = frozenset({"lake"})


@pytest.mark.parametrize(
    ("found", "file", "waiting", "is_ahead", "is_done_with"),
    [
        (states(), FILE, [""], False, False),
        (states(first=EMPTY), FILE, [""], False, False),
        (states(first=PART), FILE, [""], False, False),
        (states(first=HAS), FILE, [], True, True),
        (states(first=HAS), BOTH, ["lake"], True, False),
        (states(first=HAS, lake=EMPTY), BOTH, ["lake"], True, False),
        (states(first=EMPTY, lake=HAS), BOTH, [""], True, False),
        (states(first=HAS, lake=HAS), BOTH, [], True, True),
        (states(first=EMPTY, lake=HAS), LAKE, [], True, True),
        (states(first=HAS, lake=EMPTY), LAKE, ["lake"], False, False),
        (states(GONE, first=HAS), BOTH, [], True, True),
        (states(GONE, first=EMPTY, lake=HAS), BOTH, [""], False, False),
        (states(GONE, first=EMPTY), LAKE, [], False, True),
        (states(first=HAS, lake=RETRIES), BOTH, [], True, False),
    ],
    ids=[
        "no state",
        "not loaded",
        "a mark within the file",
        "loaded",
        "a second warehouse without a state",
        "the second lacks it",
        "the first lacks it",
        "both have it",
        "for the second alone",
        "the first has what only the second needs",
        "the second was removed",
        "what a removed one has does not count",
        "for a removed one alone",
        "an operator brings it back",
    ],
)
def test_a_file_waits_for_the_warehouses_that_lack_it(
    found: WarehouseStates, file: object, waiting: list[str], is_ahead: bool, is_done_with: bool
) -> None:
    assert isinstance(file, type(FILE))
    assert found.waiting(file) == waiting
    assert found.is_loaded(file) == (not waiting)
    assert found.is_ahead(file) == is_ahead
    assert found.is_done_with(file) == is_done_with


def test_files_of_another_table_are_not_known() -> None:
    found = states(first=HAS)
    other = staged_file(5, 9, table="d.other")
    assert (found.has("", other), found.is_parked("", other)) == (False, False)


def test_a_table_is_parked_in_one_warehouse_alone() -> None:
    found = states(first=EMPTY, lake=PARKED)
    assert [found.is_parked(name, BOTH) for name in ("", "lake", "unknown")] == [False, True, False]


def test_the_jobs_of_a_table_are_those_of_all_warehouses() -> None:
    running = table_state.begin_job(EMPTY, (FILE,), "p", "l")
    found = states(first=running, lake=EMPTY, third=running)
    assert found.jobs_in_flight(TABLE) == [running.in_flight] * 2
    assert found.jobs_in_flight(TableReference("d", "other")) == []


def test_another_file_that_comes_back_keeps_no_file() -> None:
    state = dataclasses.replace(HAS, quarantined=(QuarantinedFile(staged_file(0, 5), "bad", retry=True),))
    assert is_done_with(state, FILE)
    given_up = dataclasses.replace(HAS, quarantined=(QuarantinedFile(FILE, "bad", dropped=True),))
    assert is_done_with(given_up, FILE)
