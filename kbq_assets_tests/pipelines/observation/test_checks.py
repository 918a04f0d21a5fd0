"""All checks in one pass: failures are reported with their commands, and whatever could not be read is not judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from kbq_assets.core.errors import MissingState
from kbq_assets.core.observation.check_names import (
    BACKUPS_RUN,
    BATCHES_APPLY,
    CHECKS,
    COMMITS_SMALL,
    CONTIGUOUS,
    COUNTS_AGREE,
    DATA_FRESH,
    ERRORS_FEW,
    LAG_SHORT,
    PARTITIONS_RUN,
    QUOTA_LEFT,
    REPLAYS_END,
    ROWS_MATCH,
    TABLES_LOAD,
)
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TOPIC_REGISTRY, TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.observation.checks import NEED_BROKER, CheckPorts, CheckReport, run_checks
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.platform import POISON, TOPIC, UNKNOWN_SCHEMA, FakePlatform
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import TOPIC as EVENTS
from kbq_assets_tests.pipelines.bench import A, B, Bench

ORDERS = TableReference("shop", "orders")
COMMIT = f"commits/{TOPIC}.json"


@pytest.fixture
def world(tmp_path: Path) -> FakePlatform:
    """A topic of two partitions: three records, and a bad one, extracted and loaded."""
    made = FakePlatform(tmp_path)
    made.produce(3)
    made.produce(value=POISON)
    made.parts.extractor.extract()
    made.parts.loader.load()
    return made


def _failed(report: CheckReport) -> set[tuple[str, str]]:
    return {(result.check, result.subject) for result in report.failures}


def _message(world: FakePlatform, check: str) -> str:
    [result] = [result for result in world.parts.observer.checks().failures if result.check == check]
    return result.line


def test_where_all_is_well_every_check_passes(world: FakePlatform) -> None:
    report = world.parts.observer.checks(queries=True)
    of_runs = (CONTIGUOUS, PARTITIONS_RUN, BACKUPS_RUN, ERRORS_FEW, LAG_SHORT)
    of_topics = (*of_runs, COMMITS_SMALL, REPLAYS_END, DATA_FRESH)
    subjects = {
        **{name: {TOPIC} for name in of_topics},
        **{name: {"shop.orders", "shop.kbq_errors"} for name in (ROWS_MATCH, TABLES_LOAD, QUOTA_LEFT)},
        COUNTS_AGREE: {"all tables"},
        BATCHES_APPLY: set(),
    }
    assert report.failures == ()
    assert {name: {result.subject for result in report.of(name)} for name in CHECKS} == subjects


def test_checks_change_nothing(world: FakePlatform) -> None:
    before = world.objects()
    world.produce(3)
    world.parts.observer.checks()
    assert world.objects() == before


def test_a_stopped_partition_and_a_parked_table_are_failed_checks_with_their_commands(
    world: FakePlatform,
) -> None:
    world.produce(value=UNKNOWN_SCHEMA)
    world.parts.extractor.extract()
    operate.propose_park_table(world.store, ORDERS).apply()
    assert "unknown_schema" in _message(world, PARTITIONS_RUN)
    assert f"next: `kbq resume --topic {TOPIC} --partition 0`" in _message(world, PARTITIONS_RUN)
    assert _message(world, TABLES_LOAD) == (
        "shop.orders: it is parked: operator: held by kbq park; next: `kbq resume --table shop.orders`"
    )


@pytest.mark.parametrize("damage", ["unreadable", "missing"])
def test_a_topic_that_cannot_be_read_is_stopped_as_an_extraction_would_say(
    world: FakePlatform, damage: str
) -> None:
    if damage == "missing":
        world.store.delete(COMMIT)
    else:
        world.store.swap(COMMIT, b"{", world.store.get(COMMIT).generation)
    [result] = [r for r in world.parts.observer.checks().failures if r.check == PARTITIONS_RUN]
    [stop] = world.parts.extractor.plan().stops
    assert result.commands == stop.commands
    assert result.message == f"all of it: {stop.reason}: {stop.message}"


def test_done_files_without_a_commit_stop_a_topic_here_too(tmp_path: Path) -> None:
    world = FakePlatform(tmp_path)
    world.store.create(f"done/{TOPIC}.0.shop.orders.1.0.4.done", b"")
    assert f"kbq bootstrap --topic {TOPIC} --from-done-files" in _message(world, PARTITIONS_RUN)


def test_a_table_whose_state_is_gone_fails_alone(world: FakePlatform) -> None:
    world.store.delete(table_state_path(ORDERS))
    report = world.parts.observer.checks()
    assert (TABLES_LOAD, "shop.orders") in _failed(report)
    assert (TABLES_LOAD, "shop.kbq_errors") not in _failed(report)
    assert not any(check == ROWS_MATCH for check, _ in _failed(report))


def test_without_the_broker_the_rest_is_still_checked(world: FakePlatform) -> None:
    operate.propose_park_table(world.store, ORDERS).apply()
    world.kafka.down = True
    report = world.parts.observer.checks()
    assert _failed(report) == {(TABLES_LOAD, "shop.orders")}
    assert set(report.unknown) == set(NEED_BROKER)
    assert not {result.check for result in report.results} & set(NEED_BROKER)


def test_a_registry_that_is_missing_is_an_error_not_a_pass(world: FakePlatform) -> None:
    world.store.delete(TOPIC_REGISTRY)
    with pytest.raises(MissingState):
        world.parts.observer.checks()


# Rows


def test_a_file_that_vanished_from_the_commit_is_missing_from_its_table(world: FakePlatform) -> None:
    world.produce(2)
    world.parts.extractor.extract()
    assert world.parts.observer.checks().failures == ()
    state.change(world.store, Commit, COMMIT, lambda c: commits.prune(c, lambda file: file.table == ORDERS))
    report = world.parts.observer.checks()
    assert _failed(report) == {(ROWS_MATCH, "shop.orders")}
    [result] = report.failures
    assert result.message == f"{TOPIC}[0]: 3 rows loaded, 0 to load, 0 quarantined, but 5 were committed"


def test_rows_in_quarantine_fail_until_an_operator_accepts_their_loss(world: FakePlatform) -> None:
    world.produce(2)
    world.parts.extractor.extract()
    world.warehouse.bad_paths.update(entry.path for entry in world.store.list("staging/"))
    world.parts.loader.load()
    [result] = world.parts.observer.checks().failures
    assert (result.check, result.subject) == (ROWS_MATCH, "shop.orders")
    assert "2 rows of 1 file in quarantine: invalid: " in result.message
    assert result.commands == ("kbq quarantine list --table shop.orders", "kbq resume --table shop.orders")
    world.parts.operator.resume_table(ORDERS).apply()
    assert world.parts.observer.checks().failures == ()


def test_a_table_that_is_loaded_while_the_state_is_read_is_not_called_wrong() -> None:
    bench = Bench()
    bench.produce(1, 3)
    bench.extract()
    bench.load()
    bench.produce(1, 3)
    bench.extract()

    def settle_and_prune() -> None:
        bench.load()
        bench.extract()

    # Between states and commits: the old state does not cover what the new commit has dropped.
    bench.faults = Script("list", "commits/", before=settle_and_prune)
    report = _checked(bench, bench.store.view("checks"))
    assert bench.faults.nth <= 0
    assert report.failures == ()


def _checked(bench: Bench, store: object = None) -> CheckReport:
    cache = StateCache(store or bench.store)  # type: ignore[arg-type]
    source = [SourceEntry(EVENTS, bench.settings)]
    return run_checks(CheckPorts(cache, LoadBlocks(), lambda: bench.kafka, source, lambda: 1000))


def test_parked_rows_in_a_backlog_are_not_missing() -> None:
    bench = Bench()
    bench.produce(1, 3)
    bench.extract()
    bench.load()
    operate.propose_park_table(bench.store, A).apply()
    bench.produce(1, 1, 3)
    bench.extract()
    bench.extract()
    assert bench.paths("backlog/")
    assert _failed(_checked(bench)) == {(TABLES_LOAD, str(A))}


def test_rows_that_a_reset_gave_up_are_not_missing() -> None:
    bench = Bench(partitions=2)
    for partition in (0, 1):
        bench.produce(1, 3, partition=partition)
    bench.extract()
    reset = operate.propose_reset(bench.store, bench.kafka, EVENTS, partition=0, give_up_pending=True)
    reset.apply()
    assert _failed(_checked(bench)) == set()
    bench.extract()
    bench.load()
    assert _failed(_checked(bench)) == set()
    assert len(bench.offsets(B)) == 1


# Lag and freshness


def _timed(world: FakePlatform, *ages: int, partition: int = 0) -> None:
    """Produce a record per age in seconds."""
    for age in ages:
        at = world.clock.now_ms() - age * 1000
        world.kafka.produce(TopicPartition(TOPIC, partition), b"\x00\x00\x00\x00\x01\x02", timestamp=at)


@pytest.fixture
def timed(tmp_path: Path) -> FakePlatform:
    """A topic with thresholds of 60 s unread, 600 s on the way and 5 records unread."""
    options = "max_lag_seconds=60 max_age_seconds=600 max_lag_records=5"
    return FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders {options}\n")


@pytest.mark.parametrize(
    ("ages", "failed"),
    [
        ((), set()),
        ((59,), set()),
        ((61, 1), {LAG_SHORT}),
        ((601,), {LAG_SHORT, DATA_FRESH}),
        ((1,) * 6, {LAG_SHORT}),
    ],
)
def test_unread_records_are_late_by_number_or_by_age(
    timed: FakePlatform, ages: Iterable[int], failed: set[str]
) -> None:
    _timed(timed, *ages)
    assert _failed(timed.parts.observer.checks()) == {(check, TOPIC) for check in failed}


def test_a_threshold_of_zero_is_none(tmp_path: Path) -> None:
    options = "max_lag_seconds=0 max_age_seconds=0 max_lag_records=0"
    world = FakePlatform(tmp_path, sources=f"{TOPIC} dataset=shop table=orders {options}\n")
    _timed(world, 10**6)
    assert world.parts.observer.checks().failures == ()
    world.parts.extractor.extract()
    assert world.parts.observer.checks().failures == ()


def test_a_topic_without_new_records_is_fresh_however_long_ago_the_last_was(timed: FakePlatform) -> None:
    _timed(timed, 50)
    timed.parts.extractor.extract()
    timed.parts.loader.load()
    timed.clock.sleep(1e6)
    assert timed.parts.observer.checks().failures == ()


def test_records_that_are_read_and_not_loaded_grow_stale(timed: FakePlatform) -> None:
    _timed(timed, 50)
    timed.parts.extractor.extract()
    timed.clock.sleep(549)
    assert timed.parts.observer.checks().failures == ()
    timed.clock.sleep(2)
    assert _failed(timed.parts.observer.checks()) == {(DATA_FRESH, TOPIC)}
    assert "records have waited to be loaded for up to 601 s" in _message(timed, DATA_FRESH)


def test_a_partition_that_was_never_read_counts_from_its_beginning(timed: FakePlatform) -> None:
    _timed(timed, 1)
    timed.parts.extractor.extract()
    timed.kafka.add_partitions(TOPIC, 3)
    _timed(timed, 70, partition=2)
    assert "records of partition [2] have been unread for more than 60 s" in _message(timed, LAG_SHORT)


def test_records_behind_an_open_transaction_are_late_too(timed: FakePlatform) -> None:
    _timed(timed, 1)
    timed.kafka.begin_transaction(TopicPartition(TOPIC, 0))
    _timed(timed, 59)
    timed.parts.extractor.extract()
    timed.parts.loader.load()
    assert _failed(timed.parts.observer.checks()) == set()
    timed.clock.sleep(2)
    said = (
        "a transaction of partition [0] has been open for more than 60 s: the records after it cannot be read"
    )
    assert said in _message(timed, LAG_SHORT)
    timed.kafka.end_transaction(TopicPartition(TOPIC, 0), commit=True)
    timed.parts.extractor.extract()
    timed.parts.loader.load()
    assert _failed(timed.parts.observer.checks()) == set()


# Cost


def _calls(partitions: int) -> tuple[Counter[str], Counter[str]]:
    """Operations of a check with a cold cache, and of the next."""
    bench = Bench(partitions=partitions)
    for partition in range(partitions):
        bench.produce(1, 3, partition=partition)
    bench.extract()
    bench.load()
    bench.faults = script = Script("")
    cache, kafka = StateCache(bench.store.view("checks")), bench.kafka.view("checks")
    sources = [SourceEntry(EVENTS, bench.settings)]
    ports = CheckPorts(cache, LoadBlocks(), lambda: kafka, sources, lambda: 1000)
    counted = []
    for _ in range(2):
        script.calls.clear()
        run_checks(ports)
        counted.append(Counter(call.operation for call in script.calls))
    return counted[0], counted[1]


def test_a_check_of_many_partitions_asks_as_often_as_one_of_few() -> None:
    few, many = _calls(1), _calls(16)
    assert few == many
    assert few[1]["get"] == 1, "why the last load failed; nothing else has changed"
