"""Transient failures are retried, ever more slowly. Failures that need a person wait."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.protocol.offsets import OffsetRange
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.extraction import extract
from kbq_assets.pipelines.extraction.ports import ExtractionLimits
from kbq_assets.pipelines.loading import load
from kbq_assets.pipelines.observation import status
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.warehouse import JobError, LoadJob
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import SCHEMAS, SETTINGS, TOPIC, TP, A, Bench

MINUTE = 60_000
REFUSED = JobError("invalid", "the table does not take it", transient=False)


def _stop(bench: Bench) -> Stop | None:
    return bench.commit().partitions[0].stop


def _stopped(*after: int) -> Bench:
    """A bench with a partition that stopped at offset 1 for schema id 99."""
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.produce(99, *after)
    bench.extract()
    stop = _stop(bench)
    assert stop is not None
    assert (stop.reason, stop.tries) == ("unknown_schema", 0)
    return bench


def _repair_registry(bench: Bench) -> None:
    bench.registry.schemas[99] = SCHEMAS[1]


def _table(bench: Bench) -> TableState:
    return state.read(bench.store, TableState, table_state_path(A)).value


def test_a_fixed_registry_lets_the_partition_continue_without_a_command() -> None:
    bench = _stopped(1, 1)
    _repair_registry(bench)
    bench.extract()
    assert _stop(bench) is not None  # its pause is not over
    bench.store.time_ms += MINUTE
    bench.extract()
    bench.extract()
    bench.load()
    assert (_stop(bench), sorted(bench.offsets(A))) == (None, [0, 1, 2, 3])
    assert bench.reconcile().accounted


def test_a_try_reads_the_range_that_stopped_and_no_more() -> None:
    bench = _stopped(*[1] * 20)
    bench.store.time_ms += MINUTE
    [unit] = extract.plan(bench.store, bench.kafka, [SourceEntry(TOPIC, SETTINGS)], now_ms=1).units
    stop = _stop(bench)
    assert stop is not None
    assert unit.range == OffsetRange(TP, stop.first, stop.until)
    assert unit.range.until_offset < 22


def test_tries_that_fail_come_ever_more_slowly_and_write_the_commit_once_each() -> None:
    bench = _stopped()
    tries = []
    for _ in range(4 * 60):  # a run each minute, four hours long
        bench.store.time_ms += MINUTE
        before = bench.store.get(f"commits/{TOPIC}.json").generation
        bench.extract()
        tries.append(bench.store.get(f"commits/{TOPIC}.json").generation != before)
    stop = _stop(bench)
    assert stop is not None
    assert sum(tries) == stop.tries
    assert [minute for minute, tried in enumerate(tries, 1) if tried] == [1, 3, 7, 15, 31, 63, 123, 183]


def test_a_clock_that_jumped_into_the_future_does_not_end_the_tries() -> None:
    bench = _stopped()
    year = 365 * 24 * 60 * MINUTE
    bench.store.time_ms += year
    bench.extract()
    bench.store.time_ms -= year
    _repair_registry(bench)
    bench.extract()
    assert _stop(bench) is None


def test_a_try_whose_swap_is_lost_counts_once() -> None:
    bench = _stopped()
    bench.store.time_ms += MINUTE
    bench.faults = Script("swap", "commits/shop", Outcome.LOST_REPLY)
    bench.extract()
    stop = _stop(bench)
    assert stop is not None
    assert stop.tries == 1


def test_a_try_is_not_made_where_the_broker_has_lost_the_positions_meanwhile() -> None:
    bench = _stopped(1, 1)
    bench.store.time_ms += MINUTE
    bench.kafka.delete_before(TP, 3)
    assert [stop.reason for stop in bench.extract().stops] == ["retention_loss"]
    operate.propose_accept_gap(bench.store, bench.kafka, TP).apply()
    bench.extract()
    assert (_stop(bench), bench.commit().partitions[0].next) == (None, 4)


def test_a_partition_that_waits_for_more_does_not_keep_a_try_waiting() -> None:
    settings = SETTINGS.with_options(min_records=1000)
    bench = _stopped()
    _repair_registry(bench)
    bench.store.time_ms += MINUTE
    bench.extract(sources=[SourceEntry(TOPIC, settings)])
    assert _stop(bench) is None


def test_restart_manual_waits_for_the_command() -> None:
    bench = _stopped()
    _repair_registry(bench)
    bench.settings = SETTINGS.with_options(restart="manual")
    bench.store.time_ms += 1000 * MINUTE
    [stop] = bench.extract().stops
    assert (stop.reason, stop.next_try_ms) == ("unknown_schema", 0)
    operate.propose_resume(bench.store, TOPIC).apply()
    bench.extract()
    assert _stop(bench) is None


def test_a_resume_does_not_wait_for_the_pause() -> None:
    bench = _stopped()
    _repair_registry(bench)
    operate.propose_resume(bench.store, TOPIC).apply()
    bench.extract()
    assert _stop(bench) is None


def test_the_status_shows_the_tries_and_the_next_one() -> None:
    bench = _stopped()
    bench.store.time_ms += MINUTE
    bench.extract()
    entry = SourceEntry(TOPIC, SETTINGS)
    bench.store.time_ms += MINUTE * 10  # it is due: a status still tells it
    [stop] = status.read_status(bench.store, bench.kafka, [entry]).stops
    kept = _stop(bench)
    assert kept is not None
    assert (stop.tries, stop.next_try_ms) == (1, kept.last_ms + 2 * MINUTE)


# Tables ---------------------------------------------------------------------------------------------------------------


def _refuse(job: LoadJob) -> JobError:
    return REFUSED


def _parked(**options: int) -> Bench:
    """A bench whose table A is parked with one file, as its jobs are refused."""
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.produce(1)
    bench.extract()
    bench.warehouse.job_errors = _refuse
    [report] = bench.load().tables
    assert report.state == "parked"
    return bench


def _jobs(bench: Bench) -> int:
    return len(bench.warehouse.jobs)


def test_a_fixed_table_is_loaded_without_a_command() -> None:
    bench = _parked()
    bench.extract()  # its file goes to the backlog
    assert len(bench.paths("backlog/")) == 1
    bench.warehouse.job_errors = None
    bench.load()
    assert bench.offsets(A) == []
    bench.store.time_ms += MINUTE
    assert len(load.plan(bench.store).batches) == 1
    bench.load()
    assert (bench.offsets(A), _table(bench).parked, _table(bench).restarting) == ([0], None, None)
    bench.load()
    assert bench.paths("backlog/") == []
    assert bench.reconcile().accounted


def test_a_try_that_fails_costs_one_job_and_parks_the_table_again() -> None:
    bench = _parked()
    jobs = _jobs(bench)
    for tries in (1, 2, 3):
        bench.store.time_ms += 60 * MINUTE
        [report] = bench.load().tables
        parked = _table(bench).parked
        assert parked is not None
        assert (report.state, parked.reason, parked.tries) == ("parked", "load_failed", tries)
    assert _jobs(bench) == jobs + 3
    bench.load()
    assert (load.plan(bench.store).batches, _jobs(bench)) == ((), jobs + 3)


def test_a_type_that_was_fixed_by_hand_lets_the_table_continue() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.produce(4)
    bench.extract()
    [report] = bench.load().tables
    assert "incompatible_schema" in report.message
    table = bench.warehouse.stored[A]
    table.columns = tuple(
        dataclasses.replace(column, type="STRING") if column.name == "x" else column
        for column in table.columns
    )
    bench.store.time_ms += MINUTE
    bench.load()
    assert _table(bench).parked is None
    assert bench.offsets(A) == [0, 1]


def test_a_table_whose_topic_says_manual_waits_for_the_command() -> None:
    bench = _parked()
    bench.warehouse.job_errors = None
    bench.store.time_ms += 1000 * MINUTE

    def never(topics: frozenset[str]) -> bool:
        assert topics == {TOPIC}
        return False

    bench.load(restarts=never)
    assert load.plan(bench.store, restarts=never).batches == ()
    assert _table(bench).parked is not None
    operate.propose_resume_table(bench.store, A).apply()
    bench.load(restarts=never)
    assert bench.offsets(A) == [0]


def test_a_parked_table_that_would_be_tried_again_can_be_held() -> None:
    bench = _parked()
    operate.propose_park_table(bench.store, A).apply()
    bench.warehouse.job_errors = None
    bench.store.time_ms += 1000 * MINUTE
    [report] = bench.load().tables
    assert (report.state, report.message) == ("parked", "operator: held by kbq park")


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_try_that_dies_anywhere_is_gone_on_with(outcome: Outcome, nth: int) -> None:
    bench = _parked()
    bench.warehouse.job_errors = None
    bench.store.time_ms += MINUTE
    bench.faults = Script("swap", "tables/d.A", outcome, nth=nth)
    with pytest.raises(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    bench.store.time_ms += MINUTE
    bench.load()
    assert (bench.offsets(A), bench.warehouse.duplicates()) == ([0], {})
    assert _table(bench).restarting is None


def test_a_try_with_nothing_left_to_load_ends() -> None:
    bench = _parked()
    operate.propose_reset(
        bench.store, bench.kafka, TOPIC, start=StartAt("latest"), give_up_pending=True
    ).apply()
    bench.store.time_ms += MINUTE
    bench.load()
    bench.load()
    table = _table(bench)
    assert (table.parked, table.restarting, bench.offsets(A)) == (None, None, [])


def test_a_table_being_tried_is_reported_by_the_status_until_a_job_succeeds() -> None:
    bench = _parked()
    assert "KBQ tries again after" in status.read_tables(StateCache(bench.store))[0].message
    bench.warehouse.job_errors = None
    bench.warehouse.auto_run = False
    bench.store.time_ms += MINUTE
    bench.load(wait_seconds=0.0)
    [in_flight] = status.read_tables(StateCache(bench.store))
    assert (in_flight.state, "load_failed" in in_flight.message) == ("in flight", True)
    bench.warehouse.step()
    bench.load()
    assert status.read_tables(StateCache(bench.store))[0].message == ""


def test_slices_of_a_try_are_not_read_ahead() -> None:
    bench = _stopped(*[1] * 40)
    bench.store.time_ms += MINUTE
    before = set(bench.paths("staging/"))
    bench.extract(ExtractionLimits(slices=SliceLimits(positions=4, least=2, packed_positions=2)))
    assert set(bench.paths("staging/")) == before
