"""Quarantine accepts only a few files, and returns them without duplicating a row (PROTOCOL L5, L13)."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest

from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import quarantine_path, table_state_path
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.quarantine import find_quarantined, propose_drop, propose_retry
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import A, Bench


def bench_of(files: int, *bad: int, per_job: int = 100) -> Bench:
    """Files of A with a row each, offsets 0 and on; the warehouse refuses those that are ``bad``."""
    bench = Bench()
    bench.warehouse.limits = LoadLimits(files=per_job)
    for _ in range(files):
        bench.produce(1)
        bench.extract()
    paths = [file.path for file in bench.commit().files]
    bench.warehouse.bad_paths |= {paths[number] for number in bad}
    return bench


def table(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(A)).value


def parked(bench: Bench) -> str:
    found = table(bench).parked
    return found.error if found else ""


@pytest.mark.parametrize(
    ("files", "bad", "why"),
    [
        (2, (0, 1), "2 of 2 files are refused"),
        (5, (0, 2, 4), "3 of 5 files are refused"),
        (4, (0, 2), ""),
        (1, (0,), ""),
        (3, (1,), ""),
    ],
)
def test_a_batch_that_loses_over_half_parks_and_one_that_loses_few_does_not(
    files: int, bad: tuple[int, ...], why: str
) -> None:
    bench = bench_of(files, *bad)
    bench.load()
    assert why in parked(bench)
    assert bool(parked(bench)) == bool(why)
    assert len(table(bench).quarantined) == (0 if why else len(bad))
    assert len(bench.offsets(A)) == (0 if why else files - len(bad))


def test_the_third_batch_in_a_row_that_loses_all_its_files_parks() -> None:
    bench = bench_of(5, 0, 1, 2, per_job=1)
    bench.load()
    assert "3 batches in a row lost all of their files" in parked(bench)
    assert (len(table(bench).quarantined), bench.offsets(A)) == (2, [])


def test_a_loaded_file_between_begins_the_count_anew() -> None:
    bench = bench_of(5, 0, 1, 3, 4, per_job=1)
    bench.load()
    assert parked(bench) == ""
    assert (len(table(bench).quarantined), bench.offsets(A)) == (4, [2])


def test_a_table_whose_files_are_all_bad_continues_by_an_operators_word() -> None:
    bench = bench_of(3, 0, 1, 2)
    bench.load()
    operate.propose_resume_table(bench.store, A).apply()
    bench.load()
    assert "3 of 3 files are refused" in parked(bench)
    operate.propose_resume_table(bench.store, A, to_quarantine=True).apply()
    bench.load()
    assert (parked(bench), len(table(bench).quarantined)) == ("", 3)
    bench.produce(1)
    bench.extract()
    bench.load()
    assert (bench.offsets(A), table(bench).accepted.loss) == ([3], False)


POINTS = (
    ("swap", "tables/d.A", 1),
    ("copy", "staging/", 1),
    ("swap", "tables/d.A", 2),
    ("insert_job", "", 1),
    ("swap", "tables/d.A", 3),
    ("delete", "staging/", 1),
    ("delete", "quarantine/", 1),
)


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_a_retried_file_is_loaded_once_whatever_dies(point: tuple[str, str, int], outcome: Outcome) -> None:
    bench = bench_of(5, 1, 3)
    bench.load()
    bench.warehouse.bad_paths.clear()
    propose_retry(bench.store, find_quarantined(bench.store)).apply()
    bench.produce(1)
    bench.extract()
    operation, target, nth = point
    bench.faults = Script(operation, target, outcome, nth)
    with contextlib.suppress(Crash):
        bench.load()
    bench.faults = Script("")
    for _ in range(3):
        clean(bench.store)
        bench.load()
        for fake in (bench.store, bench.warehouse):
            while fake.late:
                fake.deliver_late()
    assert (sorted(bench.offsets(A)), bench.warehouse.duplicates()) == ([0, 1, 2, 3, 4, 5], {})
    assert table(bench).quarantined == ()
    bench.extract()
    clean(bench.store)
    assert bench.paths("staging/") == bench.paths("quarantine/") == []
    assert bench.reconcile().is_whole


def test_a_retried_file_that_is_refused_again_stays_in_quarantine() -> None:
    bench = bench_of(3, 1)
    bench.load()
    [before] = find_quarantined(bench.store)
    propose_retry(bench.store, [before]).apply()
    bench.load()
    [bad] = table(bench).quarantined
    assert (bad.file, bad.retry, sorted(bench.offsets(A))) == (before.bad.file, False, [0, 2])
    assert bench.paths("quarantine/") == [quarantine_path(bad.file.path)]


def test_a_dropped_file_is_given_up_and_its_copy_deleted() -> None:
    bench = bench_of(3, 1)
    bench.load()
    propose_drop(bench.store, find_quarantined(bench.store)).apply()
    assert bench.paths("quarantine/") == []
    assert find_quarantined(bench.store) == []
    assert table(bench).new_quarantined == ()
    assert [bad.dropped for bad in table(bench).quarantined] == [True]


def test_a_copy_that_a_dead_process_left_is_deleted_by_the_next_clean_up() -> None:
    """It gave up the rows of two files, and died before it deleted both copies."""
    bench = bench_of(5, 1, 3)
    bench.load()
    clean(bench.store)
    copies = bench.paths("quarantine/")
    bench.faults = Script("delete", "quarantine/", Outcome.CRASH_AFTER)
    with pytest.raises(Crash):
        propose_drop(bench.store.view("operator"), find_quarantined(bench.store)).apply()
    assert (len(copies), len(bench.paths("quarantine/"))) == (2, 1)
    path = table_state_path(A)
    readable = bench.store.objects[path]
    bench.store.objects[path] = dataclasses.replace(readable, data=b"{")
    assert clean(bench.store).orphans == 0
    bench.store.objects[path] = readable
    assert clean(bench.store).orphans == 1
    assert bench.paths("quarantine/") == []


def test_a_file_that_a_job_loads_is_not_dropped() -> None:
    bench = bench_of(3, 1)
    bench.load()
    bench.warehouse.bad_paths.clear()
    propose_retry(bench.store, find_quarantined(bench.store)).apply()
    bench.warehouse.auto_run = False
    bench.load(wait_seconds=0.0)
    propose_drop(bench.store, find_quarantined(bench.store)).apply()
    while bench.warehouse.step():
        pass
    bench.load()
    assert (sorted(bench.offsets(A)), table(bench).quarantined) == ([0, 1, 2], ())


def test_what_an_operator_accepted_stays_accepted_when_another_file_comes_back() -> None:
    bench = bench_of(5, 1, 3)
    bench.load()
    operate.propose_resume_table(bench.store, A).apply()
    bench.warehouse.bad_paths.clear()
    first, second = find_quarantined(bench.store)
    propose_retry(bench.store, [first]).apply()
    bench.load()
    found = table(bench)
    assert ([bad.file for bad in found.quarantined], found.new_quarantined) == ([second.bad.file], ())
