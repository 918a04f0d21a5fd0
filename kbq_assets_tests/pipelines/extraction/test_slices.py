"""Slices of one partition that are read in parallel are published in order, or given up."""

from __future__ import annotations

import pytest

from kbq_assets.core.extraction.turns import SliceLimits
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.pipelines.extraction.ports import ExtractionLimits
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets_tests.fakes.faults import Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import TP, A, B, Bench

#: Two slots: [0, 4) and [4, 8) at the same time.
HALVES = ExtractionLimits(slices=SliceLimits(positions=4, least=2), window=WindowLimits(records=4))


def latest(number: int) -> int:
    """The task that started last ends first."""
    return number - 1


def eight() -> Bench:
    bench = Bench()
    bench.produce(*[1] * 8)
    return bench


def windows(bench: Bench) -> list[tuple[int, int]]:
    return [(w.first, w.until) for w in bench.commit().partitions[0].windows]


@pytest.mark.parametrize("choose", [latest, lambda number: 0])
def test_slices_are_published_in_order_however_they_end(choose: object) -> None:
    bench = eight()
    report = bench.extract(HALVES, choose=choose)  # type: ignore[arg-type]
    assert (windows(bench), report.failures, report.totals.records) == ([(0, 4), (4, 8)], {}, 8)
    bench.load()
    assert bench.offsets(A) == list(range(8))


def test_a_waiting_slice_is_not_taken_for_an_orphan() -> None:
    bench = eight()

    def sweep() -> None:
        assert len(bench.paths("staging/")) == 1  # the later slice's file, held
        assert clean(bench.store).orphans == 0

    # The later slice reads batches 1 and 2 (and the end); then the earlier one begins.
    bench.faults = Script("read", "shop.events[0] [0, ", before=sweep)
    assert bench.extract(HALVES, choose=latest).failures == {}
    assert windows(bench) == [(0, 4), (4, 8)]


def test_a_slice_whose_predecessor_failed_is_given_up_and_swept_once_it_has_been_read_again() -> None:
    bench = eight()
    bench.faults = Script("read", "shop.events[0] [2, ", Outcome.UNAVAILABLE)
    assert list(bench.extract(HALVES, choose=latest).failures) == [TP]
    assert (bench.commit().partitions[0].next, len(bench.paths("staging/"))) == (0, 1)
    assert clean(bench.store).orphans == 0  # not below `next` yet: an extraction might be about to publish it
    bench.faults = lambda call: Outcome.OK
    bench.extract(HALVES)
    assert clean(bench.store).orphans == 1
    bench.load()
    assert (bench.offsets(A), bench.paths("staging/")) == (list(range(8)), [])


def test_a_slice_is_not_published_after_one_that_another_extraction_was_faster_with() -> None:
    bench = eight()

    def interfere() -> None:
        bench.faults = lambda call: Outcome.OK
        bench.extract()

    bench.faults = Script("swap", "commits/shop", before=interfere)
    assert list(bench.extract(HALVES, choose=latest).failures.values()) == ["another extraction was faster"]
    bench.load()
    assert bench.offsets(A) == list(range(8))


def test_a_stop_in_a_slice_that_was_read_ahead_waits_until_the_position_is_there() -> None:
    bench = Bench()
    bench.produce(1, 1, 1, 1, 99, 1, 1, 1)
    [stop] = bench.extract(HALVES, choose=latest).stops
    partition = bench.commit().partitions[0]
    assert (stop.reason, partition.next, partition.stop and partition.stop.first) == ("unknown_schema", 4, 4)


def test_a_stop_gives_up_what_was_read_behind_it() -> None:
    bench = Bench()
    bench.produce(1, 1, 99, 1, 1, 1, 1, 1)
    [stop] = bench.extract(HALVES, choose=latest).stops
    partition = bench.commit().partitions[0]
    assert (stop.reason, [w.until for w in partition.windows]) == ("unknown_schema", [2])


@pytest.mark.parametrize("choose", [latest, lambda number: 0])
def test_a_log_that_is_truncated_between_two_slices_is_not_pieced_together(choose: object) -> None:
    bench = eight()

    def unclean_election() -> None:
        bench.kafka.truncate(TP, 2)
        bench.produce(*[3] * 6)

    # In the middle of whichever slice comes second; the first has been read from the log as it was.
    second = "[0, " if choose is latest else "[4, "
    bench.faults = Script("read", f"shop.events[0] {second}", before=unclean_election)
    report = bench.extract(HALVES, choose=choose)  # type: ignore[arg-type]
    assert "under another leader" in report.failures[TP]
    assert windows(bench) == [(0, 4)]
    if choose is latest:
        bench.faults = lambda call: Outcome.OK
        bench.extract(HALVES)
        bench.load()
        assert (bench.offsets(A), bench.offsets(B)) == ([0, 1], [2, 3, 4, 5, 6, 7])


def test_an_election_between_two_slices_costs_the_second_a_run() -> None:
    bench = Bench()
    bench.produce(*[1] * 4)
    bench.kafka.elect_leader(TP)
    bench.produce(*[1] * 4)
    assert "under another leader" in bench.extract(HALVES).failures[TP]
    assert bench.extract(HALVES).failures == {}
    bench.load()
    assert bench.offsets(A) == list(range(8))


@pytest.mark.parametrize("outcome", [Outcome.LOST_REPLY, Outcome.LATE, Outcome.OWN_RETRY])
def test_an_unknown_outcome_of_the_swap_publishes_both_slices_once(outcome: Outcome) -> None:
    bench = eight()
    bench.faults = Script("swap", "commits/shop", outcome)
    assert bench.extract(HALVES, choose=latest).failures == {}
    while bench.store.late:
        bench.store.deliver_late()
    bench.load()
    assert bench.offsets(A) == list(range(8))
