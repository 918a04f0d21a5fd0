"""A replacement's job is done, given up or undecided like its parts, and its changes are counted."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import JobAlreadyExists, JobFailed
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.replay.model import Bounds, Replay
from kbq_assets.pipelines.replay.changes import balance_of
from kbq_assets.pipelines.replay.chosen import left_out
from kbq_assets.pipelines.replay.parts import ReplaceParts
from kbq_assets.ports.replay import ReplaceJob, Replacement, RowRange
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.replay import FakeReplayTables
from kbq_assets_tests.fakes.warehouse import FakeTable, FakeWarehouse

A, B = TableReference("d", "a"), TableReference("d", "b")
ROWS = RowRange("t", 1, (OffsetRange(TopicPartition("t", 0), 0, 9),))
#: It takes rows away: an empty replacement can run on no table.
JOB = ReplaceJob("kbq-replay-u-1-1", ROWS, (Replacement(A, None), Replacement(B, None)))


def warehouse(*, lake: bool = False, auto_run: bool = True) -> FakeWarehouse:
    """A warehouse with both tables; a lake has a job for each."""
    store = FaultyMemoryStore()
    made = FakeWarehouse(store, store.path_of, auto_run=auto_run, one_transaction=not lake)
    made.stored.update({table: FakeTable((), TableOptions()) for table in (A, B)})
    return made


def parts_of(found: FakeWarehouse) -> ReplaceParts:
    return ReplaceParts(found, JOB.parts(one_transaction=found.one_transaction))


def ran(found: FakeWarehouse, *, tables: int = 2) -> ReplaceParts:
    """The parts after the job ran; in a lake, after the job stopped behind ``tables`` tables."""
    left = [None] * tables
    FakeReplayTables(found, refusals=lambda: left.pop() if left else REFUSAL).replace(JOB)
    return parts_of(found)


REFUSAL = JobError("stopped", "the process died here", transient=True)


@pytest.mark.parametrize("lake", [False, True], ids=["one transaction", "a commit of each table"])
def test_a_job_that_nobody_submitted_is_not_done_and_can_be_given_up(lake: bool) -> None:
    parts = parts_of(warehouse(lake=lake))
    assert (parts.replaced(), parts.is_done, parts.progress()) == (0, False, {A: False, B: False})
    assert parts.give_up()
    with pytest.raises(JobFailed, match="kbq-replay-u-1-1 replaced nothing: ") as error:
        assert parts.is_done
    assert error.value.next_step == "kbq replay list"
    assert parts.progress() == {A: False, B: False}


@pytest.mark.parametrize("lake", [False, True], ids=["one transaction", "a commit of each table"])
def test_a_job_that_ran_is_done_and_cannot_be_given_up(lake: bool) -> None:
    parts = ran(warehouse(lake=lake))
    assert (parts.replaced(), parts.is_done, parts.progress()) == (2 if lake else 1, True, {A: True, B: True})
    assert not parts.give_up()
    assert parts.is_done


def test_a_job_that_may_be_running_cannot_be_given_up() -> None:
    found = warehouse(auto_run=False)
    parts = ran(found)
    assert (parts.is_done, parts.progress(), parts.give_up()) == (False, {A: False, B: False}, False)
    found.run_pending(JOB.job_id)
    assert parts.is_done


def test_a_job_that_failed_replaced_nothing_and_counts_as_given_up() -> None:
    found = warehouse(auto_run=False)
    parts = ran(found)
    found.run_pending(JOB.job_id, JobError("invalid", "too many rows", transient=False))
    with pytest.raises(JobFailed, match="replaced nothing: too many rows"):
        parts.replaced()
    assert parts.give_up()


def test_a_lake_whose_first_table_is_replaced_must_go_on() -> None:
    found = warehouse(lake=True)
    with pytest.raises(JobFailed, match="the process died here"):
        ran(found, tables=1)
    parts = parts_of(found)
    assert (parts.replaced(), parts.is_done, parts.progress()) == (1, False, {A: True, B: False})
    assert not parts.give_up()
    assert ran(found).is_done


def test_a_lake_that_was_given_up_gives_up_every_table() -> None:
    found = warehouse(lake=True)
    assert parts_of(found).give_up()
    assert parts_of(found).give_up()
    with pytest.raises(JobAlreadyExists, match="was given up"):
        ran(found)


# What a replacement changes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "rows"),
    [
        ([], {}),
        ([{"t/0/1": 3}], {"t/0/1": -3}),
        ([{"t/0/1": 3}, {"t/0/1": -3}], {}),
        ([{"t/0/1": 3, "t/1/1": 1}, {"t/0/1": -1}], {"t/0/1": -2, "t/1/1": -1}),
    ],
    ids=["no other table", "another gains", "others balance", "two partitions"],
)
def test_a_table_of_records_gains_what_the_others_lose(
    others: list[dict[str, int]], rows: dict[str, int]
) -> None:
    replay = Replay(7, "t", 1, {0: Bounds(0, 9)}, job_id="j")
    changes = {TableReference("d", f"x{n}"): Replacing(7, "j", each) for n, each in enumerate(others)}
    assert balance_of(replay, changes) == Replacing(7, "j", rows)


@pytest.mark.parametrize(
    ("only", "rows", "errors", "left"),
    [
        ((), {"d.a": 5, "d.b": 2}, 1, {}),
        (("d.a",), {"d.a": 5}, 0, {}),
        (("d.a",), {"d.a": 5, "d.b": 2, "d.c": 0}, 0, {"d.b": 2}),
        (("d.a",), {"d.a": 5}, 3, {"kbq_errors": 3}),
        (("d.a", "d.kbq_errors__team"), {"d.a": 5}, 3, {}),
    ],
    ids=["all tables", "nothing else", "another table", "bad records", "bad records are chosen"],
)
def test_rows_of_tables_that_a_replay_does_not_fill_are_left_out(
    only: tuple[str, ...], rows: dict[str, int], errors: int, left: dict[str, int]
) -> None:
    replay = Replay(7, "t", 1, {0: Bounds(0, 9)}, only=only)
    assert left_out(replay, Counts(errors=errors, rows=rows)) == left
