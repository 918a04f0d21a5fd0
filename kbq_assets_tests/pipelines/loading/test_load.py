"""A load puts every committed file into its table once, whatever happens to its calls."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbq_assets.core.extraction.pruning import BacklogChunk, plan_pruning
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.loading.table_state import Parked, TableState
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference, backlog_path, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.loading.load import plan
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import TRANSIENT, WarehouseView
from kbq_assets_tests.pipelines.bench import TOPIC, TP, A, B, Bench
from kbq_assets_tests.pipelines.warehouse_bench import DuckDbBench


def _table(bench: Bench, table: TableReference = A) -> TableState:
    return state.read(bench.store, TableState, table_state_path(table)).value


def _staged(*schema_ids: int, **options: object) -> Bench:
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.produce(*schema_ids)
    bench.extract()
    return bench


def test_rows_reach_their_tables_and_the_files_are_deleted() -> None:
    bench = _staged(1, 3, 1)
    report = bench.load()
    assert (report.rows, bench.offsets(A), bench.offsets(B)) == (3, [0, 2], [1])
    assert bench.paths("staging/") == []
    assert bench.load().rows == 0


def test_the_plan_is_what_the_load_does_and_changes_nothing() -> None:
    bench = _staged(1, 3, 1)
    before = dict(bench.store.objects)
    assert [(b.table, b.rows) for b in plan(bench.store).batches] == [(A, 2), (B, 1)]
    assert bench.store.objects == before
    bench.load()
    assert plan(bench.store).batches == ()


def test_a_table_that_would_drop_rows_is_not_loaded_until_it_keeps_them() -> None:
    bench = _staged(1)
    bench.load()
    bench.warehouse.stored[A].partition_expiry_ms = 30 * 86_400_000
    bench.produce(1, 3)
    bench.extract()
    reports = {report.table: report for report in bench.load().tables}
    assert (reports[A].state, bench.offsets(A), bench.offsets(B)) == ("parked", [0], [2])
    assert "partition_expiration_days=NULL" in reports[A].message
    bench.warehouse.stored[A].partition_expiry_ms = 0
    operate.propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1]


def test_a_new_nullable_column_is_added_before_the_load() -> None:
    bench = _staged(1, 2)
    bench.load()
    columns = {c.name: c.mode for c in bench.warehouse.columns(A) or ()}
    assert columns["y"] == "NULLABLE"
    assert bench.offsets(A) == [0, 1]


def test_a_contradicting_schema_parks_its_table_alone_and_names_both_types() -> None:
    bench = _staged(1, 3)
    bench.load()
    bench.produce(4, 3)
    bench.extract()
    report = {t.table: t for t in bench.load().tables}
    assert (report[A].state, report[B].rows) == ("parked", 1)
    assert "INT64" in report[A].message
    assert "STRING" in report[A].message


@pytest.mark.parametrize(
    "outcome", [Outcome.LOST_REPLY, Outcome.LATE, Outcome.OWN_RETRY, Outcome.UNAVAILABLE]
)
@pytest.mark.parametrize("operation", ["insert_job", "get_job", "create_table"])
def test_a_call_that_fails_loads_once(operation: str, outcome: Outcome) -> None:
    bench = _staged(1, 1)
    bench.faults = Script(operation, outcome=outcome)
    bench.load()
    while bench.warehouse.late:
        bench.warehouse.deliver_late()
    bench.faults = lambda call: Outcome.OK
    bench.load()
    assert bench.offsets(A) == [0, 1]


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE])
@pytest.mark.parametrize(
    ("operation", "target"),
    [
        ("create", "tables/_tables"),
        ("create", "tables/d"),
        ("swap", "tables/_tables"),
        ("swap", "tables/d"),
        ("insert_job", ""),
        ("delete", "staging/"),
    ],
)
def test_a_crash_at_any_write_loads_once(operation: str, target: str, outcome: Outcome) -> None:
    bench = _staged(1, 1)
    bench.faults = Script(operation, target, outcome)
    with pytest.raises(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    bench.load()
    for fake in (bench.warehouse, bench.store):
        while fake.late:
            fake.deliver_late()
    bench.load()
    assert bench.offsets(A) == [0, 1]
    assert bench.paths("staging/") == [] or operation == "delete"


def test_a_second_loader_is_fenced_by_the_swap() -> None:
    bench = _staged(1, 1)
    bench.faults = Script("swap", "tables/d.A", before=lambda: _load_aside(bench))
    bench.load()
    assert bench.offsets(A) == [0, 1]


def _load_aside(bench: Bench) -> None:
    bench.faults = lambda call: Outcome.OK
    bench.load()


def test_a_run_may_end_with_jobs_in_flight_and_the_next_adopts_them() -> None:
    bench = _staged(1, auto_run=False)
    assert [t.state for t in bench.load(wait_seconds=0.0).tables] == ["waiting"]
    bench.warehouse.step()
    assert bench.load().rows == 1
    assert len(bench.warehouse.jobs) == 1


def test_a_transient_job_error_is_retried_under_a_new_id() -> None:
    bench = _staged(1)
    errors: list[JobError | None] = [TRANSIENT, None]
    bench.warehouse.job_errors = lambda job: errors.pop(0)
    assert bench.load().rows == 1
    assert [key[2].rsplit("-", 1)[1] for key in bench.warehouse.jobs] == ["1", "2"]


def _dropped_under_its_job(bench: Bench) -> None:
    """Somebody drops the table while its job runs."""
    bench.load(wait_seconds=0.0)
    del bench.warehouse.stored[A]
    (job_id,) = bench.warehouse.pending
    bench.warehouse.run_pending(job_id, JobError("notFound", "no such table", transient=False))


def test_a_first_load_whose_table_was_dropped_under_its_job_creates_the_table_again() -> None:
    bench = _staged(1, auto_run=False)
    _dropped_under_its_job(bench)
    bench.warehouse.auto_run = True
    assert (bench.load().rows, bench.offsets(A)) == (1, [0])


def test_a_table_with_rows_that_was_dropped_under_its_job_is_parked_as_gone() -> None:
    bench = _staged(1)
    bench.load()
    bench.produce(1)
    bench.extract()
    bench.warehouse.auto_run = False
    _dropped_under_its_job(bench)
    [report] = bench.load(wait_seconds=0.0).tables
    assert (report.state, _table(bench).in_flight) == ("parked", None)
    parked = _table(bench).parked
    assert parked is not None and parked.reason == ParkReason.TABLE_GONE


def _two_files() -> tuple[Bench, str]:
    bench = Bench()
    bench.produce(1, 1)
    bench.extract()
    bench.produce(1)
    bench.extract()
    return bench, bench.commit().partitions[0].windows[0].files[0].path


def test_a_bad_file_is_quarantined_and_the_rest_is_loaded() -> None:
    bench, bad = _two_files()
    bench.warehouse.bad_paths.add(bad)
    [report] = bench.load().tables
    assert (report.rows, report.quarantined, bench.offsets(A)) == (1, 1, [2])
    assert bench.paths("quarantine/") == [bad.replace("staging/", "quarantine/")]
    [quarantined] = _table(bench).quarantined
    assert (quarantined.file.path, "bad files" in quarantined.error) == (bad, True)
    assert bench.paths("staging/") == []
    assert bench.reconcile().problems == (f"{TOPIC}[0]: d.A: 2 rows in quarantine and in no table",)


def test_a_table_whose_errors_no_file_explains_is_parked_and_resumes() -> None:
    bench = _staged(1, 3)
    broken = JobError("invalid", "the table is broken", transient=False)
    bench.warehouse.job_errors = lambda job: broken if job.table == A else None
    report = {t.table: t for t in bench.load().tables}
    assert (report[A].state, report[B].rows) == ("parked", 1)
    assert "the table is broken" in report[A].message
    bench.warehouse.job_errors = None
    bench.load()
    assert bench.offsets(A) == []
    operate.propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0]


def test_a_parked_tables_files_wait_in_its_backlog_and_other_tables_continue() -> None:
    bench = _staged(1, 3)
    bench.load()
    operate.propose_park_table(bench.store, A).apply()
    bench.produce(1, 3, 1)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    assert len(bench.paths("backlog/d.A/")) == 1
    assert bench.offsets(B) == [1, 3]
    operate.propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 2, 4, 5]
    assert bench.paths("backlog/") == []


def test_a_file_that_was_committed_and_moved_after_a_view_read_its_commit_waits_for_the_next_view() -> None:
    """W5: another warehouse is ahead, so files move while their table is not parked."""
    bench = _staged(1)
    bench.load()
    bench.produce(1)
    bench.extract()

    def publish_and_move() -> None:
        bench.faults = lambda call: Outcome.OK
        for _ in range(2):
            bench.produce(1)
            bench.extract()
        current = state.read(bench.store, Commit, f"commits/{TP.topic}.json")
        *kept, last = current.value.partitions[0].windows
        chunk = backlog_path(A, current.value.epoch, TP, last.first)
        state.create(bench.store, chunk, BacklogChunk(last.files))
        partition = dataclasses.replace(current.value.partitions[0], windows=tuple(kept))
        state.swap(bench.store, current, current.value.with_partition(0, partition))

    bench.faults = Script("list", "backlog/", before=publish_and_move)
    bench.load()
    assert bench.offsets(A) == [0, 1, 2, 3]
    assert bench.paths("backlog/") == []


@pytest.mark.parametrize("prefix", ["tables/", "commits/", "backlog/"])
def test_a_file_moved_between_the_loaders_reads_is_loaded_before_its_followers(prefix: str) -> None:
    """L1: commits first, then the backlog."""
    bench, _ = _two_files()

    def move() -> None:
        bench.faults = lambda call: Outcome.OK
        current = state.read(bench.store, type(bench.commit()), f"commits/{TP.topic}.json")
        planned = plan_pruning(
            current.value, WarehouseStates({"": {A: dataclasses.replace(TableState("u"), parked=_PARKED)}})
        )
        path, chunk = next(iter(planned.chunks.items()))
        state.create(bench.store, path, chunk)
        kept = dataclasses.replace(
            current.value.partitions[0], windows=current.value.partitions[0].windows[1:]
        )
        state.swap(bench.store, current, current.value.with_partition(0, kept))

    bench.faults = Script("list", prefix, nth=2, before=move)  # the first view is of a table without a state
    bench.load()
    assert bench.faults(Call("", "", "", False)) is Outcome.OK  # the move was made
    assert bench.offsets(A) == [0, 1, 2]


_PARKED = Parked("operator", "x")


def test_set_aside_files_are_in_the_backlog_before_they_leave_the_commit() -> None:
    """E7: a crash between the two writes loses nothing."""
    for outcome in (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER):
        bench = _staged(1, 1)
        bench.load(wait_seconds=0.0)
        operate.propose_park_table(bench.store, A).apply()
        bench.produce(1)
        bench.extract()
        bench.faults = Script("create", "backlog/", outcome)
        with pytest.raises(Crash):
            bench.extract()
        bench.faults = lambda call: Outcome.OK
        operate.propose_resume_table(bench.store, A).apply()
        bench.load()
        assert bench.offsets(A) == [0, 1, 2]


def test_a_state_that_vanished_stops_its_table_alone() -> None:
    bench = _staged(1, 3)
    bench.load()
    bench.store.delete(table_state_path(A))
    bench.produce(1, 3)
    bench.extract()
    report = {t.table: t for t in bench.load().tables}
    assert (report[A].state, report[B].rows) == ("failed", 1)
    assert "registered but missing" in report[A].message
    assert bench.offsets(A) == [0]


def test_other_output_rows_are_loaded_once_and_recorded() -> None:
    bench = _staged(1, auto_run=False)
    bench.load(wait_seconds=0.0)
    bench.warehouse.step()
    [job] = bench.warehouse.jobs.values()
    job.status = dataclasses.replace(job.status, output_rows=7)
    bench.load()
    [mismatch] = _table(bench).mismatches
    assert (mismatch.expected, mismatch.actual) == (1, 7)
    assert bench.load().rows == 0


def test_a_job_id_that_loads_other_files_parks_the_table() -> None:
    bench = _staged(1, auto_run=False)
    bench.load(wait_seconds=0.0)
    [job] = bench.warehouse.jobs.values()
    job.status = dataclasses.replace(job.status, state="DONE", source_uris=("memory:///elsewhere",))
    [report] = bench.load().tables
    assert (report.state, "other files" in report.message) == ("parked", True)


def _planned_long_ago(known_days: int) -> Bench:
    """A job that was planned 31 days ago, by the store's clock, and never submitted."""
    bench = _staged(1)
    bench.warehouse.limits = LoadLimits(known_days=known_days)
    bench.faults = Script("insert_job", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    bench.store.time_ms += 31 * 24 * 3_600_000
    return bench


def test_a_job_too_old_to_be_known_is_parked_and_not_submitted() -> None:
    bench = _planned_long_ago(30)
    [report] = bench.load().tables
    assert (report.state, bench.warehouse.jobs) == ("parked", {})


def test_a_clock_that_jumps_parks_nothing_where_the_warehouse_forgets_no_job() -> None:
    bench = _planned_long_ago(0)
    [report] = bench.load().tables
    assert (report.state, bench.offsets(A)) == ("idle", [0])


@pytest.mark.parametrize("days", [30, -30])
def test_a_clock_that_jumps_while_a_table_is_parked_delays_no_retry(days: int) -> None:
    bench = _staged(1)
    bench.warehouse.job_errors = lambda job: JobError("invalid", "no", transient=False)
    bench.load()
    bench.warehouse.job_errors = None
    bench.store.time_ms += days * 24 * 3_600_000
    [report] = bench.load().tables
    assert (report.state, bench.offsets(A)) == ("idle", [0])


def test_a_batch_planned_before_a_reset_gave_its_files_up_is_planned_again() -> None:
    bench = _staged(1, auto_run=False)
    bench.load(wait_seconds=0.0)
    operate.propose_reset(bench.store, bench.kafka, TP.topic, give_up_pending=True).apply()
    bench.store.delete_many(bench.paths("staging/"))
    bench.extract()
    while bench.warehouse.step():
        bench.load(wait_seconds=0.0)
    assert [row.epoch for row in bench.warehouse.rows(A)] == [2]


def test_files_lost_without_a_reset_park_the_table() -> None:
    bench = _staged(1)
    bench.store.delete_many(bench.paths("staging/"))
    [report] = bench.load().tables
    assert (report.state, "gone" in report.message) == ("parked", True)


def test_a_turn_of_a_table_is_one_session_of_the_warehouse(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    @contextmanager
    def session() -> Iterator[None]:
        steps.append("open")
        yield
        steps.append("close")

    insert_job = WarehouseView.insert_job

    def inserting(view: WarehouseView, job: LoadJob) -> None:
        steps.append("job")
        insert_job(view, job)

    monkeypatch.setattr(WarehouseView, "session", staticmethod(session))
    monkeypatch.setattr(WarehouseView, "insert_job", inserting)
    bench = _staged(1)
    assert bench.load().rows == 1
    assert [steps[0], *steps[-1:]] == ["open", "close"]
    assert steps[steps.index("job") - 1] == "open", "a job is inserted in a session"


def test_a_table_that_the_warehouse_cannot_tell_from_another_is_parked_and_the_other_goes_on(
    tmp_path: Path,
) -> None:
    """DuckDB ignores case. A failure of each run would show nowhere between two runs."""
    bench = DuckDbBench(tmp_path, {"dataset": "d", "route": "record_name"}, 1)
    for schema_id, name in (77, "Xy"), (78, "xY"):
        fields = [{"name": "a", "type": "int"}]
        bench.registry.schemas[schema_id] = json.dumps({"type": "record", "name": name, "fields": fields})
        bench.kafka.produce(TP, struct.pack(">bI", 0, schema_id) + b"\x02")
    first, second = bench.cycle().tables
    assert (str(first.table), first.state, first.rows) == ("d.Xy", "idle", 1)
    assert (str(second.table), second.state) == ("d.xY", "parked")
    assert "wrong_options: d.xY and d.Xy differ only in case" in second.message
