"""A table's state changes only as the protocol allows."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading import batches, table_state
from kbq_assets.core.loading.mismatches import RowMismatch
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import Failures, QuarantinedFile, TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file

TABLE = TableReference("d", "t")
FRESH = TableState("u")


def _loaded(state: TableState, files: list[StagedFile], output_rows: int | None = None) -> TableState:
    batch = batches.LoadBatch(TABLE, batches.SchemaKey(1, "f1"), tuple(files))
    submitted = table_state.begin_job(state, batch.files, "p", "l")
    return table_state.record_success(submitted, batch.rows if output_rows is None else output_rows)


def test_every_intent_has_an_id_that_was_never_used() -> None:
    batch = batches.LoadBatch(TABLE, batches.SchemaKey(1, "f1"), (staged_file(0, 5), staged_file(5, 9)))
    first = table_state.begin_job(FRESH, batch.files, "p", "l")
    second = table_state.retry(first)
    third = table_state.isolate(second, [QuarantinedFile(batch.files[0], "broken")])
    fourth = table_state.begin_job(table_state.record_success(third, 4), batch.files, "p", "l")
    job_ids = [s.in_flight.job_id for s in (first, second, third, fourth) if s.in_flight]
    assert job_ids == [f"kbq-u-{n}" for n in (1, 2, 3, 4)]


def test_a_bad_file_moves_the_mark_only_together_with_the_rest_of_its_batch() -> None:
    good, bad = staged_file(0, 5), staged_file(5, 9)
    submitted = table_state.begin_job(FRESH, (good, bad), "p", "l")
    isolated = table_state.isolate(submitted, [QuarantinedFile(bad, "broken")])
    assert (isolated.marks, isolated.quarantined) == ({}, ())
    loaded = table_state.record_success(isolated, good.rows)
    assert loaded.marks == {table_state.mark_key(good): 9}
    assert [q.file for q in loaded.quarantined] == [bad]
    assert sum(loaded.rows.values()) == good.rows


def test_a_batch_of_bad_files_alone_is_recorded_at_once() -> None:
    bad = staged_file(0, 5)
    submitted = table_state.begin_job(FRESH, (bad,), "p", "l")
    loaded = table_state.isolate(submitted, [QuarantinedFile(bad, "broken")])
    assert (loaded.in_flight, loaded.is_loaded(bad), dict(loaded.rows)) == (None, True, {})


def test_other_output_rows_are_recorded_as_loaded_and_as_a_mismatch() -> None:
    file = staged_file(0, 5)
    state = _loaded(FRESH, [file], output_rows=4)
    assert state.is_loaded(file)
    assert state.mismatches == (RowMismatch("kbq-u-1", 5, 4),)


def test_parking_keeps_a_job_whose_id_may_have_run() -> None:
    submitted = table_state.begin_job(FRESH, (staged_file(0, 5),), "p", "l")
    parked = table_state.park(submitted, ParkReason.OLD_JOB, "lost")
    assert parked.in_flight == submitted.in_flight
    assert table_state.unpark(parked) == submitted


def test_a_registered_table_keeps_the_uuid_of_its_first_announcement() -> None:
    registry = TableRegistry().announce(TABLE, "first").announce(TABLE, "second")
    assert registry.creating == {"d.t": "first"}
    active = registry.activate(TABLE)
    assert (dict(active.active), dict(active.creating)) == ({"d.t": "first"}, {})
    assert active.announce(TABLE, "third").activate(TABLE) == active


@pytest.mark.parametrize("change", [table_state.burn, table_state.give_up, table_state.retry])
def test_what_becomes_of_a_job_never_moves_a_mark(change: object) -> None:
    assert callable(change)
    submitted = table_state.begin_job(FRESH, (staged_file(0, 5),), "p", "l")
    changed = change(submitted)
    assert dataclasses.replace(changed, in_flight=None, sequence=0, failed=Failures()) == FRESH
