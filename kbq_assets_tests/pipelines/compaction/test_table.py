"""A compaction loses and duplicates no row, whoever else changes the table and wherever it dies."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

import pytest

from kbq_assets.core.compaction.model import DAY_MS, LakeView, RewriteTask, Rewritten, RowsDigest
from kbq_assets.core.errors import Unavailable, UnknownOutcome
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction import table as pipeline
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction
from kbq_assets.ports.compaction import Rewriter, TableMoved
from kbq_assets_tests.contracts.compaction import CompactionContract
from kbq_assets_tests.contracts.warehouse import TABLE
from kbq_assets_tests.fakes.compaction import EVERYTHING, FakeLake
from kbq_assets_tests.fakes.faults import Crash


class TestFakeCompaction(CompactionContract):
    """The fake keeps the contract."""

    @pytest.fixture
    def lake(self) -> FakeLake:
        return FakeLake()


def no_spark() -> AbstractContextManager[Rewriter]:
    raise AssertionError("a small plan starts no Spark")


def compact(lake: FakeLake, now_ms: int = 1) -> CompactionReport:
    return TableCompaction(lake, TABLE, lambda: now_ms, no_spark).run()


def filled(jobs: int = 6) -> FakeLake:
    lake = FakeLake()
    for offset in range(jobs):
        lake.load(offset)
    return lake


def once(call: str, act: Callable[[], object], skip: int = 0) -> Callable[[str], None]:
    """Acts at a call for the first time, after ``skip`` others of it."""
    left = [skip + 1]

    def interrupt(name: str) -> None:
        if name == call:
            left[0] -= 1
            if left[0] == 0:
                act()

    return interrupt


def raising(error: BaseException) -> Callable[[], object]:
    def act() -> object:
        raise error

    return act


def test_small_files_become_one() -> None:
    lake = filled()
    report = compact(lake)
    assert (report.files_before, report.files_after, report.commits, report.message) == (6, 1, 1, "")
    assert lake.offsets() == list(range(6))
    assert compact(lake).commits == 0  # nothing is left to do


def test_hours_become_a_day_once_it_has_ended() -> None:
    lake = filled()
    lake.hours, lake.policy = 3, replace(lake.policy, days_after_ms=1)
    assert compact(lake, DAY_MS).files_after == 3
    report = compact(lake, DAY_MS + 1)
    assert (report.files_before, report.files_after, report.hours) == (3, 1, (0, 1, 2))
    assert lake.offsets() == list(range(6))
    lake.load(6)
    lake.load(7)
    assert compact(lake, DAY_MS + 1).files_after == 1  # late rows
    assert lake.offsets() == list(range(8))


def test_a_table_that_does_not_exist_is_in_the_report() -> None:
    report = TableCompaction(FakeLake(), TableReference("shop", "missing"), lambda: 1, no_spark).run()
    assert "does not exist" in report.message
    assert not report.transient


@pytest.mark.parametrize("call", ["before rewrite", "after rewrite", "before commit"])
@pytest.mark.parametrize("what", ["load", "replace", "compaction", "compaction and expiry", "other columns"])
def test_a_table_that_moves_meanwhile_is_planned_anew(call: str, what: str) -> None:
    lake = filled()

    def other() -> None:
        lake.interrupt = lambda name: None
        if what == "load":
            lake.load(6)
        elif what == "replace":
            lake.replace_all(*range(10, 16))
            lake.load(16)
        elif what == "other columns":
            lake.layout = "another layout"
        else:
            compact(lake)
            lake.load(6)
            if what.endswith("expiry"):
                lake.expire()

    lake.interrupt = once(call, other)
    report = compact(lake)
    assert (report.message, dict(report.failures)) == ("", {})
    wanted = {"replace": range(10, 17), "other columns": range(6)}.get(what, range(7))
    assert lake.offsets() == list(wanted)
    assert report.files_after == (2 if what == "load" else 1)  # what came later is joined next time
    lake.expire()
    assert set(lake.stored) == set(lake.snapshots[lake.current])  # nothing is left over


def test_a_file_that_is_written_counts_in_the_new_plan_too() -> None:
    """A load into the table costs one more look at its metadata, not one more rewrite."""
    lake = FakeLake(replace(EVERYTHING, target_bytes=3, min_files=2))
    for offset in range(6):
        lake.load(offset)
    rewrites: list[str] = []

    def interrupt(call: str) -> None:
        if call == "before rewrite":
            rewrites.append(call)
        if call == "before commit" and len(lake.jobs) == 6:
            lake.load(6)

    lake.interrupt = interrupt
    compact(lake)
    assert lake.offsets() == list(range(7))
    assert len(rewrites) == 2


def test_a_table_that_never_rests_is_left_for_the_next_run() -> None:
    lake = filled()
    lake.interrupt = lambda call: lake.load(len(lake.jobs)) if call == "before commit" else None
    report = compact(lake)
    assert report.transient
    assert f"changed {pipeline.ATTEMPTS} times" in report.message
    assert lake.offsets() == list(range(len(lake.jobs)))
    assert set(lake.stored) == set(lake.snapshots[lake.current])  # its files are deleted


def test_a_lost_input_fails_its_partition_and_not_as_a_conflict() -> None:
    lake = filled()
    lost = lake.stored.pop("job-2")

    def still_listed(table: TableReference) -> LakeView:
        lake.stored["job-2"] = lost
        found = FakeLake.view(lake, table)
        del lake.stored["job-2"]
        assert found is not None
        return found

    lake.view = still_listed  # type: ignore[method-assign]
    report = compact(lake)
    assert list(report.failures.values()) == ["job-2 is gone"]
    assert (report.commits, report.message) == (0, "")


@pytest.mark.parametrize(
    "corrupt",
    [lambda rows: rows[1:], lambda rows: (*rows, rows[0]), lambda rows: (99, *rows[1:])],
    ids=["lost", "doubled", "changed"],
)
def test_rows_that_differ_replace_nothing(corrupt: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    lake = filled()
    lake.corrupt = corrupt
    report = compact(lake)
    assert list(report.failures) == ["p"]
    assert lake.offsets() == list(range(6))
    assert len(lake.stored) == 6  # the new file is deleted


@pytest.mark.parametrize("call", ["before commit", "after commit"])
@pytest.mark.parametrize("error", [UnknownOutcome("no answer"), Unavailable("no answer"), Crash()])
def test_after_an_unknown_commit_no_file_is_deleted(call: str, error: BaseException) -> None:
    lake = filled()
    lake.interrupt = once(call, raising(error))
    with suppress(Crash):
        assert compact(lake).transient
    assert lake.offsets() == list(range(6))
    assert any(path.startswith("compact-") for path in lake.stored)
    assert compact(lake).message == ""
    assert lake.offsets() == list(range(6))
    lake.expire()
    assert len(lake.stored) == 1


def test_spark_rewrites_large_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled()
    seen: list[int] = []

    def rewriter(tasks: Sequence[RewriteTask]) -> list[Rewritten]:
        seen.append(len(tasks))
        return [lake.rewrite(task) for task in tasks]

    monkeypatch.setattr(pipeline, "IN_PROCESS_BYTES", 1)
    TableCompaction(lake, TABLE, lambda: 1, lambda: nullcontext(rewriter)).run()
    assert seen == [1]
    assert lake.offsets() == list(range(6))


# Schedules: two loaders, two compactors, expiry and readers at once, each call of which may be the last


class Schedule:
    """Random steps over one lake. Within the calls of a job or a compaction others take their steps: two levels deep.
    A retry is a second loader, which may be late."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lake = FakeLake(replace(EVERYTHING, target_bytes=7, days_after_ms=1))
        self.lake.hours = 2 * (seed % 2)
        self.started = 0
        self.depth = 0
        self.events: set[str] = set()

    def run(self) -> None:
        """The steps, then a calm end. Raises AssertionError if a row is lost or doubled."""
        self.lake.interrupt = self.interrupt
        for _ in range(25):
            with suppress(Crash):
                self.step()
            self.depth = 0
            self.check()
        self.lake.interrupt = lambda call: None
        self.started += 4  # a compaction has something to do, and its id ends
        for job in range(self.started):
            self.lake.run_job(job + 1, job)
        compact(self.lake)
        self.check()
        assert self.lake.offsets() == list(range(self.started))
        self.lake.expire()
        assert set(self.lake.stored) == set(self.lake.snapshots[self.lake.current])

    def step(self) -> None:
        name = self.chance.choice(["load", "load", "retry", "compact", "compact", "expire"])
        self.events.add(name)
        if name == "load":
            self.started += 1
            self.load(self.started)
        elif name == "retry" and self.started:
            self.load(self.chance.randint(1, self.started))
        elif name == "compact" and self.depth < 3:
            self.depth += 1
            report = compact(self.lake, self.chance.choice([1, DAY_MS + 1]))
            self.events.add("committed" if report.commits else "left" if report.message else "idle")
            self.events |= {
                "day" for path in self.lake.snapshots[self.lake.current] if path in self.lake.coarse
            }
            self.depth -= 1
        elif name == "expire":
            self.lake.expire()

    def load(self, job: int) -> None:
        """Run a job. The schedule ends every job that did not land."""
        if self.depth < 3:
            self.depth += 1
            with suppress(UnknownOutcome):
                self.lake.run_job(job, job - 1)
            self.depth -= 1

    def interrupt(self, call: str) -> None:
        happens = self.chance.random()
        if happens < 0.05:
            self.events.add(f"crash {call}")
            raise Crash
        if happens < 0.1 and "commit" in call:
            self.events.add(f"unknown {call}")
            raise UnknownOutcome("no answer")
        if happens < 0.4 and self.depth < 3:
            self.step()

    def check(self) -> None:
        ended = [job - 1 for job in sorted(self.lake.jobs)]
        assert self.lake.offsets() == ended  # KeyError: a listed file was deleted
        for snapshot in self.lake.snapshots:
            assert len(set(self.lake.rows_of(snapshot))) == len(list(self.lake.rows_of(snapshot)))


