"""Batches are prefixes of one schema, in order, within the limits of a job."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.errors import StateError
from kbq_assets.core.loading import batches, table_state
from kbq_assets.core.loading.batches import LoadLimits, plan_batch
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.strategies import staged_file

TABLE = TableReference("d", "t")
FRESH = TableState("u")
UNLIMITED = LoadLimits()


def _plan(
    files: list[StagedFile], state: TableState = FRESH, limits: LoadLimits = UNLIMITED
) -> list[StagedFile]:
    batch = plan_batch(TABLE, state, files, limits)
    return [] if batch is None else list(batch.files)


def _loaded(state: TableState, files: list[StagedFile], output_rows: int | None = None) -> TableState:
    batch = batches.LoadBatch(TABLE, batches.SchemaKey(1, "f1"), tuple(files))
    submitted = table_state.begin_job(state, batch.files, "p", "l")
    return table_state.record_success(submitted, batch.rows if output_rows is None else output_rows)


def test_nothing_pending_is_no_batch() -> None:
    assert plan_batch(TABLE, FRESH, [], UNLIMITED) is None


def test_a_file_listed_in_commit_and_backlog_counts_once() -> None:
    file = staged_file(0, 5)
    assert _plan([file, file]) == [file]


def test_of_a_file_and_its_successor_the_one_that_was_read_again_last_counts() -> None:
    file = staged_file(0, 5)
    again = dataclasses.replace(staged_file(0, 5, attempt="b"), restaged=1)
    assert _plan([again, file]) == _plan([file, again]) == [again]
    assert _plan([again], _loaded(FRESH, [file])) == []


def test_files_below_the_marks_are_not_candidates() -> None:
    old, new = staged_file(0, 5), staged_file(5, 9)
    assert _plan([old, new], _loaded(FRESH, [old])) == [new]


def test_marks_of_one_epoch_do_not_cover_another() -> None:
    again = staged_file(0, 5, epoch=2)
    assert _plan([again], _loaded(FRESH, [staged_file(0, 9)])) == [again]


def test_marks_of_one_schema_do_not_cover_another() -> None:
    old_id, new_id = staged_file(3, 9, schema_id=1, window=0), staged_file(0, 9, schema_id=2)
    assert _plan([old_id, new_id], _loaded(FRESH, [new_id])) == [old_id]


def test_the_schema_with_the_oldest_window_goes_first_and_the_lowest_id_on_a_tie() -> None:
    younger, older = (
        staged_file(0, 5, schema_id=1, oldest_ms=20),
        staged_file(0, 5, partition=1, schema_id=2, oldest_ms=10),
    )
    assert _plan([younger, older]) == [older]
    tied = [staged_file(0, 5, schema_id=s, oldest_ms=7) for s in (9, 3)]
    assert _plan(tied) == [tied[1]]


def test_a_batch_ends_where_the_staged_schema_changes() -> None:
    files = [
        staged_file(0, 5, fingerprint="a"),
        staged_file(5, 9, fingerprint="b"),
        staged_file(9, 12, fingerprint="a"),
    ]
    assert _plan(files) == files[:1]


def test_the_files_of_a_window_stay_together_within_the_limits() -> None:
    rotated = [staged_file(0, 3), staged_file(3, 5, window=0)]
    following = staged_file(5, 9)
    assert _plan([*rotated, following], limits=LoadLimits(files=2)) == rotated
    assert _plan([*rotated, following], limits=LoadLimits(files=1)) == rotated  # one window is never refused
    assert _plan([*rotated, following], limits=LoadLimits(bytes=250)) == rotated
    dated = [staged_file(0, 5, dates=(1, 2)), staged_file(5, 9, dates=(3,))]
    assert _plan(dated, limits=LoadLimits(time_partitions=2)) == dated[:1]


def test_a_window_with_more_dates_than_a_job_may_change_is_loaded_in_parts_in_order() -> None:
    limits = LoadLimits(time_partitions=3)
    first, second, third = (
        staged_file(start, start + 3, window=0, dates=dates)
        for start, dates in [(0, (1, 2)), (3, (2, 3)), (6, (4,))]
    )
    following = staged_file(9, 12, dates=(4,))
    files = [first, second, third, following]
    assert _plan(files, limits=limits) == [first, second]
    state = _loaded(FRESH, [first, second])
    assert _plan(files, state, limits) == [third, following]


def test_files_of_the_hours_of_a_window_stay_together_whatever_their_dates() -> None:
    hours = [
        dataclasses.replace(staged_file(start, 9, window=0, dates=(start,)), until=9) for start in (0, 3, 6)
    ]
    assert _plan(hours, limits=LoadLimits(time_partitions=1)) == hours


def test_a_file_of_more_dates_than_it_lists_is_loaded_alone() -> None:
    files = [staged_file(0, 5), staged_file(5, 9, dates=()), staged_file(9, 12)]
    assert _plan(files) == files[:1]
    assert _plan(files[1:]) == files[1:2]


def test_a_file_that_a_mark_cuts_in_two_is_never_loaded() -> None:
    with pytest.raises(StateError, match="below and above"):
        _plan([staged_file(3, 9)], _loaded(FRESH, [staged_file(0, 5)]))


def test_files_that_a_reset_gave_up_are_not_candidates() -> None:
    given_up, kept = staged_file(0, 5), staged_file(0, 5, epoch=2, attempt="b")
    batch = plan_batch(TABLE, FRESH, [given_up, kept], UNLIMITED, frozenset({given_up.path}))
    assert batch is not None
    assert batch.files == (kept,)


_files = st.lists(
    st.builds(
        lambda p, e, w, s, t: staged_file(
            w * 10, w * 10 + 10, partition=p, epoch=e, schema_id=s, oldest_ms=t, attempt=f"{e}{w}"
        ),
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(0, 5),
        st.integers(1, 2),
        st.integers(0, 50),
    ),
    max_size=25,
    unique_by=lambda f: f.path,
)


@given(_files, st.integers(1, 4))
def test_loading_batch_after_batch_loads_everything_once_and_in_order(
    files: list[StagedFile], most: int
) -> None:
    state, loaded = FRESH, list[StagedFile]()
    while batch := plan_batch(TABLE, state, files, LoadLimits(files=most)):
        assert len({(f.name.schema_id, f.fingerprint) for f in batch.files}) == 1
        loaded.extend(batch.files)
        state = table_state.record_success(table_state.begin_job(state, batch.files, "p", "l"), batch.rows)
    assert sorted(f.path for f in loaded) == sorted(f.path for f in files)
    by_key: dict[str, list[int]] = {}
    for file in loaded:
        by_key.setdefault(table_state.mark_key(file), []).append(file.name.first_offset)
    assert all(firsts == sorted(firsts) for firsts in by_key.values())
