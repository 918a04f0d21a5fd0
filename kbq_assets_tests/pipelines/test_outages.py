"""An object that the store does not give or take now fails its own topic or table, for one run; a store that is silent
for all of them costs a run a few calls, however many topics it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from unittest.mock import patch

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference, commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.extraction import recovery
from kbq_assets.pipelines.extraction.plan import plan
from kbq_assets.pipelines.extraction.ports import ExtractionReport
from kbq_assets.pipelines.observation.pending import has_work
from kbq_assets.pipelines.operate.commands import propose_park_table, propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.outages import SILENT_CALLS
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import SETTINGS, TOPIC, Bench
from kbq_assets_tests.pipelines.test_refusals import BAD, GOOD, SOURCES, Topics, topics

BAD_TP = TopicPartition(BAD, 0)


def silence(bench: Topics, operation: str, path: str, outcome: Outcome = Outcome.UNAVAILABLE) -> None:
    bench.faults = lambda call: outcome if call.operation == operation and path in call.target else Outcome.OK


def only_failure(report: ExtractionReport) -> str:
    """What a run says of the partition that failed alone."""
    [(tp, message)] = report.failures.items()
    assert (tp, report.stops) == (BAD_TP, ())
    return message


def test_a_commit_that_cannot_be_read_now_fails_its_topic_alone() -> None:
    bench = topics()
    silence(bench, "get", "commits/t0.json")
    assert only_failure(bench.run()).startswith("get commits/t0.json: no answer")
    assert (bench.position(BAD), bench.position(GOOD)) == (1, 2)
    bench.assert_whole_again()


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.LOST_REPLY])
def test_a_commit_that_cannot_be_created_now_fails_its_topic_alone(outcome: Outcome) -> None:
    bench = Topics().with_topics()
    silence(bench, "create", "commits/t0.json", outcome)
    assert only_failure(bench.run()).startswith("its commit is not written: create commits/t0.json")
    assert bench.position(GOOD) == 1
    bench.one_more()
    bench.assert_whole_again()


def test_a_new_partition_that_cannot_be_added_now_fails_alone() -> None:
    bench = topics()
    bench.run()
    bench.kafka.add_partitions(BAD, 2)
    bench.one_more()
    silence(bench, "swap", "commits/t0.json")
    report = bench.run()
    assert {tp.topic for tp in report.failures} == {BAD}
    assert report.failures[TopicPartition(BAD, 1)].startswith("its commit is not written: ")
    assert bench.position(GOOD) == 3


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.REFUSED])
def test_a_registry_that_cannot_be_written_fails_new_topics_alone(outcome: Outcome) -> None:
    bench = topics()
    bench.kafka.create_topic("new", 1)
    bench.one_more()
    silence(bench, "swap", "commits/_topics.json", outcome)
    report = bench.run()
    troubled = {tp.topic for tp in (*report.failures, *(stop.topic_partition for stop in report.stops))}
    assert troubled == {"new"}
    assert (bench.position(BAD), bench.position(GOOD)) == (3, 3)
    bench.allow()
    assert [*bench.run().partitions] != []
    assert bench.position("new") == 1


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.REFUSED, Outcome.CRASH_BEFORE])
@pytest.mark.parametrize("shard", [0, 1])
def test_a_topic_that_starts_at_latest_does_so_in_each_partition_although_a_commit_was_not_created(
    shard: int, outcome: Outcome
) -> None:
    bench = Bench(settings=SETTINGS.with_options(start="latest"), partitions=65)
    for partition in (0, 64):
        bench.produce(1, 1, partition=partition)
    bench.faults = Script("create", commit_path(TOPIC, shard), outcome)
    with suppress(Crash):
        report = bench.extract()
        assert {tp.topic for tp in (*report.failures, *(s.topic_partition for s in report.stops))} == {TOPIC}
    assert bench.extract().totals.records == 0
    bench.produce(1, partition=64)
    assert bench.extract().totals.records == 1
    bench.kafka.add_partitions(TOPIC, 129)
    bench.produce(1, 1, partition=128)
    bench.faults = Script("create", commit_path(TOPIC, 2), Outcome.UNAVAILABLE)
    bench.extract()
    assert bench.extract().totals.records == 2, "new partitions of a known topic lose nothing"


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.CRASH_BEFORE])
def test_a_creation_that_was_interrupted_is_completed_so_a_lost_commit_is_missed(outcome: Outcome) -> None:
    bench = Topics().with_topics()
    bench.faults = Script("swap", "commits/_topics.json", outcome, nth=2)
    with suppress(Crash):
        bench.run()
    bench.allow()
    bench.run()
    assert state.topic_registry(bench.store).topics[BAD] == TopicEntry(active=(0,))
    bench.load()
    bench.store.delete("commits/t0.json")
    [stop] = bench.run().stops
    assert (stop.topic_partition.topic, stop.reason) == (BAD, StopReason.COMMIT_MISSING)


def test_an_interrupted_creation_is_completed_although_nothing_is_to_read() -> None:
    bench = Topics()
    bench.kafka.delete_topic("shop.events")
    bench.kafka.create_topic(BAD, 1)
    bench.faults = Script("swap", "commits/_topics.json", Outcome.UNAVAILABLE, nth=2)
    bench.run()
    bench.allow()
    planned = plan(bench.store, bench.kafka, SOURCES)
    assert (planned.announced, has_work(planned)) == (((BAD, 0),), True)
    bench.run()
    assert not has_work(plan(bench.store, bench.kafka, SOURCES))


def test_a_topic_whose_done_files_cannot_be_listed_now_fails_alone() -> None:
    bench = Topics().with_topics()
    silence(bench, "list", "done/t0.")
    assert only_failure(bench.run()).startswith("list done/t0.")
    assert bench.position(GOOD) == 1
    bench.one_more()
    bench.assert_whole_again()


def test_a_tables_state_that_cannot_be_read_now_holds_up_no_extraction() -> None:
    bench = topics()
    silence(bench, "get", "tables/d.t0.json")
    report = bench.run()
    assert (report.failures, bench.position(BAD), bench.position(GOOD)) == ({}, 2, 2)
    bench.assert_whole_again()


@pytest.mark.parametrize("path", ["commits/t0.json", "commits/_topics.json", "tables/_tables.json"])
def test_a_commit_that_cannot_be_read_to_prune_it_is_read_to_plan(path: str) -> None:
    bench = topics()
    bench.faults = Script("get", path, Outcome.UNAVAILABLE)
    assert (bench.run().failures, bench.position(BAD), bench.position(GOOD)) == ({}, 2, 2)
    bench.assert_whole_again()


def test_a_store_that_falls_silent_costs_a_run_a_few_calls() -> None:
    bench = topics(40)
    asked: list[Call] = []

    def fault(call: Call) -> Outcome:
        """Only the registries are still read."""
        if call.operation not in ("get", "swap", "create", "list", "close") or "/_" in call.target:
            return Outcome.OK
        asked.append(call)
        return Outcome.UNAVAILABLE

    bench.faults = fault
    report = bench.run()
    assert len(report.failures) == 40
    assert report.cause.partition(": ")[2].startswith("the store does not answer: get commits/")
    assert len(asked) == 2 * SILENT_CALLS, "once to prune, and once to plan"


@pytest.mark.parametrize(
    ("registry", "run"),
    [
        ("commits/_topics.json", Topics.run),
        ("commits/_topics.json", Topics.load),
        ("tables/_tables.json", Topics.load),
    ],
)
def test_a_registry_that_cannot_be_read_now_ends_a_run_and_says_why(
    registry: str, run: Callable[[Topics], object]
) -> None:
    """Which objects must exist is not known, so nothing can be done."""
    bench = topics()
    silence(bench, "get", registry)
    with pytest.raises(Unavailable, match=f"no answer; without {registry}, a lost object would look like a"):
        run(bench)
    bench.allow()
    bench.run()
    bench.assert_whole_again()


def test_a_store_that_answers_nothing_costs_a_run_two_calls() -> None:
    bench = topics(40)
    asked: list[Call] = []

    def fault(call: Call) -> Outcome:
        asked.append(call)
        return Outcome.UNAVAILABLE

    bench.faults = fault
    with pytest.raises(Unavailable, match=r"get commits/_topics.json"):
        bench.run()
    assert len(asked) == 2


def test_a_store_that_falls_silent_while_tasks_end_costs_a_run_a_few_calls() -> None:
    bench = topics(40)
    asked: list[Call] = []
    closes = 0

    def fault(call: Call) -> Outcome:
        """The store is silent to the driver from the 40th staged file on; tasks share one read of each commit."""
        nonlocal closes
        closes += call.operation == "close"
        if closes >= 40 and call.operation in ("get", "swap", "create", "list"):
            asked.append(call)
            return Outcome.UNAVAILABLE
        return Outcome.OK

    bench.faults = fault
    report = bench.run()
    assert len(report.failures) == 40
    assert report.cause.partition(": ")[2].startswith("not published: the store does not answer: ")
    assert len(asked) == SILENT_CALLS
    bench.assert_whole_again()


def test_a_backup_whose_commit_cannot_be_read_now_fails_alone() -> None:
    bench = Topics().with_topics()
    sources = (SourceEntry("*", TopicSettings.of(dataset="d", table="{topic}", backup="true")),)
    bench.extract(sources=sources)
    bench.one_more()
    bench.faults = lambda call: (
        Outcome.UNAVAILABLE
        if (call.process, call.operation) == ("backup", "get") and "commits/t0.json" in call.target
        else Outcome.OK
    )
    report = bench.extract(sources=sources)
    assert (report.failures, bench.position(BAD), bench.position(GOOD)) == ({}, 2, 2)
    assert ([*report.backup.failures], report.backup.stops) == ([BAD_TP], ())
    assert [*report.backup.windows] == [TopicPartition(GOOD, 0)]
    bench.allow()
    assert [*bench.extract(sources=sources).backup.windows] == [BAD_TP]


@pytest.mark.parametrize("outcome", [Outcome.UNAVAILABLE, Outcome.REFUSED])
@pytest.mark.parametrize("backup", ["true", "only"])
def test_a_backup_whose_commit_cannot_be_created_fails_alone(outcome: Outcome, backup: str) -> None:
    bench = Topics().with_topics()
    sources = (SourceEntry("*", TopicSettings.of(dataset="d", table="{topic}", backup=backup)),)
    bench.faults = lambda call: (
        outcome
        if (call.process, call.operation) == ("backup", "create") and "commits/t0.json" in call.target
        else Outcome.OK
    )
    report = bench.extract(sources=sources)
    stops = [stop.topic_partition.topic for stop in report.backup.stops]
    failed = [tp.topic for tp in report.backup.failures]
    assert (failed, stops) == (([BAD], []) if outcome is Outcome.UNAVAILABLE else ([], [BAD]))
    assert [*report.backup.windows] == [TopicPartition(GOOD, 0)]
    assert (report.failures, report.stops, len(report.partitions)) == ({}, (), 2 * (backup == "true"))
    bench.allow()
    assert [*bench.extract(sources=sources).backup.windows] == [BAD_TP]


def test_a_table_fails_alone_while_its_state_cannot_be_read() -> None:
    bench = topics()
    bench.run()
    silence(bench, "get", "tables/d.t0.json")
    [failed] = [table for table in bench.load().tables if table.state == "failed"]
    assert (failed.table, failed.transient) == (TableReference("d", BAD), True)
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    bench.assert_whole_again()


def test_a_commit_that_a_load_cannot_read_now_waits_alone_for_the_next_load() -> None:
    bench = topics()
    bench.run()
    silence(bench, "get", "commits/t0.json")
    report = bench.load()
    assert [*report.unavailable] == ["commits/t0.json"]
    assert report.unavailable == report.unread
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    bench.assert_whole_again()


@pytest.mark.parametrize("path", ["commits/t0.json", "tables/d.t0.json"])
@pytest.mark.parametrize("batches", [1, 5])
def test_an_object_that_a_load_cannot_read_is_asked_for_once_however_many_batches_follow(
    path: str, batches: int
) -> None:
    bench = topics()
    for _ in range(batches):
        bench.run()
        bench.one_more()
    bench.warehouse.limits = dataclasses.replace(bench.warehouse.limits, files=1)
    asked: list[Call] = []

    def fault(call: Call) -> Outcome:
        if (call.operation, call.target) != ("get", path):
            return Outcome.OK
        asked.append(call)
        bench.clock.sleep(30)
        return Outcome.UNAVAILABLE

    bench.faults = fault
    [loaded] = [table for table in bench.load().tables if table.table.table == GOOD]
    assert (len(loaded.jobs), len(asked)) == (batches, 1)


def test_a_commit_that_falls_silent_during_a_load_is_named_even_if_it_answers_again() -> None:
    bench = topics()
    bench.run()
    bench.faults = Script("get", "commits/t0.json", Outcome.UNAVAILABLE)
    assert [*bench.load().unavailable] == ["commits/t0.json"]
    assert bench.rows(GOOD) == 2
    bench.assert_whole_again()


def test_a_backlog_waits_while_the_load_cannot_read_its_commit() -> None:
    """Others may move files from the commit to the backlog meanwhile (L1)."""
    bench = topics()
    table = TableReference("d", BAD)
    propose_park_table(bench.store, table).apply()
    with patch.object(recovery, "PATIENCE", 0):
        bench.run()
        bench.run()
    assert len(bench.paths("backlog/")) == 1
    propose_resume_table(bench.store, table).apply()
    silence(bench, "get", "commits/t0.json")
    bench.load()
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    bench.assert_whole_again()


def test_hours_are_not_complete_while_the_commit_of_a_topic_cannot_be_read() -> None:
    bench = topics()
    bench.run()
    silence(bench, "get", "commits/t0.json")
    verdicts = bench.load().verdicts
    assert "commits/t0.json" in verdicts[TableReference("d", BAD)].why


def test_a_store_that_is_silent_for_all_commits_costs_a_load_a_few_calls() -> None:
    bench = topics(40)
    bench.run()
    asked: list[Call] = []

    def fault(call: Call) -> Outcome:
        """Only listings and registries are still read."""
        if call.operation != "get" or "/_" in call.target:
            return Outcome.OK
        asked.append(call)
        return Outcome.UNAVAILABLE

    bench.faults = fault
    assert len(bench.load().unavailable) == 40
    assert len(asked) == 2 * SILENT_CALLS, "once for the states, and once for the commits"
    bench.assert_whole_again()


def test_a_store_that_falls_silent_costs_a_load_a_few_calls() -> None:
    bench = topics(40)
    bench.run()
    asked: list[Call] = []

    def fault(call: Call) -> Outcome:
        """The store falls silent after the view was read, when the first job is to be written into a state."""
        if call.operation == "swap" or (asked and call.operation in ("get", "create", "list", "checksums")):
            asked.append(call)
            return Outcome.UNAVAILABLE
        return Outcome.OK

    bench.faults = fault
    report = bench.load()
    assert {(table.state, table.transient) for table in report.tables} == {("failed", True)}
    assert len(asked) <= 2 * SILENT_CALLS
    bench.assert_whole_again()
