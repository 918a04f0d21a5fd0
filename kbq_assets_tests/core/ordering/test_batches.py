"""A batch of an ordered table is a prefix of whole windows per partition, and a failed one comes back unchanged."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import StateError
from kbq_assets.core.loading.batches import LoadLimits, SchemaKey
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.loading.table_state import (
    QuarantinedFile,
    TableState,
    begin_job,
    mark_key,
    record_success,
)
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.batches import MOST_RESTAGED_BYTES, next_batch
from kbq_assets.core.ordering.hour_order import Release
from kbq_assets.core.ordering.table_order import OrderRule, TableOrder
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file

TABLE = TableReference("d", "t")
ORDERED = TableState("u", order=TableOrder(OrderRule("offset")))
UNLIMITED = LoadLimits()
MIXED = LoadLimits(mixes_schemas=True)
#: Two windows of one schema, then one of both, then one of the other.
A = staged_file(0, 10)
B = staged_file(10, 20)
C = staged_file(20, 25)
C2 = staged_file(25, 30, schema_id=2, window=20)
D = staged_file(30, 40, schema_id=2)


def planned(
    *files: StagedFile,
    state: TableState = ORDERED,
    limits: LoadLimits = UNLIMITED,
    given_up: frozenset[str] = frozenset(),
    blocked: tuple[str, ...] = (),
) -> list[StagedFile]:
    batch = next_batch(TABLE, state, files, limits, given_up, blocked)
    return [] if batch is None else list(batch.files)


@pytest.mark.parametrize(
    ("files", "limits", "batch"),
    [
        ([], LoadLimits(), []),
        ([D, C2, C, B, A], LoadLimits(), [A, B]),
        ([C, C2, D], LoadLimits(), [C, C2]),
        ([D], LoadLimits(), [D]),
        ([A, B, C, C2, D], MIXED, [A, B, C, C2, D]),
        ([A, B], LoadLimits(files=1), [A]),
        ([C, C2, D], LoadLimits(files=1), [C, C2]),
        ([A, B, C, C2], dataclasses.replace(MIXED, bytes=250), [A, B]),
    ],
    ids=[
        "nothing",
        "windows of one schema",
        "a window of two schemas alone",
        "the last",
        "all schemas at once",
        "as many files as a job takes",
        "a window is never cut",
        "as many bytes as a job takes",
    ],
)
def test_a_batch_takes_the_oldest_windows_whole(
    files: list[StagedFile], limits: LoadLimits, batch: list[StagedFile]
) -> None:
    assert planned(*files, limits=limits) == batch


def test_a_batch_names_the_schema_of_its_oldest_window() -> None:
    batch = next_batch(TABLE, ORDERED, [D, B], LoadLimits())
    assert batch is not None
    assert batch.schema == SchemaKey(1, "f1")


@pytest.mark.parametrize(
    ("size", "limits", "windows"),
    [
        (MOST_RESTAGED_BYTES // 2, LoadLimits(), 1),
        (MOST_RESTAGED_BYTES // 4, LoadLimits(), 2),
        (MOST_RESTAGED_BYTES // 2, MIXED, 2),
        (MOST_RESTAGED_BYTES // 4, LoadLimits(bytes=MOST_RESTAGED_BYTES // 2), 1),
    ],
    ids=["too much to stage again", "just enough", "nothing is staged again", "a smaller job"],
)
def test_windows_of_several_schemas_are_staged_again_within_a_bound(
    size: int, limits: LoadLimits, windows: int
) -> None:
    files = [
        staged_file(first + 5 * n, first + 5 * n + 5, schema_id=n + 1, window=first, size=size)
        for first in (0, 10)
        for n in (0, 1)
    ]
    assert planned(*files, limits=limits) == files[: 2 * windows]


def test_the_bound_of_staging_again_does_not_touch_windows_of_one_schema() -> None:
    files = [staged_file(n, n + 1, size=MOST_RESTAGED_BYTES) for n in range(3)]
    assert planned(*files) == files


def test_the_partition_with_the_oldest_window_goes_first() -> None:
    other = staged_file(0, 10, partition=1, schema_id=2, oldest_ms=5)
    assert planned(B, other) == [other]
    assert planned(A, other) == [A]


def test_files_that_are_loaded_given_up_or_of_a_blocked_topic_are_left_out() -> None:
    loaded = record_success(begin_job(ORDERED, (A,), "p", "l"), 10)
    assert planned(A, B, state=loaded) == [B]
    assert planned(A, B, given_up=frozenset({A.path})) == [B]
    assert planned(A, blocked=("t",)) == []
    assert planned(A, staged_file(0, 9, topic="other"), blocked=("other",)) == [A]


def test_a_failed_batch_is_planned_again_without_the_windows_that_came_since() -> None:
    failed = transitions.fail_batch(ORDERED, ParkReason.BATCH_FAILED, "no", (A, B), 1)
    assert planned(A, B, staged_file(20, 30), state=failed, limits=MIXED) == [A, B]


def test_a_failed_batch_that_was_staged_again_is_still_the_same() -> None:
    failed = transitions.fail_batch(ORDERED, ParkReason.BATCH_FAILED, "no", (A,), 1)
    again = dataclasses.replace(staged_file(0, 10, attempt="b"), restaged=1)
    assert planned(A, again, B, state=failed) == [again]


def test_if_no_window_of_a_failed_batch_is_left_the_next_ones_follow() -> None:
    failed = transitions.fail_batch(ORDERED, ParkReason.BATCH_FAILED, "no", (A,), 1)
    assert planned(A, B, state=failed, given_up=frozenset({A.path})) == [B]


def test_files_from_quarantine_go_first_unless_their_topic_is_blocked() -> None:
    back = QuarantinedFile(A, "bad", retry=True)
    state = dataclasses.replace(ORDERED, quarantined=(back,), marks={mark_key(A): 10})
    batch = next_batch(TABLE, state, [A, B], LoadLimits())
    assert batch is not None
    assert (batch.files, batch.retried) == ((A,), True)
    assert planned(B, state=state, blocked=("t",)) == []
    other = staged_file(0, 9, topic="other")
    assert planned(B, other, state=state, blocked=("t",)) == [other]


def test_a_file_that_a_mark_cuts_in_two_stops_the_table() -> None:
    state = dataclasses.replace(ORDERED, marks={mark_key(A): 5})
    with pytest.raises(StateError, match=r"below and above its table's mark 5") as error:
        planned(A, state=state)
    assert "backup" in error.value.next_step
    assert planned(A, state=state, blocked=("t",)) == []


_WINDOWS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True)), max_size=8
)


@settings(max_examples=25)
@given(_WINDOWS, st.integers(1, 4), st.booleans())
def test_batch_after_batch_loads_each_partition_in_offset_order_whatever_the_schemas(
    windows: list[tuple[int, list[int]]], most: int, mixes: bool
) -> None:
    files = [
        staged_file(10 * n + i, 10 * n + 10, partition=p, schema_id=schema, window=10 * n)
        for n, (p, schemas) in enumerate(windows)
        for i, schema in enumerate(schemas)
    ]
    state, limits = ORDERED, LoadLimits(files=most, mixes_schemas=mixes)
    loaded: dict[int, list[int]] = {0: [], 1: []}
    while batch := next_batch(TABLE, state, reversed(files), limits):
        for file in batch.files:
            loaded[file.name.topic_partition.partition].append(file.name.first_offset)
        shown = {(f.name.topic_partition, f.window) for f in batch.files}
        whole = {f.path for f in files if (f.name.topic_partition, f.window) in shown}
        assert {f.path for f in batch.files} == whole
        state = record_success(begin_job(state, batch.files, "p", "l"), batch.rows)
    for partition, firsts in loaded.items():
        assert firsts == [f.name.first_offset for f in files if f.name.topic_partition.partition == partition]


def test_a_table_without_an_order_loads_one_schema_after_the_other() -> None:
    assert planned(A, C, C2, D, state=TableState("u")) == [A, C]


def test_a_table_by_hour_loads_the_windows_that_are_released() -> None:
    state = TableState("u", order=TableOrder(OrderRule("hour")))
    timed = [
        dataclasses.replace(file, events=BusinessTimes({hour: 1}, hour * HOUR_MS))
        for file, hour in ((A, 10), (B, 11))
    ]

    def released(until: int) -> list[StagedFile]:
        batch = next_batch(TABLE, state, timed, UNLIMITED, release=Release(until, 100))
        return [] if batch is None else list(batch.files)

    assert [released(until) for until in (9, 10, 11)] == [[], timed[:1], timed[:1]]
