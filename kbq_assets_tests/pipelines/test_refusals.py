"""An object that the store refuses fails its own topic or table; a store that refuses all of them ends the run at
once."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.observation.check_names import TABLES_LOAD
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.extraction import recovery
from kbq_assets.pipelines.extraction.ports import ExtractionReport
from kbq_assets.pipelines.loading.load import plan
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.observation import status
from kbq_assets.pipelines.observation.checks import CheckPorts, run_checks
from kbq_assets.pipelines.operate.clean import clean
from kbq_assets.pipelines.operate.commands import propose_park_table, propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.refusals import MANY
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.pipelines.bench import Bench, value
from kbq_assets_tests.sizes import thinned

SOURCES = (SourceEntry("*", TopicSettings.of(dataset="d", table="{topic}")),)
BAD, GOOD = "t0", "t1"


class Topics(Bench):
    """Topics of one partition, each with its own table."""

    def with_topics(self, number: int = 2) -> Topics:
        self.kafka.delete_topic("shop.events")
        for n in range(number):
            self.kafka.create_topic(f"t{n}", 1)
        return self.one_more()

    def one_more(self) -> Topics:
        for topic in self.kafka.topics_by_name:
            self.kafka.produce(TopicPartition(topic, 0), value(1), key=b"k")
        return self

    def run(self) -> ExtractionReport:
        return self.extract(sources=SOURCES)

    def refuse(self, *operations: str, path: str) -> None:
        def fault(call: Call) -> Outcome:
            refused = call.operation in operations and path in call.target
            return Outcome.REFUSED if refused else Outcome.OK

        self.faults = fault

    def allow(self) -> None:
        self.faults = lambda call: Outcome.OK

    def position(self, topic: str) -> int:
        return state.read(self.store, Commit, f"commits/{topic}.json").value.partitions[0].next

    def rows(self, topic: str) -> int:
        return len(self.warehouse.rows(TableReference("d", topic)))

    def assert_whole_again(self) -> None:
        """Once the store refuses nothing, runs do the rest."""
        self.allow()
        self.store.time_ms += 60_000
        assert not self.run().stops
        self.run()
        self.load()
        self.run()
        clean(self.store)
        number = len(self.kafka.topics_by_name)
        assert [self.rows(f"t{n}") for n in range(number)] == [2] * number
        assert self.paths("staging/") == []


def topics(number: int = 2) -> Topics:
    """Topics that were read and loaded once, and have one more record."""
    bench = Topics().with_topics(number)
    bench.run()
    bench.load()
    return bench.one_more()


def only_stop(report: ExtractionReport) -> tuple[str, str]:
    """What a run says of the topic that it stopped for."""
    [stop] = report.stops
    assert stop.topic_partition.topic == BAD
    return stop.message, stop.commands[0]


@pytest.mark.parametrize("operation", ["get", "swap"])
def test_a_commit_that_is_refused_stops_its_topic_alone(operation: str) -> None:
    bench = topics()
    bench.refuse(operation, path="commits/t0.json")
    message, step = only_stop(bench.run())
    assert (f"{operation} commits/t0.json: 403" in message, step) == (
        True,
        f"grant {operation} on commits/t0.json",
    )
    assert bench.position(GOOD) == 2
    bench.load()
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    bench.assert_whole_again()


def test_a_commit_that_cannot_be_created_stops_its_topic_alone() -> None:
    bench = Topics().with_topics()
    bench.refuse("create", path="commits/t0.json")
    message, _ = only_stop(bench.run())
    assert message == "its commit is not written: create commits/t0.json: 403"
    assert bench.position(GOOD) == 1
    bench.allow()
    bench.run()
    assert bench.position(BAD) == 1


def test_a_done_file_that_is_refused_holds_back_no_row() -> None:
    bench = topics()
    bench.refuse("create", path="done/t0.")
    for _ in range(2):
        report = bench.run()
        assert "lacks done files: create done/t0.0." in only_stop(report)[0]
        assert report.failures == {}
    bench.load()
    assert (bench.rows(BAD), bench.rows(GOOD)) == (2, 2)
    bench.assert_whole_again()


def test_a_staged_file_that_is_refused_stops_its_partition_alone() -> None:
    bench = topics()
    bench.refuse("close", path="/t0.0.")
    message, _ = only_stop(bench.run())
    assert "grant close on staging/" in message
    assert (bench.position(BAD), bench.position(GOOD)) == (1, 2)
    bench.assert_whole_again()


@pytest.mark.parametrize("operation", ["get", "swap"])
def test_a_tables_state_that_is_refused_fails_its_table_alone(operation: str) -> None:
    bench = topics()
    bench.run()
    bench.refuse(operation, path="tables/d.t0.json")
    [failed] = [table for table in bench.load().tables if table.state == "failed"]
    assert (failed.table.table, failed.transient) == (BAD, False)
    assert f"next: grant {operation} on tables/d.t0.json" in failed.message
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    if operation == "get":
        assert not bench.run().stops, "an extraction needs no state of that table"
    bench.assert_whole_again()


def test_a_commit_that_is_refused_to_the_loader_is_reported_and_others_are_loaded() -> None:
    bench = topics()
    bench.run()
    bench.refuse("get", path="commits/t0.json")
    report = bench.load()
    assert [*report.refused] == ["commits/t0.json"]
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    bench.assert_whole_again()


def test_a_backlog_waits_while_its_commit_is_refused_to_the_loader() -> None:
    """Others may move files from the commit to the backlog meanwhile, and a reset may give files up: only the commit
    says so (L1, E9)."""
    bench = topics()
    table = TableReference("d", BAD)
    propose_park_table(bench.store, table).apply()
    with patch.object(recovery, "PATIENCE", 0):
        bench.run()
        bench.run()
    assert len(bench.paths("backlog/")) == 1
    propose_resume_table(bench.store, table).apply()
    bench.refuse("get", path="commits/t0.json")
    bench.load()
    assert (bench.rows(BAD), bench.rows(GOOD)) == (1, 2)
    bench.assert_whole_again()


def test_a_clean_up_deletes_nothing_while_a_commit_is_refused() -> None:
    bench = topics()
    bench.run()
    staged = bench.paths("staging/")
    bench.refuse("get", path="commits/t0.json")
    with pytest.raises(ConfigurationError, match="403"):
        clean(bench.store.view("janitor"))
    assert bench.paths("staging/") == staged != []


@pytest.mark.parametrize(
    ("operations", "path", "run"),
    thinned(
        [
            (("get",), "commits/t", Topics.run),
            (("swap",), "commits/t", Topics.run),
            (("create",), "commits/t", Topics.run),
            (("get",), "commits/t", Topics.load),
            (("get",), "tables/d.t", Topics.load),
            (("swap",), "tables/d.t", Topics.load),
            (("get", "swap", "create", "close"), "", Topics.run),
            (("get", "swap", "create", "close"), "", Topics.load),
        ]
    ),
)
def test_a_store_that_refuses_everything_ends_the_run_with_one_message(
    operations: tuple[str, ...], path: str, run: Callable[[Topics], object]
) -> None:
    number = MANY + 3
    bench = Topics().with_topics(number) if operations == ("create",) else topics(number)
    if run is Topics.load:
        bench.run()
    bench.refuse(*operations, path=path)
    with pytest.raises(ConfigurationError) as refusal:
        run(bench)
    assert refusal.value.next_step.startswith(f"grant {operations[0]} on ")
    assert refusal.value.message.count("403") == 1


def test_a_state_that_is_refused_hides_no_other_table() -> None:
    bench = topics()
    bench.run()
    bench.refuse("get", path="tables/d.t0.json")
    store, bad = bench.store.view("reader"), TableReference("d", BAD)
    [failed, ready] = status.read_tables(StateCache(store))
    assert (failed.table, failed.state, ready.state) == (bad, "failed", "ready")
    assert failed.message == "get tables/d.t0.json: 403\n  next: grant get on tables/d.t0.json"
    assert status.feeds_of(read_view(StateCache(store)))[bad] == frozenset()
    assert [batch.table.table for batch in plan(store).batches] == [GOOD]
    ports = CheckPorts(StateCache(store), LoadBlocks(), lambda: bench.kafka, SOURCES, bench.clock.now_ms)
    [failure] = run_checks(ports, broker=False).failures
    assert (failure.check, failure.subject) == (TABLES_LOAD, str(bad))
    assert failure.commands == ("grant get on tables/d.t0.json",)
