"""By KBQ's own books, committed rows are loaded, pending or in quarantine, whatever changes during the read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import Accepted, Definition, QuarantinedFile, TableState
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.observation.accounting import (
    Books,
    PartitionHistory,
    labels,
    loaded_rows,
    out_of_balance,
    range_of,
    replaced_rows,
)
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets_tests.strategies import staged_file

TP = TopicPartition("t", 0)
T, U = TableReference("d", "t"), TableReference("d", "u")
ERRORS, OWN_ERRORS = TableReference("d", "kbq_errors"), TableReference("d", "kbq_errors__team")
FIRST, SECOND = KafkaRange("t", 0, 1), KafkaRange("t", 0, 2)
A, B = staged_file(0, 5), staged_file(5, 9)


def commit(
    rows: int, *, errors: int = 0, epoch: int = 1, since: int = 0, given_up: tuple[str, ...] = ()
) -> Commit:
    totals = Counts(positions=rows + errors, records=rows + errors, errors=errors, rows={"d.t": rows})
    return Commit(
        "t", 0, "c", "id", epoch, {0: PartitionCommit(9, since=since, totals=totals)}, given_up=given_up
    )


def loaded(*files: StagedFile, **changes: Any) -> TableState:
    running = table_state.begin_job(TableState("u"), files, "p", "l")
    state = (
        table_state.record_success(running, sum(file.rows for file in files)) if files else TableState("u")
    )
    return dataclasses.replace(state, **changes)


def lost(file: StagedFile, *, accepted: int = 0) -> TableState:
    """A table whose marks cover two files, one of which is in quarantine."""
    state = loaded(A)
    marks = {table_state.mark_key(B): 9}
    records = (QuarantinedFile(file, "bad"),)
    return dataclasses.replace(
        state, marks=marks, quarantined=records, accepted=Accepted(quarantined=accepted)
    )


def difference(before: Commit | None, after: Commit, books: Books) -> list[str]:
    [ledger] = PartitionHistory.of(before, after)
    return [f"{label}: {words}" for label, _, words in out_of_balance(ledger, books)]


NINE = commit(9)


@pytest.mark.parametrize(
    ("state", "files", "said"),
    [
        (loaded(A, B), [], ""),
        (loaded(A), [B], ""),
        (loaded(A), [A, B], ""),
        (loaded(), [A, B, B], ""),
        (lost(B), [B], ""),
        (loaded(A), [], "5 rows loaded, 0 to load, 0 quarantined, but 9 were committed"),
        (loaded(A, B, staged_file(9, 12)), [], "12 rows loaded, 0 to load, 0 quarantined, but 9 were"),
        (loaded(A, B), [staged_file(9, 10)], "9 rows loaded, 1 to load, 0 quarantined, but 9 were committed"),
    ],
    ids=[
        "all loaded",
        "one to load",
        "a loaded file is still listed",
        "a file that commit and backlog list",
        "one in quarantine",
        "rows are missing",
        "rows are doubled",
        "rows are pending twice",
    ],
)
def test_every_committed_row_is_somewhere_once(state: TableState, files: list[StagedFile], said: str) -> None:
    found = difference(NINE, NINE, Books.of({T: state}, files))
    assert len(found) == bool(said)
    assert all(each.startswith(f"d.t: {said}") for each in found)


@pytest.mark.parametrize(
    ("before", "rows", "balanced"),
    [
        (commit(5), 5, True),
        (commit(5), 9, True),
        (commit(5), 7, True),
        (commit(5), 4, False),
        (commit(5), 10, False),
        (None, 0, True),
        (None, 9, True),
        (commit(5, epoch=0), 0, True),
    ],
    ids=[
        "counted before the commit",
        "counted after it",
        "counted in between",
        "fewer",
        "more",
        "a new partition before",
        "a new partition after",
        "a reset in between",
    ],
)
def test_rows_that_were_committed_while_they_were_counted_may_count_or_not(
    before: Commit | None, rows: int, balanced: bool
) -> None:
    state = TableState("u", rows={"t/0/1": rows})
    assert (difference(before, NINE, Books.of({T: state}, [])) == []) == balanced


@pytest.mark.parametrize(("rows", "balanced"), [(6, False), (7, True), (9, True), (11, True), (12, False)])
def test_rows_that_a_replay_is_replacing_may_count_or_not(rows: int, balanced: bool) -> None:
    replacing = Definition(replacing=Replacing(1, "j", {"t/0/1": -2}))
    state = TableState("u", rows={"t/0/1": rows}, definition=replacing)
    assert (difference(NINE, NINE, Books.of({T: state}, [])) == []) == balanced


def test_rows_of_epochs_before_the_partition_began_do_not_count() -> None:
    state = TableState("u", rows={"t/0/1": 50, "t/0/2": 4, "t/0/3": 5})
    after = commit(9, epoch=3, since=2)
    [ledger] = PartitionHistory.of(after, after)
    assert ledger.ranges == [SECOND, KafkaRange("t", 0, 3)]
    assert difference(after, after, Books.of({T: state}, [])) == []


@pytest.mark.parametrize(("since", "balanced"), [(0, True), (1, True), (2, False)])
def test_tables_whose_files_a_reset_gave_up_have_an_unknown_number(since: int, balanced: bool) -> None:
    after = commit(9, epoch=2, since=since, given_up=(A.path,))
    assert (difference(after, after, Books.of({T: loaded()}, [])) == []) == balanced


def test_error_rows_of_all_error_tables_are_counted_together() -> None:
    after = commit(0, errors=7)
    states = {ERRORS: TableState("u", rows={"t/0/1": 3}), OWN_ERRORS: TableState("v", rows={"t/0/1": 4})}
    books = Books.of(states, [])
    [ledger] = PartitionHistory.of(after, after)
    assert labels(ledger, books) == [("d.t", {T}), ("kbq_errors", {ERRORS, OWN_ERRORS})]
    assert difference(after, after, books) == []
    missing = Books.of({ERRORS: states[ERRORS]}, [])
    assert difference(after, after, missing) == [
        "kbq_errors: 3 rows loaded, 0 to load, 0 quarantined, but 7 were committed"
    ]


def test_a_table_that_the_commit_does_not_know_has_rows_too_many() -> None:
    books = Books.of({T: loaded(A, B), U: TableState("v", rows={"t/0/1": 1})}, [])
    assert difference(NINE, NINE, books) == [
        "d.u: 1 row loaded, 0 to load, 0 quarantined, but 0 were committed"
    ]


@pytest.mark.parametrize(("accepted", "refused"), [(0, 4), (1, 0)])
def test_rows_in_quarantine_are_refused_until_an_operator_accepts_them(accepted: int, refused: int) -> None:
    books = Books.of({T: lost(B, accepted=accepted)}, [])
    assert (books.quarantined[T, FIRST], books.refused[T, FIRST]) == (4, refused)


def test_another_warehouse_counts_what_it_was_given() -> None:
    given = Counts(rows={"d.t": 4})
    state = dataclasses.replace(NINE.partitions[0], delivered={"lake": given})
    after = NINE.with_partition(0, state)
    [ledger] = PartitionHistory.of(after, after, "lake")
    assert (ledger.given.rows, ledger.given_before.rows) == ({"d.t": 4}, {"d.t": 4})
    assert list(out_of_balance(ledger, Books.of({T: TableState("u", rows={"t/0/1": 4})}, []))) == []


def test_keys_of_rows_are_read_from_the_right() -> None:
    state = TableState("u", rows={"a.b-c_d/12/3": 5})
    assert loaded_rows(state) == {KafkaRange("a.b-c_d", 12, 3): 5}
    assert range_of(staged_file(0, 5, partition=2, epoch=4)) == KafkaRange("t", 2, 4)


def test_a_replacement_changes_what_is_loaded_and_not_what_waits() -> None:
    found = Replacing(0, "j", {"t/0/1": -5, "t/0/2": 1}, erasure=3, waiting={"t/0/1": -2, "t/1/1": -1})
    state = TableState("u", definition=Definition(replacing=found))
    assert replaced_rows(state) == {FIRST: -3, SECOND: 1, KafkaRange("t", 1, 1): 1}
    assert replaced_rows(TableState("u")) == {}
