"""Readings of broker and runs: the age of unread records, live runs, and the cleanup after a dead run."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.extraction.units import Unit, UnitOutcome, WorkerProcess
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.observation.run_totals import RUNS, SignOfLife, WorkerUse, sign_path
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.names import BACKLOG, TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.extras.metrics.observe import AGES, FileCount, read_broker
from kbq_assets.pipelines.extraction.ports import Progress
from kbq_assets.pipelines.observation.run_log import SIGN_SECONDS, RunLog
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.commands import propose_park_table
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.extras.metrics.scrape import polled
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.platform import GOOD, TOPIC, UNKNOWN_SCHEMA, FakePlatform

TP = TopicPartition(TOPIC, 0)
ORDERS = TableReference("shop", "orders")
ONE = ()


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    return FakePlatform(tmp_path)


@pytest.mark.parametrize(
    ("age", "reported"),
    [(0, 0), (14, 0), (16, 15), (59, 30), (61, 60), (3_700, 3_600), (10_000_000, AGES[-1])],
)
def test_the_first_unread_record_is_at_least_as_old_as_is_reported(
    world: FakePlatform, age: int, reported: int
) -> None:
    now_ms = world.clock.now_ms()
    world.kafka.produce(TP, GOOD, timestamp=now_ms - 20_000_000_000)  # read already
    world.kafka.produce(TP, GOOD, timestamp=now_ms - age * 1000)
    world.kafka.produce(TP, GOOD, timestamp=now_ms)
    reading = read_broker(world.kafka, world.parts.deployment.sources.read(), {TP: 1}, now_ms)
    assert reading.ages == {TP: reported}


def test_nothing_is_asked_about_the_age_of_what_was_read(world: FakePlatform) -> None:
    world.produce(3)
    asked: list[str] = []

    def asks(call: Call) -> Outcome:
        asked.append(call.operation)
        return Outcome.OK

    world.kafka.faults = asks
    reading = read_broker(world.kafka.view("service"), world.parts.deployment.sources.read(), {TP: 3}, 0)
    assert (reading.ages, "offsets_for_time" in asked) == ({}, False)


def progress(units: int) -> Progress:
    return Progress(10, 5, 5, units=units, workers=(WorkerUse(2, 3.0, 100), WorkerUse(1, 1.0, 200)))


def test_a_run_that_reads_shows_its_units_and_workers_until_it_ends(world: FakePlatform) -> None:
    log = RunLog(world.store, world.clock)
    seen: list[Progress] = []
    watch = log.watching(seen.append)
    for units in (3, 2):
        watch(progress(units))
        world.clock.seconds += SIGN_SECONDS
    found = polled(world.parts)
    assert (found["kbq_running_extractions"][ONE], found["kbq_running_units"][ONE]) == (1, 2)
    assert found["kbq_worker_memory_bytes"] == {("1",): 100, ("2",): 200}
    assert found["kbq_worker_busy_seconds"] == {("1",): 3, ("2",): 1}
    assert found["kbq_worker_skew_ratio"] == {ONE: 1.5}
    assert seen == [progress(3), progress(2)]
    log.close()
    assert polled(world.parts)["kbq_running_extractions"] == {ONE: 0}
    assert [entry.path for entry in world.store.list(RUNS)] == []


def test_signs_of_life_are_seldom_and_none_is_given_with_nothing_to_read(world: FakePlatform) -> None:
    log = RunLog(world.store, world.clock)
    watch = log.watching(lambda progress: None)
    watch(progress(0))
    assert list(world.store.list(RUNS)) == []
    for units in (1, 2, 3):
        watch(progress(units))
    assert state.read(world.store, SignOfLife, sign_path(log.run)).value.units == 1


def test_a_killed_run_counts_for_a_minute_and_is_cleared_away_after_an_hour(world: FakePlatform) -> None:
    RunLog(world.store, world.clock).watching(lambda progress: None)(progress(4))
    assert polled(world.parts)["kbq_running_units"] == {ONE: 4}
    world.store.time_ms += 61_000
    assert polled(world.parts)["kbq_running_units"] == {ONE: 0}
    clean(world.store)
    assert len(list(world.store.list(RUNS))) == 1
    world.store.time_ms += 3_600_000
    clean(world.store)
    assert list(world.store.list(RUNS)) == []


def test_after_a_run_its_workers_are_shown(world: FakePlatform) -> None:
    world.produce(5)
    world.parts.extractor.extract()
    assert polled(world.parts)["kbq_worker_busy_seconds"] == {("1",): 0}


def test_a_worker_s_use_adds_up() -> None:
    unit = Unit(OffsetRange(TP, 0, 10), 1, TopicSettings())
    outcome = UnitOutcome(unit, seconds=1.5, process=WorkerProcess(memory_bytes=70))
    assert WorkerUse(1, 1.0, 90).with_outcome(outcome) == WorkerUse(2, 2.5, 90)


def park_orders(world: FakePlatform) -> None:
    """Park the table, which has one loaded row."""
    world.produce()
    world.parts.extractor.extract()
    world.parts.loader.load()
    propose_park_table(world.store, ORDERS).apply()


def test_what_a_parked_table_keeps_waiting_grows_old(world: FakePlatform) -> None:
    """Extractions move its files out of the commit, to its backlog: they wait all the same."""
    park_orders(world)
    for _ in range(7):
        world.kafka.produce(TP, GOOD, timestamp=world.store.now_ms())
    for _ in range(2):
        world.parts.extractor.extract()
        world.store.time_ms += 3_600_000
    assert list(world.store.list(BACKLOG))
    found = polled(world.parts)
    assert found["kbq_backlog_rows"] == {(str(ORDERS),): 7}
    assert found["kbq_oldest_window_age_seconds"][(str(ORDERS),)] == pytest.approx(7_200, abs=1)


def test_what_waits_for_a_person_needs_no_run(world: FakePlatform) -> None:
    world.produce()
    world.parts.extractor.extract()
    world.parts.loader.load()
    world.produce(3)
    world.produce(2, partition=1)
    found = polled(world.parts)
    assert (found["kbq_extractable_records"][ONE], found["kbq_loadable_rows"][ONE]) == (5, 0)
    world.parts.extractor.extract()
    assert polled(world.parts)["kbq_loadable_rows"][ONE] == 5
    world.produce(1, value=UNKNOWN_SCHEMA)
    world.parts.extractor.extract()
    world.produce(2)
    propose_park_table(world.store, ORDERS).apply()
    found = polled(world.parts)
    assert (found["kbq_extractable_records"][ONE], found["kbq_loadable_rows"][ONE]) == (0, 0)
    assert (found["kbq_lag_records"][TOPIC,], found["kbq_backlog_rows"]["shop.orders",]) == (3, 5)
    world.produce(4, partition=1)
    assert polled(world.parts)["kbq_extractable_records"][ONE] == 4


def test_rows_that_wait_for_an_order_need_no_run(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders order=offset\n")
    world.produce()
    world.parts.extractor.extract()
    world.parts.loader.load()
    entry = AuditEntry(7, "", 0, "by hand", "me")
    decide(world.store, ORDERS, lambda now: transitions.hold(now, entry))
    world.produce(3)
    world.parts.extractor.extract()
    found = polled(world.parts)
    assert (found["kbq_loadable_rows"][ONE], found["kbq_backlog_rows"]["shop.orders",]) == (0, 3)
    decide(world.store, ORDERS, lambda now: transitions.release(now, entry))
    assert polled(world.parts)["kbq_loadable_rows"][ONE] == 3


def test_rows_that_wait_for_a_quota_need_no_run(world: FakePlatform) -> None:
    world.warehouse.limits = LoadLimits(jobs_per_day=1)
    world.produce()
    world.parts.extractor.extract()
    world.parts.loader.load()
    world.produce(3)
    world.parts.extractor.extract()
    found = polled(world.parts)
    assert (found["kbq_loadable_rows"][ONE], found["kbq_backlog_rows"]["shop.orders",]) == (0, 3)
    world.store.time_ms += 25 * 3_600_000
    assert polled(world.parts)["kbq_loadable_rows"][ONE] == 3


def test_the_job_that_a_killed_load_left_in_flight_needs_a_run(world: FakePlatform) -> None:
    world.produce(3)
    world.parts.extractor.extract()
    world.warehouse.auto_run = False
    world.parts.loader.load()
    assert polled(world.parts)["kbq_loadable_rows"][ONE] == 3


def test_a_table_whose_backlog_cannot_be_read_has_no_age_and_hides_no_other(world: FakePlatform) -> None:
    park_orders(world)
    world.produce(7)
    for _ in range(2):
        world.parts.extractor.extract()
    assert polled(world.reopened())["kbq_oldest_window_age_seconds"] == {(str(ORDERS),): 0}
    for chunk in list(world.store.list(BACKLOG)):
        world.store.swap(chunk.path, b"{", chunk.generation)
    found = polled(world.parts)
    assert found["kbq_up"][("store",)] == 1
    assert "kbq_oldest_window_age_seconds" not in found


def test_files_are_listed_once_a_minute_at_most(world: FakePlatform) -> None:
    count = FileCount(world.store, world.clock)
    world.produce(1)
    world.parts.extractor.extract()
    assert count.now() == (1, 1)
    world.parts.loader.load()
    assert count.now() == (1, 1)
    world.clock.seconds += 60
    assert count.now() == (0, 1)
