"""One run over many tables: read once, jobs in parallel, and no table waits for another's job, quota or failure."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.job_recovery import MAX_BAD_FILES, find_bad_files
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, TableReport, load, plan
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.object_store import StoredObject
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import TRANSIENT, FakeWarehouse
from kbq_assets_tests.pipelines.bench import TOPIC, A, B, Bench
from kbq_assets_tests.strategies import staged_file

HOUR_MS = 3_600_000


def _staged(*schema_ids: int, **options: object) -> Bench:
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.produce(*schema_ids)
    bench.extract()
    return bench


def _table(bench: Bench, table: TableReference = A) -> TableState:
    return state.read(bench.store, TableState, table_state_path(table)).value


def _calls(bench: Bench, **options: object) -> Counter[tuple[str, str]]:
    """Operations of one load, with the first folder of what they are about."""
    bench.faults = script = Script("")
    bench.load(**options)  # type: ignore[arg-type]
    bench.faults = lambda call: Outcome.OK
    return Counter((call.operation, call.target.partition("/")[0]) for call in script.calls)


def test_jobs_of_all_tables_run_before_any_is_waited_for() -> None:
    bench = _staged(1, 3, auto_run=False)
    assert [t.state for t in bench.load(wait_seconds=0.0).tables] == ["waiting", "waiting"]
    assert len(bench.warehouse.pending) == 2


def test_a_table_whose_job_runs_on_does_not_hold_up_another() -> None:
    bench = _staged(1, 3, auto_run=False)
    bench.load(wait_seconds=0.0)
    a, b = sorted(bench.warehouse.jobs.values(), key=lambda job: str(job.load and job.load.table))
    bench.warehouse.run_pending(b.status.job_id)
    states = {t.table: (t.state, t.rows) for t in bench.load().tables}
    assert states == {A: ("waiting", 0), B: ("idle", 1)}
    assert a.status.state == "PENDING"


def test_one_tables_failure_stops_nothing_else() -> None:
    bench = _staged(1, 3)
    bench.faults = Script("create_table", "d.A", Outcome.UNAVAILABLE)
    states = {t.table: (t.state, t.transient) for t in bench.load().tables}
    assert states == {A: ("failed", True), B: ("idle", False)}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_one_tables_defect_stops_nothing_else_and_is_no_passing_error(concurrency: int) -> None:
    bench = _staged(1, 3)
    bench.faults = Script("create_table", "d.A", before=_defect)
    a, b = bench.load(concurrency=concurrency).tables
    assert (a.state, a.transient, b.state, b.rows) == ("failed", False, "idle", 1)
    assert "Defect: ValueError: a defect" in a.message and "report a bug" in a.message
    assert [(t.state, t.rows) for t in bench.load().tables] == [("idle", 1), ("idle", 0)]


def test_a_table_that_can_have_no_state_keeps_no_other_from_its_own() -> None:
    bench = _staged(1, 3)
    own = ("create", "tables/d.A.json")
    bench.faults = lambda call: _defect() if (call.operation, call.target) == own else Outcome.OK
    a, b = bench.load().tables
    assert (a.state, a.transient, b.state, b.rows) == ("failed", False, "idle", 1)
    bench.faults = lambda call: Outcome.OK
    assert [(t.state, t.rows) for t in bench.load().tables] == [("idle", 1), ("idle", 0)]


def test_a_defect_after_the_load_takes_nothing_from_its_report() -> None:
    bench = _staged(1, 3)
    bench.faults = Script("list", "done/", before=_defect)
    assert [(t.state, t.rows) for t in bench.load().tables] == [("idle", 1), ("idle", 1)]


def _defect() -> Outcome:
    raise ValueError("a defect")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_many_tables_at_once_load_what_one_after_the_other_does(concurrency: int) -> None:
    bench = _staged(1, 3, 1, 3)
    reported: list[TableReport] = []
    ports = LoadPorts(bench.store, bench.warehouse, bench.clock)
    report = load(ports, LoadOptions(concurrency=concurrency, poll_seconds=0.01), on_table=reported.append)
    assert (bench.offsets(A), bench.offsets(B), report.rows) == ([0, 2], [1, 3], 4)
    assert sorted(reported, key=lambda r: r.table) == list(report.tables)


def test_a_table_with_nothing_to_do_costs_no_call_of_its_own() -> None:
    bench = _staged(1, 3)
    bench.load()
    calls = _calls(bench)
    assert {operation for operation, _ in calls} == {"list", "get"}
    assert calls["list", "tables"] == calls["list", "commits"] == calls["list", "backlog"] == 1
    assert calls.total() == 3 + len(bench.paths("tables/")) + len(bench.paths("commits/"))


def test_a_second_view_reads_nothing_that_has_not_changed() -> None:
    bench = _staged(1, 3)
    bench.load()
    bench.produce(1, 3)
    bench.extract()
    bench.faults = script = Script("")
    cache = StateCache(bench.store.view("sensor"))
    first = plan(cache.store, cache=cache)
    script.calls.clear()
    assert plan(cache.store, cache=cache) == first
    assert {call.operation for call in script.calls} == {"list"}


def test_a_view_after_a_change_sees_it() -> None:
    bench = _staged(1, 3)
    cache = StateCache(bench.store)
    assert len(plan(bench.store, cache=cache).batches) == 2
    bench.load()
    assert not plan(bench.store, cache=cache).batches
    bench.produce(1)
    bench.extract()
    assert [batch.table for batch in plan(bench.store, cache=cache).batches] == [A]
    bench.store.delete(table_state_path(A))
    assert not plan(bench.store, cache=cache).batches


def test_what_follows_from_a_view_is_computed_again_if_any_object_of_it_changes() -> None:
    bench = _staged(1, 3)
    bench.load()
    operate.propose_park_table(bench.store, A).apply()
    bench.produce(1, 1)
    bench.extract()
    bench.extract()
    cache = StateCache(bench.store)
    computed: list[int] = []

    def looks() -> int:
        read_view(cache).once("looks", lambda: computed.append(1))
        read_view(cache).once("looks", lambda: computed.append(1))
        return len(computed)

    assert looks() == 1
    for number, path in enumerate((f"commits/{TOPIC}.json", table_state_path(A), table_state_path(B)), 2):
        found = bench.store.get(path)
        bench.store.swap(path, found.data, found.generation)
        assert looks() == number, path
    [chunk] = bench.paths("backlog/")
    bench.store.delete(chunk)
    assert looks() == 5


def test_a_cache_without_room_still_reads_right() -> None:
    bench = _staged(1, 3)
    cache = StateCache(bench.store, kept_bytes=0)
    assert read_view(cache).tables == read_view(cache).tables == [A, B]


def test_states_are_read_before_commits_and_commits_before_backlogs() -> None:
    """L1, and why: see load_view."""
    bench = _staged(1)
    bench.load()
    script = Script("")
    bench.faults = script
    read_view(StateCache(bench.store.view("loader")))
    order = [call.target.partition("/")[0] for call in script.calls]
    assert order == sorted(order, key=["tables", "commits", "backlog"].index)


def test_a_state_that_was_parked_while_the_run_was_under_way_is_not_loaded_into() -> None:
    bench = _staged(1)
    bench.load()
    bench.produce(1)
    bench.extract()
    bench.faults = Script(
        "find_table", "d.A", before=lambda: operate.propose_park_table(bench.store, A).apply()
    )
    [report] = bench.load().tables
    assert (report.state, bench.offsets(A)) == ("parked", [0])


def test_done_files_are_cleaned_once_a_run_and_the_highest_stays() -> None:
    bench = Bench()
    for _ in range(3):
        bench.produce(1, 3)
        bench.extract()
    assert len(bench.paths("done/")) == 6
    assert _calls(bench)["list", "done"] == 1
    assert [path.split(".")[-2] for path in bench.paths("done/")] == ["5", "5"]


# The daily quota ------------------------------------------------------------------------------------------------


def _limited(bench: Bench, jobs_per_day: int) -> Bench:
    bench.warehouse.limits = LoadLimits(jobs_per_day=jobs_per_day)
    return bench


def test_jobs_are_counted_with_their_intent_failed_ones_too() -> None:
    bench = _staged(1)
    errors: list[JobError | None] = [TRANSIENT, None]
    bench.warehouse.job_errors = lambda job: errors.pop(0)
    bench.load()
    assert _table(bench).jobs.submitted.used(bench.store.now_ms()) == 2


def test_a_table_near_its_quota_waits_and_its_files_make_a_larger_batch() -> None:
    bench = _limited(_staged(1), 20)
    bench.load()
    for _ in range(9):
        bench.produce(1)
        bench.extract()
        bench.load()
    bench.produce(1, 3)
    bench.extract()
    report = {t.table: t for t in bench.load().tables}
    assert (report[A].state, report[B].rows) == ("waiting", 1)
    assert "10 of 20 jobs used in 24 hours, the next in" in report[A].message
    assert not plan(bench.store, bench.warehouse.limits).batches
    bench.produce(1)
    bench.extract()
    bench.store.time_ms += 4 * HOUR_MS
    assert [t.files for t in bench.load().tables] == [2, 0]


def test_a_retry_may_use_what_is_kept_for_retries_and_then_waits() -> None:
    bench = _limited(_staged(1, auto_run=False), 2)
    bench.load(wait_seconds=0.0)
    for error, wanted in ((TRANSIENT, "waiting"), (TRANSIENT, "waiting")):
        bench.warehouse.run_pending(bench.warehouse.pending[0], error)
        [report] = bench.load(wait_seconds=0.0).tables
        assert report.state == wanted
    assert "2 of 2 jobs used" in report.message
    assert bench.warehouse.pending == ()
    bench.store.time_ms += 26 * HOUR_MS
    bench.warehouse.auto_run = True
    assert bench.load().rows == 1


def test_partitions_that_jobs_change_are_counted_and_spaced() -> None:
    bench = _staged(1)
    bench.warehouse.limits = LoadLimits(changes_per_day=4)
    bench.load()
    now_ms = bench.store.now_ms()
    counts = _table(bench).jobs.submitted
    assert (counts.changed(now_ms), counts.partitions, counts.used(now_ms)) == (1, 1, 1)
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    (report,) = bench.load().tables
    assert "2 of 4 changes of partitions used in 24 hours" in report.message
    assert not plan(bench.store, bench.warehouse.limits).batches
    bench.store.time_ms += 26 * HOUR_MS
    assert bench.load().rows == 1


def test_a_day_of_a_table_by_hours_counts_as_24_partitions() -> None:
    """By the load, and by the plan that a sensor polls."""
    bench, by_hours = _staged(1), LoadLimits(changes_per_day=4 * 24)
    bench.warehouse.limits = by_hours
    options = TableOptions(partition_unit="hour")
    for _ in range(2):
        bench.load(options=lambda table, topics: options)
        bench.produce(1)
        bench.extract()
    (report,) = bench.load(options=lambda table, topics: options).tables
    assert "2 of 4 changes of partitions used in 24 hours" in report.message
    hourly = TopicSettings.of(partitioning="hour")
    assert not plan(bench.store, by_hours, topics=lambda topics: dict.fromkeys(topics, hourly)).batches
    assert len(plan(bench.store, by_hours).batches) == 1


def test_tables_share_what_a_project_may_submit() -> None:
    bench = _staged(1, 3)
    bench.warehouse.limits = LoadLimits(project_jobs_per_day=2)
    bench.load()
    bench.produce(1)
    bench.extract()
    report = {table.table: table for table in bench.load().tables}
    assert "1 of 1 jobs used in 24 hours" in report[A].message


def test_a_warehouse_without_a_quota_keeps_no_counts() -> None:
    bench = _limited(_staged(1), 0)
    bench.load()
    assert dict(_table(bench).jobs.submitted.hours) == {}


# Stuck jobs -----------------------------------------------------------------------------------------------------


def test_a_stuck_job_is_cancelled_and_its_files_fly_again() -> None:
    bench = _staged(1, auto_run=False)
    bench.load(wait_seconds=0.0)
    bench.store.time_ms += 6 * HOUR_MS + 1
    bench.warehouse.auto_run = True
    [report] = bench.load().tables
    assert (report.rows, "was PENDING 6.0 hours after it was inserted: canceled" in report.message) == (
        1,
        True,
    )
    assert [job.status.error is None for job in bench.warehouse.jobs.values()] == [False, True]


def test_a_job_that_is_cancelled_and_runs_on_is_reported() -> None:
    bench = _staged(1, auto_run=False)
    bench.load(wait_seconds=0.0)
    bench.store.time_ms += 7 * HOUR_MS
    bench.faults = Script("cancel_job", outcome=Outcome.LATE)
    [report] = bench.load(wait_seconds=30.0).tables
    assert report.state == "waiting"
    assert "7.0 hours after it was inserted: canceled" in report.message
    assert sum(call.operation == "cancel_job" for call in bench.faults.calls) == 1


@pytest.mark.parametrize(("hours", "stuck_seconds"), [(5.9, 6 * 3600.0), (100, 0.0)])
def test_a_job_that_is_not_stuck_is_let_run(hours: float, stuck_seconds: float) -> None:
    bench = _staged(1, auto_run=False)
    bench.load(wait_seconds=0.0)
    bench.store.time_ms += round(hours * HOUR_MS)
    bench.load(wait_seconds=0.0, stuck_seconds=stuck_seconds)
    assert len(bench.warehouse.pending) == 1


# Options of tables ----------------------------------------------------------------------------------------------


def test_a_table_is_created_with_the_options_of_its_topics_and_jobs_carry_their_labels() -> None:
    bench = _staged(1, 3)

    def options(table: TableReference, topics: frozenset[str]) -> TableOptions:
        return TableOptions(
            cluster_by=("x", "gone"), labels={"table": table.table, "topics": ",".join(topics)}
        )

    bench.load(options=options)
    labels = {"table": "A", "topics": TOPIC}
    own = state.table_registry(bench.store).staging_id
    assert bench.warehouse.stored[A].options == TableOptions(
        cluster_by=("x",), labels=labels, notes=TableNotes(labels={"kbq_staging": own})
    )
    assert next(dict(job.load.labels) for job in bench.warehouse.jobs.values() if job.load) == labels


# Bad files ------------------------------------------------------------------------------------------------------


class _Probes(FakeWarehouse):
    """Counts probes. ``bad`` are URIs that do not load; the first ``interrupted`` probes give no verdict."""

    def __init__(self, bad: set[str], interrupted: int = 0) -> None:
        super().__init__(None, lambda uri: uri)  # type: ignore[arg-type]
        self.bad = bad
        self.interrupted = interrupted
        self.probes = 0

    def probe(self, job: LoadJob) -> JobError | None:
        self.probes += 1
        if self.probes <= self.interrupted:
            return TRANSIENT
        return JobError("invalid", "bad", False) if self.bad & set(job.source_uris) else None


def _find(bad: set[str], files: tuple[StagedFile, ...], interrupted: int = 0) -> tuple[list[str], int]:
    warehouse = _Probes(bad, interrupted)
    found = find_bad_files(
        warehouse, files, lambda some: LoadJob("j", "p", "l", A, tuple(f.path for f in some), "")
    )
    return [each.file.path for each in found], warehouse.probes


FILES = tuple(staged_file(n, n + 1) for n in range(10_000))


@pytest.mark.parametrize("which", [(0,), (9_999,), (17, 5_000), tuple(range(100, 120))])
def test_bad_files_among_ten_thousand_are_found_with_few_probes(which: tuple[int, ...]) -> None:
    wanted = [FILES[n].path for n in which]
    found, probes = _find(set(wanted), FILES)
    assert found == wanted
    assert probes <= 1 + 28 * len(which)  # two probes a halving, 14 halvings


def test_the_search_ends_where_it_is_not_a_matter_of_single_files() -> None:
    found, probes = _find({f.path for f in FILES}, FILES)
    assert len(found) == MAX_BAD_FILES + 1
    assert probes < 100


def test_a_probe_that_is_interrupted_is_made_again_and_blames_no_file() -> None:
    assert _find({FILES[3].path}, FILES[:8], interrupted=2)[0] == [FILES[3].path]
    with pytest.raises(Unavailable, match="one by one"):
        _find({FILES[3].path}, FILES[:8], interrupted=99)


def test_a_table_whose_files_cannot_be_tried_fails_for_now_and_keeps_its_job() -> None:
    bench = _staged(1)
    broken = JobError("invalid", "broken", transient=False)
    bench.warehouse.job_errors = lambda job: broken
    bench.faults = Script("probe", outcome=Outcome.UNAVAILABLE)
    [report] = bench.load().tables
    assert (report.state, report.transient) == ("failed", True)
    assert _table(bench).in_flight is not None
    assert bench.paths("staging/") != []


NOT_THE_FILES = JobError("accessDenied", "no access to the bucket", transient=False, blames_files=False)


@pytest.mark.parametrize("probe", [NOT_THE_FILES, ConfigurationError("no access to the dataset")])
def test_a_table_whose_jobs_fail_for_no_file_s_fault_is_parked_and_loads_once_the_cause_is_gone(
    probe: JobError | ConfigurationError,
) -> None:
    bench = _staged(1)
    bench.warehouse.job_errors = lambda job: NOT_THE_FILES
    bench.warehouse.probe_result = probe
    for _ in range(3):
        [report] = bench.load().tables
    assert (report.state, report.transient, report.quarantined) == ("parked", False, 0)
    assert "load_failed: accessDenied: no access to the bucket" in report.message
    bench.warehouse.job_errors = bench.warehouse.probe_result = None
    bench.store.time_ms += 3_600_000
    bench.load()
    assert (bench.offsets(A), _table(bench).parked, bench.warehouse.duplicates()) == ([0], None, {})


def test_two_bad_files_of_one_batch_are_set_aside_and_the_rest_is_loaded() -> None:
    bench = Bench()
    for _ in range(4):
        bench.produce(1)
        bench.extract()
    paths = [file.path for file in bench.commit().files]
    bench.warehouse.bad_paths |= {paths[0], paths[2]}
    [report] = bench.load().tables
    assert (report.rows, report.quarantined, bench.offsets(A)) == (2, 2, [1, 3])
    assert bench.paths("staging/") == []


# States of other versions ---------------------------------------------------------------------------------------


def test_a_state_of_an_older_version_is_read_and_one_of_a_newer_keeps_its_fields() -> None:
    bench = _staged(1)
    bench.load()
    path = table_state_path(A)
    stored = bench.store.get(path)
    document = json.loads(stored.data)
    del document["jobs"], document["checksum"]
    newer = json.dumps({**document, "format": 1, "brand_new": 7}).encode()
    bench.store.swap(path, newer, stored.generation)
    assert _table(bench).jobs.submitted.used(bench.store.now_ms()) == 0
    bench.produce(1)
    bench.extract()
    bench.load()
    assert _table(bench).extra["brand_new"] == 7
    assert bench.offsets(A) == [0, 1]


class CountingStore(FaultyMemoryStore):
    """Counts its reads."""

    reads = 0

    def get(self, path: str) -> StoredObject:
        self.reads += 1
        return super().get(path)


def test_beyond_the_cache_a_view_reads_what_has_no_room_and_not_the_rest() -> None:
    """With four times the states that fit, three quarters are read again."""
    store = CountingStore()
    paths = [f"tables/sales.t{number:02}.json" for number in range(40)]
    for path in paths:
        state.create(store, path, TableState("0123456789abcdef"))
    cache = StateCache(store, kept_bytes=10 * next(iter(store.list("tables/"))).size)
    reads = []
    for _ in range(3):
        store.reads = 0
        found = cache.read(TableState, paths, cache.listing("tables/"))
        assert all(isinstance(each, Versioned) for each in found)
        reads.append(store.reads)
    assert reads == [40, 30, 30]
