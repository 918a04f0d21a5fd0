"""Counters are correct even if runs die, repeat or start again, because they are part of the state that runs change."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.operate.commands import propose_reset, propose_resume_table
from kbq_assets_tests.extras.metrics.scrape import Scrape, polled
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.platform import GOOD, POISON, FakePlatform
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.warehouse import TRANSIENT

ORDERS = TableReference("shop", "orders")
ONE = ()


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


def process(world: FakePlatform) -> Parts:
    """Separate parts, whose calls to the store may fail."""
    return world.reopened(store=lambda: world.store.view("run"))


def run_all(world: FakePlatform) -> None:
    """An extraction and a load, each in a separate process."""
    process(world).extractor.extract()
    process(world).loader.load()


def at_rest(world: FakePlatform) -> Scrape:
    world.store.faults = lambda call: Outcome.OK
    return polled(world.reopened())


def test_many_short_runs_add_up(world: FakePlatform) -> None:
    for number in range(7):
        world.produce(number, partition=number % 2) if number else None
        world.produce(1, value=POISON)
        run_all(world)
    found = at_rest(world)
    assert found["gcswriter_consumedmessages"][ONE] == 28
    assert found["kbq_error_rows_total"] == {("shop.orders.v1",): 7}
    assert found["kbq_loaded_rows_total"] == {("shop.kbq_errors",): 7, ("shop.orders",): 21}
    assert found["gcswriter_publishbatchsize_sum"][ONE] == 28
    assert found["gcswriter_publishbatchsize_count"][ONE] == found["gcswriter_latency_count"][ONE] == 10
    assert found["gcswriter_closedfilecount"] == found["gcswriter_filecount"] == {ONE: 13}
    assert found["bqwriter_submittedjobstobq"][ONE] == 13
    assert found["kbq_runs_total"] == {("extraction",): 7, ("loading",): 7, ("cleaning",): 0}


def test_bytes_are_those_of_the_published_files_before_compression(world: FakePlatform) -> None:
    world.produce(100)
    report = world.parts.extractor.extract()
    sizes = sum(file.raw_bytes for partition in report.partitions for file in partition.files)
    assert at_rest(world)["gcswriter_bytes_written"] == {("shop",): sizes}
    assert sizes >= 100 * (len(GOOD) - 5)


@pytest.mark.parametrize(
    "outcome",
    [Outcome.LOST_REPLY, Outcome.LATE, Outcome.OWN_RETRY, Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER],
)
@pytest.mark.parametrize("target", ["commits/shop", "tables/shop.orders", "metrics/"])
def test_a_run_that_is_cut_short_counts_its_records_once(
    world: FakePlatform, outcome: Outcome, target: str
) -> None:
    run_all(world)
    world.produce(5)
    world.store.faults = Script("swap", target, outcome)
    for _ in range(2):
        try:
            run_all(world)
        except Crash:
            continue
    world.store.faults = lambda call: Outcome.OK
    while world.store.late:
        world.store.deliver_late()
    run_all(world)
    found = at_rest(world)
    assert found["gcswriter_consumedmessages"][ONE] == 5
    assert found["gcswriter_publishbatchsize_sum"][ONE] == 5
    assert found["gcswriter_closedfilecount"][ONE] == 1
    assert found["bqwriter_submittedjobstobq"][ONE] == 1
    assert found["kbq_loaded_rows_total"] == {("shop.orders",): 5}
    assert found["kbq_log_to_ready_seconds_count"] == {("staged",): 0, ("loaded",): 0}  # no timestamps


def test_a_reset_reads_again_and_no_counter_falls(world: FakePlatform) -> None:
    world.produce(5)
    run_all(world)
    before = at_rest(world)
    propose_reset(world.store, world.kafka, "shop.orders.v1").apply()
    between = at_rest(world)
    run_all(world)
    after = at_rest(world)
    names = [name for name in before if name.startswith(("gcswriter", "bqwriter_s", "kbq_records"))]
    for name in (n for n in names if not n.startswith("bqwriter_stagingfiles")):
        for labels, value in before[name].items():
            assert value <= between[name][labels] <= after[name][labels], name
    assert after["gcswriter_consumedmessages"][ONE] == 10


def test_every_failed_job_counts_once(world: FakePlatform) -> None:
    errors = iter([TRANSIENT, TRANSIENT])
    world.warehouse.job_errors = lambda job: next(errors, None)
    world.produce(5)
    run_all(world)
    found = at_rest(world)
    assert found["bqwriter_failed_bqjobs"][ONE] == 2
    assert found["bqwriter_submittedjobstobq"][ONE] == 3
    assert found["kbq_loaded_rows_total"] == {("shop.orders",): 5}


def test_a_bad_file_is_one_failed_job_and_leaves_the_staging_area(world: FakePlatform) -> None:
    world.produce(5)
    process(world).extractor.extract()
    world.warehouse.bad_paths.update(entry.path for entry in world.store.list("staging/"))
    process(world).loader.load()
    found = at_rest(world)
    assert found["bqwriter_failed_bqjobs"][ONE] == 1
    assert found["bqwriter_stagingfilesdeleted"][ONE] == 1
    assert found["kbq_quarantined_files"] == {("shop.orders",): 1}
    propose_resume_table(world.store, TableReference("shop", "orders")).apply()
    assert at_rest(world)["kbq_quarantined_files"] == {("shop.orders",): 0}


def test_deleted_files_are_those_that_were_loaded_and_done_files_that_a_higher_one_replaces(
    world: FakePlatform,
) -> None:
    for _ in range(3):
        world.produce(2)
        run_all(world)
    process(world).operator.clean()
    found = at_rest(world)
    assert found["bqwriter_stagingfiles"][ONE] == 1  # the last done file
    assert found["bqwriter_stagingfilesdeleted"][ONE] == 3 + 2


def test_orphans_are_deleted_files_of_their_own_kind(world: FakePlatform) -> None:
    world.produce(2)
    process(world).extractor.extract()
    for name in ("a", "b"):
        world.store.create(f"staging/0-{name}/shop.orders.v1.0.shop.orders.1.0.avro", b"")
    process(world).operator.clean()
    found = at_rest(world)
    assert found["gcswriter_avrofilesdeletedcounter"][ONE] == 2
    assert found["bqwriter_stagingfilesdeleted"][ONE] == 0


def test_files_that_lost_their_swap_were_opened_and_not_closed(world: FakePlatform) -> None:
    world.produce(5)
    faster = world.reopened()

    def other_extraction() -> None:
        world.store.faults = lambda call: Outcome.OK
        faster.extractor.extract()

    world.store.faults = Script("swap", "commits/shop", before=other_extraction)
    process(world).extractor.extract()
    found = at_rest(world)
    assert (found["gcswriter_filecount"][ONE], found["gcswriter_closedfilecount"][ONE]) == (2, 1)


def test_a_run_that_cannot_be_recorded_is_no_failure(
    world: FakePlatform, caplog: pytest.LogCaptureFixture
) -> None:
    world.produce(5)

    def away(call: Call) -> Outcome:
        return Outcome.UNAVAILABLE if call.writes and call.target.startswith("metrics/") else Outcome.OK

    world.store.faults = away
    run_all(world)
    assert at_rest(world)["gcswriter_consumedmessages"][ONE] == 5
    assert "could not be recorded" in caplog.text


def test_an_idle_run_costs_one_swap(world: FakePlatform) -> None:
    world.produce(1)
    run_all(world)
    process(world).extractor.extract()  # drops what was loaded from the commit
    watched = Script("")
    world.store.faults = watched
    process(world).extractor.extract()
    assert [(c.operation, c.target) for c in watched.calls if c.writes] == [
        ("swap", "metrics/extraction.json")
    ]