SEEDS = range(500)


def test_no_schedule_loses_or_doubles_a_row() -> None:
    events: set[str] = set()
    for seed in SEEDS:
        schedule = Schedule(seed)
        schedule.run()
        events |= schedule.events
    assert {
        "committed",
        "day",
        "left",
        "crash before commit",
        "crash after commit",
        "unknown after commit",
        "crash before load",
        "crash before load commit",
        "crash after load commit",
        "unknown after load commit",
    } <= events


def rebase(self: TableCompaction, rewriter: Rewriter, view: LakeView, wanted: object) -> bool:
    """C2: a rewrite is committed on whichever snapshot is current."""
    results = rewriter([self._task(view, group) for group in wanted])  # type: ignore[attr-defined]
    try:
        self._compaction.replace_files(view, results)
    except TableMoved:
        now = self._view()
        self._compaction.replace_files(now, results)
    return True


def discard_always(self: TableCompaction, rewriter: Rewriter, view: LakeView, wanted: object) -> bool:
    """C7: the files of a commit without an answer are deleted."""
    results = rewriter([self._task(view, group) for group in wanted])  # type: ignore[attr-defined]
    try:
        self._compaction.replace_files(view, results)
    except BaseException:
        self._compaction.discard(TABLE, [result.path for result in results])
        raise
    return True


