"""Every way a job can end, crossed with a crash at every kind of call: fresh runs converge, and nothing is lost,
doubled, or deleted before it is recorded as loaded (L3 to L5)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.adopt import propose as propose_adoption
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import TRANSIENT
from kbq_assets_tests.pipelines.bench import TOPIC, A, B, Bench, value
from kbq_assets_tests.sizes import thinned

HOURS_7 = 7 * 3_600_000
DAY_MS = 24 * 3_600_000
NO_FAULT = Script("")
CRASHES = (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE)
POINTS = (
    ("swap", "tables/_tables", 1),
    ("create", "tables/d.A", 1),
    ("create_table", "d.A", 1),
    ("swap", "tables/d.A", 1),
    ("swap", "tables/d.A", 2),
    ("swap", "tables/d.A", 3),
    ("get_job", "", 1),
    ("get_job", "", 3),
    ("insert_job", "", 1),
    ("insert_job", "", 3),
    ("burn_job", "", 1),
    ("cancel_job", "", 1),
    ("probe", "", 2),
    ("copy", "quarantine/", 1),
    ("delete", "staging/", 1),
    ("delete", "staging/", 2),
    ("delete", "done/", 1),
)


@dataclass(frozen=True)
class Case:
    """A way to end: what happens to the world before the run, to calls within it, and what must be true in the end."""

    name: str
    arrange: Callable[[Bench], object] = lambda bench: None
    fault: Outcome = Outcome.OK
    rows: tuple[int, ...] = (0, 1, 3)
    check: Callable[[TableState], bool] = lambda table: True


def _in_flight(bench: Bench) -> None:
    """Jobs are submitted and do not run."""
    bench.warehouse.auto_run = False
    bench.load(wait_seconds=0.0)
    bench.warehouse.auto_run = True


def _stuck(bench: Bench) -> None:
    _in_flight(bench)
    bench.store.time_ms += HOURS_7


def _dropped(bench: Bench) -> None:
    _in_flight(bench)
    del bench.warehouse.stored[A]


def _miscounted(bench: Bench) -> None:
    _in_flight(bench)
    while bench.warehouse.step():
        pass
    job = next(job for job in bench.warehouse.jobs.values() if job.load and job.load.table == A)
    job.status = dataclasses.replace(job.status, output_rows=7)


def _foreign(bench: Bench) -> None:
    _in_flight(bench)
    key, job = next((k, j) for k, j in bench.warehouse.jobs.items() if j.load and j.load.table == A)
    bench.warehouse.jobs[key].status = dataclasses.replace(
        job.status, state="DONE", source_uris=("memory:///else",)
    )


def _failing(error: JobError, times: int) -> Callable[[Bench], None]:
    def arrange(bench: Bench) -> None:
        left = [error] * times
        bench.warehouse.job_errors = lambda job: left.pop() if left and job.table == A else None

    return arrange


def _bad(*which: int) -> Callable[[Bench], None]:
    def arrange(bench: Bench) -> None:
        files = [file for file in bench.commit().files if file.table == A]
        bench.warehouse.bad_paths |= {files[n].path for n in which}

    return arrange


def _hide(bench: Bench) -> None:
    bench.warehouse.hide_jobs = 1


def _refuse(bench: Bench) -> None:
    bench.warehouse.refuse_jobs = 1


BROKEN = JobError("invalid", "the table is broken", transient=False)
CASES = (
    Case("success"),
    Case("lost reply", fault=Outcome.LOST_REPLY),
    Case("late insert", fault=Outcome.LATE),
    Case("409, the same files", fault=Outcome.OWN_RETRY),
    Case("unavailable", fault=Outcome.UNAVAILABLE),
    Case("404 after insert", _hide),
    Case("adopted from a dead run", _in_flight),
    Case("409, other files", _foreign, rows=(), check=lambda t: t.parked is not None),
    Case("refused", _refuse),
    Case("transient error", _failing(TRANSIENT, 2)),
    Case("permanent error that passes", _failing(BROKEN, 1)),
    Case("permanent error", _failing(BROKEN, 100), rows=(), check=lambda t: t.parked is not None),
    Case("a bad file", _bad(0), rows=(3,), check=lambda t: len(t.quarantined) == 1),
    Case("all files bad", _bad(0, 1), rows=(), check=lambda t: t.parked is not None),
    Case("stuck", _stuck),
    Case("its table is dropped", _dropped),
    Case("other output rows", _miscounted, check=lambda t: [m.actual for m in t.mismatches] == [7]),
)


@functools.cache
def _staged() -> FaultyMemoryStore:
    """Two files of A (offsets 0 and 1, 3), one of B (2)."""
    bench = Bench()
    bench.produce(1, 1, 3)
    bench.extract()
    bench.produce(1)
    bench.extract()
    return bench.store


def _world(case: Case) -> Bench:
    bench = Bench()
    bench.store.restore(_staged())
    case.arrange(bench)
    return bench


def _table(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(A)).value


def _guarded(bench: Bench, *scripts: Callable[[Call], Outcome]) -> Callable[[Call], Outcome]:
    """The first script that has something to say; no staged file may be deleted before its table covers it."""
    staged = {file.path: file for file in bench.commit().files}

    def ask(call: Call) -> Outcome:
        if call.operation == "delete" and call.target.startswith("staging/"):
            assert _is_recorded(bench, staged[call.target]), f"{call.target} is deleted before it is loaded"
        said = [script(call) for script in scripts]
        return next((outcome for outcome in said if outcome is not Outcome.OK), Outcome.OK)

    return ask


def _is_recorded(bench: Bench, file: StagedFile) -> bool:
    table = StagedFileName.parse(file.path).table
    found = state.find(bench.store, TableState, table_state_path(table))
    return found is not None and found.value.is_loaded(file)


def _converge(bench: Bench) -> None:
    bench.faults = _guarded(bench, NO_FAULT)
    for _ in range(4):
        bench.load()
        for fake in (bench.warehouse, bench.store):
            while fake.late:
                fake.deliver_late()
        while bench.warehouse.step():
            pass


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("point", thinned(POINTS), ids=lambda point: "-".join(map(str, point)))
def test_a_crash_changes_no_outcome(case: Case, point: tuple[str, str, int]) -> None:
    for crash in CRASHES:
        bench = _world(case)
        operation, target, nth = point
        fault = Script("insert_job", outcome=case.fault)
        bench.faults = _guarded(bench, fault, Script(operation, target, crash, nth))
        with contextlib.suppress(Crash):
            bench.load()
        _converge(bench)
        assert sorted(bench.offsets(A)) == sorted(case.rows)
        assert bench.offsets(B) == [2]
        assert case.check(_table(bench))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_outcome_without_a_crash(case: Case) -> None:
    bench = _world(case)
    bench.faults = _guarded(bench, Script("insert_job", outcome=case.fault))
    bench.load()
    _converge(bench)
    assert sorted(bench.offsets(A)) == sorted(case.rows)
    assert case.check(_table(bench))
    assert bench.warehouse.duplicates() == {}


@pytest.mark.parametrize("case", [c for c in CASES if c.rows == ()], ids=lambda case: case.name)
def test_what_was_not_loaded_is_still_there(case: Case) -> None:
    bench = _world(case)
    files = [file.path for file in bench.commit().files if file.table == A]
    bench.load()
    _converge(bench)
    quarantined = {q.file.path for q in _table(bench).quarantined}
    for path in files:
        bench.store.get(path.replace("staging/", "quarantine/") if path in quarantined else path)


def test_a_table_parked_for_its_errors_continues_when_they_are_fixed() -> None:
    bench = _world(next(c for c in CASES if c.name == "permanent error"))
    bench.load()
    bench.warehouse.job_errors = None
    operate.propose_resume_table(bench.store, A).apply()
    _converge(bench)
    assert sorted(bench.offsets(A)) == [0, 1, 3]


def test_a_late_insert_of_an_id_that_was_given_up_loads_nothing() -> None:
    """L3: a refused insert may have been a second try of a client whose first is still on its way."""
    bench = _world(CASES[0])
    bench.faults = Script("insert_job", outcome=Outcome.LATE)
    bench.warehouse.refuse_jobs = 1
    bench.load()
    _converge(bench)
    jobs: list[LoadJob] = [job.load for job in bench.warehouse.jobs.values() if job.load]
    assert sorted(bench.offsets(A)) == [0, 1, 3]
    assert len(jobs) == 2


def test_a_table_whose_jobs_are_refused_fails_until_a_person_has_helped() -> None:
    bench = _world(CASES[0])
    bench.warehouse.refuse_jobs = 1_000
    for _ in range(2):
        [report] = [each for each in bench.load().tables if each.table == A]
        assert (report.state, report.transient) == ("failed", False)
        assert "see the warehouse" in report.message
    bench.warehouse.refuse_jobs = 0
    _converge(bench)
    assert sorted(bench.offsets(A)) == [0, 1, 3]


def test_a_table_that_is_dropped_under_its_job_is_gone() -> None:
    bench = Bench()
    for _ in range(2):
        bench.produce(1)
        bench.extract()
        bench.load()
    bench.produce(1)
    bench.extract()
    _dropped(bench)
    _converge(bench)
    parked = _table(bench).parked
    assert parked is not None
    assert parked.reason == ParkReason.TABLE_GONE
    propose_adoption(bench.store, bench.warehouse, A).apply()
    _converge(bench)
    assert bench.offsets(A) == [2]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_table_that_is_created_anew_under_its_job_in_flight_is_gone_too(crash: Outcome) -> None:
    """With the job's rows, the new table would hide that earlier ones are gone."""
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    bench.faults = Script("insert_job", outcome=crash)
    with contextlib.suppress(Crash):
        bench.load()
    columns = bench.warehouse.stored.pop(A).columns
    bench.warehouse.create_table(A, columns, TableOptions())
    _converge(bench)
    bench.produce(1)
    bench.extract()
    _converge(bench)
    parked = _table(bench).parked
    assert parked is not None
    assert parked.reason == ParkReason.TABLE_GONE
    propose_adoption(bench.store, bench.warehouse, A).apply()
    _converge(bench)
    assert bench.offsets(A)[-1:] == [2] and bench.warehouse.duplicates() == {}


def test_a_window_with_more_dates_than_a_job_may_change_is_loaded_in_parts() -> None:
    """The warehouse refuses the window's files together, and takes each of them alone."""
    bench = Bench(window=WindowLimits(file_bytes=1))
    for day in range(4):
        bench.kafka.produce(TopicPartition(TOPIC, 0), value(1), key=b"k", timestamp=day * DAY_MS)
    bench.extract()
    files = list(bench.commit().files)
    assert len(files) == 2 and len({file.window for file in files}) == 1
    days = {bench.store.uri(file.path): set(file.dates) for file in files}
    bench.warehouse.limits = dataclasses.replace(bench.warehouse.limits, time_partitions=2)
    bench.warehouse.job_errors = lambda job: (
        JobError("invalid", "Too many partitions produced by query", transient=False)
        if len(set[int]().union(*(days[uri] for uri in job.source_uris))) > 2
        else None
    )
    bench.load()
    assert _table(bench).parked is None
    assert bench.offsets(A) == [0, 1, 2, 3]
