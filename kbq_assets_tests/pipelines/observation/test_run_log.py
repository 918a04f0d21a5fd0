"""The record of runs: what each did, what failed in it, and a heartbeat while it reads."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import Refused, Unavailable
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.observation.run_totals import (
    LASTING_MS,
    RunFailure,
    RunTotals,
    SignOfLife,
    WorkerUse,
    sign_path,
    totals_path,
)
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.extraction.ports import ExtractionReport, PartitionReport, Progress
from kbq_assets.pipelines.loading.load import LoadReport, TableReport
from kbq_assets.pipelines.observation.run_failures import interruptions, load_failures
from kbq_assets.pipelines.observation.run_log import SIGN_SECONDS, RunLog
from kbq_assets.pipelines.operate.clean import CleaningReport
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

P0, P1, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
A, B = TableReference("d", "a"), TableReference("d", "b")
NO_PROGRESS = Progress(0, 0, 0)


@pytest.fixture
def store() -> FaultyMemoryStore:
    return FaultyMemoryStore()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def totals(store: FaultyMemoryStore, kind: str) -> RunTotals:
    return state.read(store, RunTotals, totals_path(kind)).value


def extraction(
    *done: TopicPartition,
    failed: dict[TopicPartition, str] | None = None,
    stopped: tuple[TopicPartition, ...] = (),
) -> ExtractionReport:
    reports = tuple(PartitionReport(tp, 0, 1, Counts(), 1, ()) for tp in done)
    stops = tuple(PartitionStop(tp, "failed", "no", ()) for tp in stopped)
    return ExtractionReport(ExtractionPlan(), reports, stops, failed or {}, 0, 3.0, lost_files=2)


def test_an_extraction_is_counted_and_a_stop_is_no_failure(
    store: FaultyMemoryStore, clock: FakeClock
) -> None:
    RunLog(store, clock).end_extraction(extraction(P0, stopped=(P1,)))
    found = totals(store, "extraction")
    assert (found.runs, found.succeeded, found.seconds, found.lost_files) == (1, 1, 3.0, 2)
    assert (found.ended_ms, found.failures) == (clock.now_ms(), {})


def test_a_run_is_counted_once_though_its_reply_is_lost(store: FaultyMemoryStore, clock: FakeClock) -> None:
    RunLog(store, clock).end_extraction(extraction(P0))
    lost = [Outcome.LOST_REPLY]
    store.faults = lambda call: lost.pop() if call.writes and lost else Outcome.OK
    RunLog(store.view("p"), clock).end_extraction(extraction(P0))
    assert totals(store, "extraction").runs == 2


def interrupted(
    store: FaultyMemoryStore, *unread: TopicPartition, lasting_ms: int | None = None
) -> list[str]:
    found = interruptions(StateCache(store), unread, lasting_ms)
    assert {each.commands for each in found} <= {("kbq extract",)}
    return [f"{each.topic_partition}: {each.message}" for each in found]


def test_a_partition_stays_interrupted_until_a_run_reads_or_stops_it(
    store: FaultyMemoryStore, clock: FakeClock
) -> None:
    assert interrupted(store, P0) == []
    for _ in range(2):
        RunLog(store, clock).end_extraction(extraction(P0, failed={P1: "no route", OTHER: "no route"}))
    assert totals(store, "extraction").succeeded == 0
    assert interrupted(store, P1, P0) == ["t[1]: in 2 runs in a row: no route"]
    assert interrupted(store) == []
    RunLog(store, clock).end_extraction(extraction(P1, stopped=(OTHER,)))
    assert interrupted(store, P0, P1, OTHER) == []


def test_only_a_failure_that_lasts_needs_a_person(store: FaultyMemoryStore, clock: FakeClock) -> None:
    RunLog(store, clock).end_extraction(extraction(failed={P0: "no route"}))
    began = clock.now_ms()
    clock.sleep(60)
    RunLog(store, clock).end_extraction(extraction(failed={P0: "no route"}))
    assert interrupted(store, P0, lasting_ms=began + LASTING_MS - 1) == []
    assert interrupted(store, P0, lasting_ms=began + LASTING_MS) == ["t[0]: in 2 runs in a row: no route"]


@pytest.mark.parametrize(
    ("error", "transient"), [(Unavailable("no broker"), True), (Refused("no", next_step="x"), False)]
)
def test_an_error_of_a_whole_run_interrupts_each_topic_until_a_run_ends(
    store: FaultyMemoryStore, clock: FakeClock, error: Unavailable | Refused, transient: bool
) -> None:
    RunLog(store, clock).fail_extraction(error)
    [failure] = totals(store, "extraction").failures.values()
    assert (failure.transient, failure.message) == (transient, f"{type(error).__name__}: {error}")
    found = interrupted(store, P1, OTHER, P0)
    assert [line.partition(":")[0] for line in found] == ["t[-1]", "u[-1]"]
    RunLog(store, clock).end_extraction(extraction(P0))
    assert interrupted(store, P0, P1, OTHER) == []


def load(*tables: TableReport) -> LoadReport:
    return LoadReport(tables, 4.0, 5)


BAD = TableReport(A, "failed", message="no answer", transient=True)


def test_a_load_fails_by_its_failed_tables_alone(store: FaultyMemoryStore, clock: FakeClock) -> None:
    RunLog(store, clock).end_loading(load(TableReport(A, "idle"), TableReport(B, "parked", message="no")))
    assert (totals(store, "loading").succeeded, totals(store, "loading").done_files) == (1, 5)
    RunLog(store, clock).end_loading(load(BAD))
    assert load_failures(StateCache(store)) == {"d.a": RunFailure("no answer", True, 1, clock.now_ms())}
    RunLog(store, clock).end_loading(load(dataclasses.replace(BAD, state="idle")))
    assert load_failures(StateCache(store)) == {}


def test_each_warehouse_has_its_own_failures(store: FaultyMemoryStore, clock: FakeClock) -> None:
    lake = WarehouseStore.of(store, "lake")
    RunLog(lake, clock).end_loading(load(BAD))
    assert list(load_failures(StateCache(lake))) == ["d.a"]
    assert load_failures(StateCache(store)) == {}


@pytest.mark.parametrize(("failures", "succeeded"), [((), 1), (("x: no",), 0)])
def test_a_clean_up_is_counted(
    store: FaultyMemoryStore, clock: FakeClock, failures: tuple[str, ...], succeeded: int
) -> None:
    RunLog(store, clock).end_cleaning(CleaningReport(3, 4, 5, failures), 6.0)
    found = totals(store, "cleaning")
    assert (found.succeeded, found.orphans, found.done_files, found.seconds) == (succeeded, 3, 4, 6.0)


# Signs of life --------------------------------------------------------------------------------------------------------


def test_a_sign_of_life_is_written_at_intervals_and_removed_in_the_end(
    store: FaultyMemoryStore, clock: FakeClock
) -> None:
    seen = list[int]()
    log = RunLog(store, clock, "7f")
    watch = log.watching(lambda progress: seen.append(progress.units))
    shown = list[int | None]()
    for units, pause in ((0, 0.0), (1, SIGN_SECONDS - 1), (2, 1.0), (3, 0.0), (0, SIGN_SECONDS)):
        watch(dataclasses.replace(NO_PROGRESS, units=units, workers=(WorkerUse(units),)))
        sign = state.find(store, SignOfLife, sign_path("7f"))
        shown.append(sign.value.units if sign else None)
        clock.sleep(pause)
    assert seen == [0, 1, 2, 3, 0]
    assert shown == [None, 1, 1, 3, 3]
    log.close()
    assert state.find(store, SignOfLife, sign_path("7f")) is None


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.REFUSED, Outcome.LATE])
def test_a_record_that_cannot_be_written_fails_no_run(
    store: FaultyMemoryStore, clock: FakeClock, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    store.faults = lambda call: outcome if call.writes else Outcome.OK
    log = RunLog(store.view("p"), clock)
    log.watching(lambda progress: None)(dataclasses.replace(NO_PROGRESS, units=1))
    log.end_extraction(extraction(P0))
    log.close()
    assert caplog.text.count("could not be recorded") == 3
    assert store.objects == {}
