"""Totals of runs count each run once, and remember a failure until it is fixed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.extraction.units import Unit, UnitOutcome, WorkerProcess
from kbq_assets.core.observation.run_totals import (
    LASTING_MS,
    RunEnd,
    RunFailure,
    RunTotals,
    TopicCost,
    WorkerUse,
    failure_key,
    run_failure,
    sign_path,
    skew,
    totals_path,
)
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings

UNIT = Unit(OffsetRange(TopicPartition("t", 0), 0, 9), 1, TopicSettings())
BUSY = WorkerUse(2, 3.0, 70)


def end(run: str = "a", *, succeeded: bool = True, at: int = 100, **more: Any) -> RunEnd:
    return dataclasses.replace(RunEnd(run, succeeded, 2.5, at), **more)


def test_a_run_is_counted_with_all_that_it_did() -> None:
    run = end(lost_files=1, orphans=2, done_files=3, advisory_failures=4, workers=(BUSY,))
    once = RunTotals().plus(run)
    assert once == RunTotals(1, 1, 2.5, 100, 100, 1, 2, 3, 4, {}, (BUSY,), ("a",), {})
    both = once.plus(dataclasses.replace(run, run="b", workers=(), ended_ms=200))
    assert both == RunTotals(2, 2, 5.0, 200, 200, 2, 4, 6, 8, {}, (BUSY,), ("a", "b"), {})
    assert codec.loads(RunTotals, codec.dumps(both), "p") == both


def test_a_run_is_counted_once_while_it_is_remembered() -> None:
    totals = RunTotals()
    for number in range(9):
        totals = totals.plus(end(str(number)))
        assert totals.plus(end(str(number))) is totals
    assert (totals.runs, totals.recent) == (9, tuple(map(str, range(1, 9))))
    assert totals.plus(end("1")) is totals
    assert totals.plus(end("0")).runs == 10


def test_a_run_that_failed_keeps_the_time_of_the_last_success() -> None:
    totals = RunTotals().plus(end("a", at=100)).plus(end("b", succeeded=False, at=200))
    assert (totals.runs, totals.succeeded, totals.ended_ms, totals.succeeded_ms) == (2, 1, 200, 100)


def failed(message: str, at: int, *, transient: bool = True) -> RunEnd:
    return end(
        f"{message}{at}", succeeded=False, at=at, parts={"x": run_failure(message, at, transient=transient)}
    )


def test_failures_in_a_row_are_counted_from_the_first_one_until_a_success() -> None:
    totals = RunTotals().plus(failed("one", 100)).plus(failed("two", 200))
    assert totals.failures == {"x": RunFailure("two", True, 2, 100)}
    other = totals.plus(end("other", parts={"y": None}))
    assert other.failures == totals.failures
    again = totals.plus(end("works", parts={"x": None})).plus(failed("three", 400))
    assert again.failures == {"x": RunFailure("three", True, 1, 400)}


def test_the_failures_of_a_total_are_bounded_in_number_and_length() -> None:
    parts = {f"{n:05}": run_failure("x" * 900, 1) for n in range(1_200)}
    totals = RunTotals().plus(end(parts=parts))
    assert list(totals.failures) == [f"{n:05}" for n in range(1_000)]
    assert {each.message for each in totals.failures.values()} == {"x" * 500 + "…"}
    assert run_failure("x" * 500, 1).message == "x" * 500


@pytest.mark.parametrize(
    ("failure", "now_ms", "lasts"),
    [
        (RunFailure("no", False, 1, 100), 100, True),
        (RunFailure("no", True, 1, 100), 100 + LASTING_MS, False),
        (RunFailure("no", True, 2, 100), 99 + LASTING_MS, False),
        (RunFailure("no", True, 2, 100), 100 + LASTING_MS, True),
    ],
    ids=["lasting at once", "one run alone", "for a short time", "for long"],
)
def test_a_passing_failure_needs_a_person_once_it_lasts(
    failure: RunFailure, now_ms: int, lasts: bool
) -> None:
    assert failure.lasts(now_ms) == lasts


def test_the_costs_of_a_topic_add_up_and_its_owner_is_the_latest() -> None:
    used = Usage("t", "ann", "c1", core_seconds=1.5, records=10, seconds=4.0)
    totals = RunTotals().plus(end("a", costs=(used,)))
    later = dataclasses.replace(used, owner="bob", cost_center="c2", topic="t")
    both = totals.plus(end("b", costs=(later, dataclasses.replace(used, topic="u"))))
    assert both.costs["t"] == TopicCost("bob", "c2", 3.0, 3.0, 20, 8.0)
    assert both.costs["u"] == totals.costs["t"]
    assert (both.costs["t"].rate, TopicCost().rate) == (2.5, 0.0)


def test_a_worker_counts_its_units_and_keeps_its_greatest_memory() -> None:
    outcome = UnitOutcome(UNIT, seconds=1.0005, process=WorkerProcess("w", memory_bytes=50))
    use = WorkerUse().with_outcome(outcome).with_outcome(outcome)
    assert (use.units, use.memory_bytes) == (2, 50)
    assert use.seconds == pytest.approx(2.001, abs=0.002)
    less = dataclasses.replace(outcome, process=WorkerProcess("w", memory_bytes=10))
    assert use.with_outcome(less).memory_bytes == 50


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [([], 0.0), ([0.0, 0.0], 0.0), ([2.0, 2.0], 1.0), ([3.0, 1.0], 1.5), ([4.0], 1.0)],
)
def test_skew_is_the_busiest_worker_over_the_average(seconds: list[float], expected: float) -> None:
    assert skew(WorkerUse(1, each) for each in seconds) == expected


def test_totals_and_signs_have_paths_that_do_not_meet() -> None:
    assert totals_path("loading") == "metrics/loading.json"
    assert sign_path("7f") == "metrics/runs/7f.json"
    assert failure_key("lake", TableReference("d", "t")) == "lake/d.t"
    assert failure_key("", TableReference("d", "t")) == "/d.t"