class ForgetfulLake(FakeLake):
    """I1: a job's id is known as long as its snapshot."""

    def expire(self) -> None:
        super().expire()
        names = (
            path.removeprefix("job-").partition("/")[0] for path in self.stored if path.startswith("job-")
        )
        self.jobs &= set(map(int, names))


class HastyLake(FakeLake):
    """I2: a job reads the ids before it writes its file, and commits on whichever snapshot is current then."""

    def run_job(self, job: int, *offsets: int) -> None:
        if job not in self.jobs:
            self.interrupt("before load commit")
            self.stored[path := f"job-{job}/{len(self.stored)}"] = offsets
            self._commit((*self.snapshots[self.current], path))
            self.jobs.add(job)


class TidyLake(FakeLake):
    """I5: expiry deletes files of jobs that have not ended."""

    def expire(self) -> None:
        ended, self.jobs = self.jobs, set(range(1000))
        super().expire()
        self.jobs = ended


class FineLake(FakeLake):
    """C9: a file of a whole day counts as one of an hour."""

    def rewrite(self, task: RewriteTask) -> Rewritten:
        return super().rewrite(replace(task, group=replace(task.group, coarse=False)))


def is_noticed() -> bool:
    for seed in SEEDS:
        try:
            Schedule(seed).run()
        except (AssertionError, KeyError):
            return True
    return False


MUTANTS = (rebase, discard_always)
LAKE_MUTANTS = (ForgetfulLake, HastyLake, TidyLake, FineLake)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_schedules_notice_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, mutant: Callable[..., bool]
) -> None:
    monkeypatch.setattr(TableCompaction, "_attempt", mutant)
    assert is_noticed()


@pytest.mark.parametrize("mutant", LAKE_MUTANTS)
def test_the_schedules_notice_a_lake_that_breaks_a_rule(
    monkeypatch: pytest.MonkeyPatch, mutant: type[FakeLake]
) -> None:
    """An id that is lost at expiry; a commit that is rebased; an orphan that goes before its job has ended; a file of
    several hours in one hour's partition."""
    monkeypatch.setitem(globals(), "FakeLake", mutant)
    assert is_noticed()


def test_the_schedules_notice_rows_that_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(seed: int) -> Schedule:
        schedule = Schedule(seed)
        schedule.lake.corrupt = lambda rows: rows[1:] if schedule.chance.random() < 0.2 else rows
        return schedule

    for seed in range(5):
        lossy(seed).run()  # compared: no row is lost
    monkeypatch.setattr(Rewritten, "difference", "")
    with pytest.raises(AssertionError):
        for seed in range(5):
            lossy(seed).run()


def test_digests_add_up() -> None:
    assert RowsDigest(1, (1 << 64) - 1) + RowsDigest(2, 2) == RowsDigest(3, 1)
