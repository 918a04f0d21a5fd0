"""A run ends in time even if a service does not answer, and says why. The next run reads what is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.extraction.ports import ExtractionLimits, Progress
from kbq_assets.ports.engine import OnDemandEngine
from kbq_assets.ports.kafka import ReadOptions, RecordBatch
from kbq_assets.worker.unit import WorkerPorts, extract_units
from kbq_assets_tests.fakes.engine import DeafEngine, InProcessEngine
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.pipelines.bench import TOPIC, A, Bench

PARTITIONS = 64


def bench_of(partitions: int = PARTITIONS) -> Bench:
    """A record in each partition: one task has them all."""
    bench = Bench(partitions=partitions)
    for partition in range(partitions):
        bench.produce(1, partition=partition)
    return bench


def silent(bench: Bench, seconds: float) -> Callable[[Call], Outcome]:
    """Brokers that answer nothing for ``seconds``, at each read."""

    def fault(call: Call) -> Outcome:
        if call.operation != "read":
            return Outcome.OK
        bench.clock.sleep(seconds)
        return Outcome.UNAVAILABLE

    return fault


def test_units_that_share_a_task_share_its_deadline_and_the_rest_waits_for_the_next_run() -> None:
    bench = bench_of()
    bench.faults = silent(bench, 60)
    report = bench.extract()
    assert bench.clock.monotonic() == 600
    assert (len(report.failures), report.unfinished) == (10, PARTITIONS - 10)
    assert (report.stops, report.partitions) == ((), ())
    bench.faults = lambda call: Outcome.OK
    report = bench.extract()
    assert (report.failures, report.unfinished) == ({}, 0)
    bench.load()
    assert len(bench.offsets(A)) == PARTITIONS


def test_units_whose_turn_did_not_come_are_read_from_where_they_were_within_the_run() -> None:
    """A unit comes back unread while the run goes on."""
    bench = bench_of(partitions=3)

    class Interrupted(InProcessEngine):
        def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
            outcomes = super().next_outcomes(timeout_seconds)
            return [*outcomes[:1], *(UnitOutcome(outcome.unit) for outcome in outcomes[1:])]

    engines: list[Interrupted] = []

    def open_engine(worker: WorkerPorts) -> InProcessEngine:
        engines.append(Interrupted(worker))
        return engines[0]

    report = bench.extract(open_engine=open_engine)
    assert (report.failures, report.unfinished, engines[0].tasks) == ({}, 0, 3)
    bench.load()
    assert bench.offsets(A) == [0, 0, 0]


def test_a_task_that_waited_for_an_executor_has_that_much_less_time() -> None:
    bench = bench_of()
    bench.faults = silent(bench, 60)

    class Slow(InProcessEngine):
        def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
            bench.clock.sleep(400)
            return super().next_outcomes(timeout_seconds)

    report = bench.extract(open_engine=Slow)
    assert (bench.clock.monotonic(), len(report.failures)) == (640, 4)


@pytest.mark.parametrize("skew_ms", [-3_600_000, 3_600_000])
def test_clocks_that_contradict_each_other_cost_a_task_no_time(skew_ms: int) -> None:
    bench = bench_of()
    bench.faults = silent(bench, 60)

    class Elsewhere(InProcessEngine):
        def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
            bench.clock.skew_ms = skew_ms
            outcomes = super().next_outcomes(timeout_seconds)
            bench.clock.skew_ms = 0
            return outcomes

    assert len(bench.extract(open_engine=Elsewhere).failures) == 10


def test_after_brokers_were_out_of_reach_the_rest_of_a_task_asks_them_for_a_short_time_only() -> None:
    bench = bench_of(partitions=4)
    asked: list[float] = []

    class Asked(InProcessEngine):
        def __init__(self, ports: WorkerPorts) -> None:
            super().__init__(ports)
            read = ports.source.read

            def remember(range_: OffsetRange, options: ReadOptions) -> Iterator[RecordBatch]:
                asked.append(options.wait_seconds)
                return read(range_, options)

            ports.source.read = remember  # type: ignore[assignment, method-assign]

    reads: list[str] = []

    def second_is_away(call: Call) -> Outcome:
        reads.append(call.operation)
        return Outcome.UNAVAILABLE if call.operation == "read" and reads.count("read") == 2 else Outcome.OK

    bench.faults = second_is_away
    report = bench.extract(open_engine=Asked)
    assert asked == [600.0, 600.0, 0.0, 0.0]
    assert (len(report.failures), report.totals.records) == (1, 3)


def test_a_run_that_drains_starts_no_task_and_keeps_what_its_tasks_have_read() -> None:
    bench, is_asked = bench_of(4), False

    def on_progress(progress: Progress) -> None:
        nonlocal is_asked
        is_asked = is_asked or progress.records > 0

    report = bench.extract(
        open_engine=lambda worker: InProcessEngine(worker, slots=1),
        limits=ExtractionLimits(slices=SliceLimits(packed_units=1)),
        on_progress=on_progress,
        is_draining=lambda: is_asked,
    )
    assert (report.totals.records, report.unfinished, report.failures) == (1, 3, {})
    assert bench.extract().totals.records == 3


class TestNoExecutors:
    """A cluster that takes tasks and starts none."""

    @pytest.fixture
    def deaf(self) -> tuple[Bench, list[DeafEngine], Callable[[WorkerPorts], OnDemandEngine]]:
        bench, engines = bench_of(3), list[DeafEngine]()

        def open_engine(worker: WorkerPorts) -> OnDemandEngine:
            engines.append(DeafEngine(worker, bench.clock))
            return OnDemandEngine(lambda: engines[-1])

        return bench, engines, open_engine

    def test_the_run_says_so_soon_and_once(
        self,
        deaf: tuple[Bench, list[DeafEngine], Callable[[WorkerPorts], OnDemandEngine]],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        bench, _, open_engine = deaf
        shown: list[tuple[float, str]] = []

        def on_progress(progress: Progress) -> None:
            shown.append((bench.clock.monotonic(), progress.message))

        with caplog.at_level(logging.WARNING):
            bench.extract(open_engine=open_engine, on_progress=on_progress)
        assert [record.getMessage() for record in caplog.records] == ["nobody hears"]
        assert min(second for second, message in shown if message) == 30.0

    def test_a_run_that_drains_waits_for_its_tasks_for_a_bounded_time(
        self, deaf: tuple[Bench, list[DeafEngine], Callable[[WorkerPorts], OnDemandEngine]]
    ) -> None:
        bench, _, open_engine = deaf
        report = bench.extract(open_engine=open_engine, is_draining=lambda: bench.clock.monotonic() >= 5)
        assert bench.clock.monotonic() == pytest.approx(25, abs=2)
        assert set(report.failures.values()) == {"the task was canceled 20 s after the run was asked to end"}

    def test_the_run_ends_a_while_after_its_time_with_that_reason(
        self, deaf: tuple[Bench, list[DeafEngine], Callable[[WorkerPorts], OnDemandEngine]]
    ) -> None:
        bench, _, open_engine = deaf
        report = bench.extract(open_engine=open_engine)
        assert bench.clock.monotonic() == pytest.approx(720, abs=2)
        reason = "the task was canceled 120 s after the run's time limit: nobody hears"
        assert report.failures == {TopicPartition(TOPIC, p): reason for p in range(3)}

    def test_a_cancelled_task_that_runs_nevertheless_leaves_orphans_alone(
        self, deaf: tuple[Bench, list[DeafEngine], Callable[[WorkerPorts], OnDemandEngine]]
    ) -> None:
        bench, engines, open_engine = deaf
        bench.extract(open_engine=open_engine)
        worker = WorkerPorts(
            bench.store.view("zombie"), bench.kafka.view("zombie"), bench.registry, bench.clock
        )
        late = [list(extract_units(units, worker)) for units in engines[0].submitted]
        assert [len(outcome.windows) for outcomes in late for outcome in outcomes] == [1, 1, 1]
        assert [bench.commit().partitions[p].next for p in range(3)] == [0, 0, 0]
        assert bench.extract().failures == {}
        bench.load()
        assert bench.offsets(A) == [0, 0, 0]


def test_a_task_that_hangs_is_cancelled_and_the_others_windows_count() -> None:
    bench = bench_of(partitions=2)
    apart = ExtractionLimits(slices=SliceLimits(packed_units=1))

    class Hanging(DeafEngine):
        """Its second task never ends, and is busy: nothing to complain about."""

        def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
            if len(self._open) == 2:
                return InProcessEngine.next_outcomes(self, timeout_seconds)
            return super().next_outcomes(timeout_seconds)

        def complaint(self) -> str:
            return ""

    report = bench.extract(apart, open_engine=lambda worker: Hanging(worker, bench.clock))
    assert (report.totals.records, list(report.failures.values())) == (
        1,
        ["the task was canceled 120 s after the run's time limit"],
    )


def test_a_run_that_was_asked_to_end_before_its_first_task_starts_no_engine() -> None:
    bench = Bench()
    bench.produce(1)
    opened: list[InProcessEngine] = []

    def on_demand(worker: WorkerPorts) -> OnDemandEngine:
        def engine() -> InProcessEngine:
            opened.append(InProcessEngine(worker))
            return opened[-1]

        return OnDemandEngine(engine)

    report = bench.extract(open_engine=on_demand, is_draining=lambda: True)
    assert (report.unfinished, opened) == (1, [])
    assert bench.extract(open_engine=on_demand).totals.records == len(opened) == 1
