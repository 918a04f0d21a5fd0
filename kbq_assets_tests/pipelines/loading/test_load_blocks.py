"""A topic whose blocking check fails keeps its files waiting. Nothing else waits, nothing is lost, order holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.check_names import CONTIGUOUS, ERRORS_FEW, ROWS_MATCH
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load, plan
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.loading.view import LoadView, read_view
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.fakes.platform import TOPIC as ORDERS
from kbq_assets_tests.fakes.platform import FakePlatform
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, A, B, Bench, value

OTHER = "shop.other"
COMMIT = f"commits/{TOPIC}.json"


def _change(bench: Bench, function: Callable[[Commit], Commit]) -> None:
    state.change(bench.store, Commit, COMMIT, function)


def _miscount(commit: Commit, by: int = 1) -> Commit:
    """Positions are counted that were never there: what no run does."""
    found = commit.partitions[0]
    more = Counts(positions=by, gaps=by)
    return commit.with_partition(0, dataclasses.replace(found, totals=found.totals + more))


def _mended(commit: Commit) -> Commit:
    return _miscount(commit, -1)


def _damaged(*schema_ids: int, **options: object) -> Bench:
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.produce(*schema_ids)
    bench.extract()
    _change(bench, _miscount)
    return bench


def _states(report: LoadReport) -> dict[TableReference, str]:
    return {table.table: table.state for table in report.tables}


def _options(settings: TopicSettings) -> LoadBlocks:
    def options(topics: Collection[str]) -> Mapping[str, TopicSettings]:
        return dict.fromkeys(topics, settings)

    return LoadBlocks(options)


def _load_with(bench: Bench, settings: TopicSettings) -> LoadReport:
    ports = LoadPorts(bench.store, bench.warehouse, bench.clock)
    return load(ports, LoadOptions(poll_seconds=0.0, blocks=_options(settings)))


def test_files_of_a_blocked_topic_are_neither_planned_nor_loaded_and_the_report_says_why() -> None:
    bench = _damaged(1, 3)
    assert not plan(bench.store).batches
    report = bench.load()
    assert _states(report) == {A: "blocked", B: "blocked"}
    assert report.tables[0].message == (
        "1 row waits in 1 file: shop.events is blocked by offsets_contiguous: "
        "shop.events[0]: 3 positions are counted in [0, 2); "
        "next: restore commits/ and tables/ of one moment or kbq reconcile --topic shop.events"
    )
    assert (bench.offsets(A), bench.warehouse.jobs) == ([], {})


def test_a_hold_ends_without_help_and_everything_is_loaded_once_in_order() -> None:
    bench = _damaged(1, 3, 1)
    bench.load()
    bench.produce(1, 3)
    bench.extract()
    assert _states(bench.load()) == {A: "blocked", B: "blocked"}
    _change(bench, _mended)
    assert _states(bench.load()) == {A: "idle", B: "idle"}
    assert (bench.offsets(A), bench.offsets(B)) == ([0, 2, 3], [1, 4])
    assert [file.name.first_offset for file in bench.commit().files] == [0, 1, 3, 4]


def test_a_hold_that_begins_while_a_load_runs_lets_no_more_job_start() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    cache = StateCache(bench.store)
    assert len(plan(bench.store, cache=cache).batches) == 1
    _change(bench, _miscount)
    assert not plan(bench.store, cache=cache).batches


def test_a_job_that_was_submitted_before_the_hold_is_recorded() -> None:
    bench = Bench(auto_run=False)
    bench.produce(1)
    bench.extract()
    bench.load(wait_seconds=0.0)
    bench.warehouse.step()
    _change(bench, _miscount)
    [report] = bench.load().tables
    assert (report.rows, bench.offsets(A)) == (1, [0])


def _two_topics() -> Bench:
    bench = Bench()
    bench.kafka.create_topic(OTHER, 1)
    bench.produce(1)
    bench.kafka.produce(TopicPartition(TOPIC, 0), b"\x01poison", key=b"k", timestamp=1000)
    for record in (value(1), b"\x01poison"):
        bench.kafka.produce(TopicPartition(OTHER, 0), record, key=b"k", timestamp=1000)
    bench.extract(sources=[SourceEntry("shop.*", SETTINGS)])
    return bench


def test_other_topics_rows_go_into_the_same_tables_meanwhile() -> None:
    bench = _two_topics()
    _change(bench, _miscount)
    assert _states(bench.load()) == {A: "blocked", ERRORS: "blocked"}
    loaded = {t: state.read(bench.store, TableState, table_state_path(t)).value.rows for t in (A, ERRORS)}
    assert loaded == {A: {f"{OTHER}/0/1": 1}, ERRORS: {f"{OTHER}/0/1": 1}}
    _change(bench, _mended)
    bench.load()
    assert sum(state.read(bench.store, TableState, table_state_path(A)).value.rows.values()) == 2


def test_files_of_a_blocked_topic_stay_in_the_backlog_of_a_table_that_was_parked() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    operate.propose_park_table(bench.store, A).apply()
    bench.produce(1)
    bench.extract()
    bench.produce(1)
    bench.extract()
    operate.propose_resume_table(bench.store, A).apply()
    _change(bench, _miscount)
    backlog = bench.paths("backlog/")
    assert len(backlog) == 1
    assert _states(bench.load())[A] == "blocked"
    assert bench.paths("backlog/") == backlog
    _change(bench, _mended)
    bench.load()
    assert bench.offsets(A) == [0, 1, 2]


def test_a_table_can_be_parked_during_a_hold_so_that_the_commit_stays_small() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    _change(bench, _miscount)
    operate.propose_park_table(bench.store, A).apply()
    bench.extract()
    assert list(bench.commit().files) == []
    operate.propose_resume_table(bench.store, A).apply()
    assert _states(bench.load()) == {A: "blocked"}
    _change(bench, _mended)
    bench.load()
    assert bench.offsets(A) == [0, 1]


def test_a_commit_older_than_its_table_blocks_its_topic() -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    backup = bench.store.get(COMMIT).data
    bench.produce(1, 3)
    bench.extract()
    bench.load()
    bench.store.swap(COMMIT, backup, bench.store.get(COMMIT).generation)
    found = LoadBlocks()(read_view(StateCache(bench.store)))
    assert found[TOPIC].check == CONTIGUOUS
    assert "d.A has rows of shop.events[0] up to 3 in epoch 1, the commit is at 1" in found[TOPIC].message


def test_an_option_of_the_source_list_lets_a_blocked_topic_continue() -> None:
    bench = _damaged(1)
    report = _load_with(bench, TopicSettings.of(blocking="none"))
    assert (_states(report), bench.offsets(A)) == ({A: "idle"}, [0])


def test_too_many_bad_records_hold_a_topic_until_better_ones_arrive() -> None:
    settings = SETTINGS.with_options(
        error_share=1.0, error_share_records=1, max_error_share=0.5, blocking=ERRORS_FEW
    )
    bench = Bench(settings=settings)
    bench.produce(1)
    for _ in range(2):
        bench.kafka.produce(TopicPartition(TOPIC, 0), b"\x01poison", key=b"k", timestamp=1000)
    bench.extract()
    assert _states(_load_with(bench, settings)) == {A: "blocked", ERRORS: "blocked"}
    bench.produce(1)
    bench.extract()
    assert _states(_load_with(bench, settings)) == {A: "idle", ERRORS: "idle"}
    assert (bench.offsets(A), bench.offsets(ERRORS)) == ([0, 3], [1, 2])


def test_a_job_with_other_row_counts_blocks_its_topics_until_an_operator_has_seen_it() -> None:
    settings = SETTINGS.with_options(blocking=ROWS_MATCH)
    bench = Bench(settings=settings, auto_run=False)
    bench.produce(1)
    bench.extract()
    bench.load(wait_seconds=0.0)
    bench.warehouse.step()
    [job] = bench.warehouse.jobs.values()
    job.status = dataclasses.replace(job.status, output_rows=7)
    bench.load()
    bench.warehouse.auto_run = True
    bench.produce(1, 3)
    bench.extract()
    assert _states(_load_with(bench, settings)) == {A: "blocked", B: "blocked"}
    proposal = operate.propose_resume_table(bench.store, A)
    assert proposal.lines[0].endswith("loaded 7 rows of files with 1")
    proposal.apply()
    assert _states(_load_with(bench, settings)) == {A: "idle", B: "idle"}


def test_what_was_found_in_a_commit_is_not_searched_again_until_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.produce(1)
    bench.extract()
    cache, blocks = StateCache(bench.store), LoadBlocks()
    assert blocks(read_view(cache)) == {}
    with monkeypatch.context() as patch:
        patch.setattr("kbq_assets.core.observation.checks.commit_findings", None)
        assert blocks(read_view(cache)) == {}
    _change(bench, _miscount)
    assert list(blocks(read_view(cache))) == [TOPIC]


def test_a_topic_whose_mistake_is_fixed_while_a_load_runs_waits_for_the_next_one(tmp_path: Path) -> None:
    """The load has read the options of tables, and would make the topic's table without them."""
    world = FakePlatform(tmp_path, sources=f"{ORDERS} dataset=shop table=orders cluster_by=x\n")
    world.produce(topic=ORDERS)
    world.parts.extractor.extract()
    deployment, right = world.parts.deployment, world.source_topics.read_text()

    class Fixing(LoadBlocks):
        def __call__(self, view: LoadView) -> Mapping[str, LoadBlock]:
            world.source_topics.write_text(right)
            return super().__call__(view)

    vars(deployment)["blocks"] = Fixing(deployment.sources.select, deployment.sources.unknown)
    world.source_topics.write_text(right.replace("table=", "tabel="))
    [report] = world.parts.loader.load().tables
    assert (report.rows, world.warehouse.jobs) == (0, {})
    [report] = world.parts.loader.load().tables
    assert report.rows == 1
