"""Counts that agree report nothing. Others are reported with table, partition and, if cheap, offset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date, timedelta

import pytest

from kbq_assets.core.errors import NotFound
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference, backlog_path, commit_path, table_state_path
from kbq_assets.extras.reconcile.counts import CountPorts, CountReport, CountSelection, reconcile_counts
from kbq_assets.pipelines.operate import bootstrap
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.warehouse import Row
from kbq_assets_tests.pipelines.bench import ERRORS, SETTINGS, TOPIC, TP, A, B, Bench

DAY = date(1970, 1, 1)  # of the bench's Kafka timestamps


def loaded(**options: object) -> Bench:
    """Offsets 0 (d.A), 1 (d.B), 2 (an error), a gap of 2, 5 (d.A): all loaded."""
    bench = Bench(**options)  # type: ignore[arg-type]
    bench.produce(1, 3)
    bench.kafka.produce(TP, b"\x01bad")
    bench.kafka.gap(TP, 2)
    bench.produce(1)
    bench.extract()
    bench.load()
    return bench


def counted(bench: Bench, **selection: object) -> CountReport:
    ports = CountPorts(bench.store, bench.kafka, bench.warehouse)
    return reconcile_counts(ports, CountSelection(**selection))  # type: ignore[arg-type]


def rows(bench: Bench, table: TableReference) -> list[Row]:
    return bench.warehouse.stored[table].rows


def test_everything_loaded_agrees() -> None:
    report = counted(loaded())
    assert report.findings == report.notes == ()
    [partition] = report.partitions
    assert (partition.committed, partition.loaded, partition.pending, partition.unread) == (4, 4, 0, 0)
    range_ = KafkaRange(TOPIC, 0, 1)
    assert [(c.table, c.range, c.rows, c.distinct, c.first, c.last, c.loaded) for c in report.tables] == [
        (A, range_, 2, 2, 0, 5, 2),
        (B, range_, 1, 1, 1, 1, 1),
        (ERRORS, range_, 1, 1, 2, 2, 1),
    ]


def test_an_empty_platform_agrees() -> None:
    assert counted(Bench()) == CountReport(None, (), ())


# Damage


def lose(bench: Bench) -> None:
    rows(bench, A).pop()


def lose_all(bench: Bench) -> None:
    rows(bench, B).clear()


def lose_the_error(bench: Bench) -> None:
    rows(bench, ERRORS).clear()


def double(bench: Bench) -> None:
    rows(bench, A).append(rows(bench, A)[0])


def double_in_another_table(bench: Bench) -> None:
    rows(bench, B).append(rows(bench, A)[0])


def beyond_the_position(bench: Bench) -> None:
    rows(bench, A)[-1] = Row(1, TOPIC, 0, 6)


def another_partition(bench: Bench) -> None:
    rows(bench, A).append(Row(1, TOPIC, 7, 0))


def a_later_epoch(bench: Bench) -> None:
    rows(bench, A).append(Row(2, TOPIC, 0, 0))


def an_older_epoch(bench: Bench) -> None:
    rows(bench, A).append(Row(0, TOPIC, 0, 3))


@pytest.mark.parametrize(
    ("damage", "findings"),
    [
        (lose, ["d.A: shop.events[0] epoch 1: 1 row, but 2 were loaded (deleted or lost)"]),
        (lose_all, ["d.B: shop.events[0] epoch 1: 0 rows, but 1 was loaded (deleted or lost)"]),
        (
            lose_the_error,
            ["d.kbq_errors: shop.events[0] epoch 1: 0 rows, but 1 was loaded (deleted or lost)"],
        ),
        (
            double,
            [
                "shop.events[0] epoch 1: doubled: offset 0 (d.A and d.A)",
                "d.A: shop.events[0] epoch 1: 3 rows of 2 offsets",
                "d.A: shop.events[0] epoch 1: 3 rows, but 2 were loaded",
            ],
        ),
        (
            double_in_another_table,
            [
                "shop.events[0] epoch 1: doubled: offset 0 (d.A and d.B)",
                "d.B: shop.events[0] epoch 1: 2 rows, but 1 was loaded",
            ],
        ),
        (beyond_the_position, ["d.A: shop.events[0] epoch 1: offset 6, but extraction is at 6"]),
        (
            another_partition,
            [
                "d.A: shop.events[7] epoch 1: 1 row, but 0 were loaded",
                "d.A: shop.events[7] epoch 1: 1 row of a partition that was never extracted here",
            ],
        ),
        (
            a_later_epoch,
            [
                "d.A: shop.events[0] epoch 2: 1 row, but 0 were loaded",
                "d.A: shop.events[0] epoch 2: 1 row, but the topic's epoch is 1",
            ],
        ),
        (an_older_epoch, ["d.A: shop.events[0] epoch 0: 1 row, but 0 were loaded"]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_named(damage: Callable[[Bench], None], findings: list[str]) -> None:
    bench = loaded()
    damage(bench)
    report = counted(bench)
    assert list(report.findings) == findings
    assert not report.accounted


def expiring(bench: Bench, first_kept: date) -> CountReport:
    def keeps(table: TableReference, topics: frozenset[str]) -> date | None:
        assert topics == {TOPIC}
        return first_kept if table == A else None

    return reconcile_counts(CountPorts(bench.store, bench.kafka, bench.warehouse, keeps))


def test_rows_that_expired_are_noted_and_rows_too_many_are_still_found() -> None:
    bench = loaded()
    lose(bench)
    [expired, *others] = expiring(bench, DAY + timedelta(days=1)).tables
    note = "d.A: shop.events[0] epoch 1: 1 row, but 2 were loaded (they are older than the table keeps rows)"
    assert (expired.notes, expired.findings, [c.notes for c in others]) == ((note,), (), [(), ()])
    rows(bench, B).clear()
    double(bench)
    double(bench)
    assert len(expiring(bench, DAY + timedelta(days=1)).findings) == 4


def test_expiry_does_not_explain_rows_that_the_table_still_keeps() -> None:
    bench = loaded()
    lose(bench)
    [lost, *_] = expiring(bench, DAY).tables
    assert "1 row, but 2 were loaded (deleted or lost)" in str(lost.findings)


def test_only_the_lowest_doubled_offsets_are_named() -> None:
    bench = Bench()
    bench.produce(*[1] * 30)
    bench.extract()
    bench.load()
    rows(bench, A).extend(rows(bench, A)[:])
    [named, *_] = counted(bench).findings
    assert named.count(" and ") == 10
    assert ("offset 0 " in named, " 9 (" in named, " 10 (" in named) == (True, True, False)


def test_rows_before_the_position_where_extraction_began_are_unknown() -> None:
    bench = Bench()
    bench.produce(1, 1, 1)
    bootstrap.propose_bootstrap(bench.store, bench.kafka, TOPIC, StartAt("offset", 2)).apply()
    bench.extract()
    bench.load()
    assert counted(bench).accounted
    rows(bench, A)[0] = Row(1, TOPIC, 0, 1)
    assert counted(bench).findings == ("d.A: shop.events[0] epoch 1: offset 1, but extraction began at 2",)


# What is on its way


def test_committed_rows_that_wait_are_pending() -> None:
    bench = loaded()
    bench.produce(1, 3)
    bench.extract()
    report = counted(bench)
    assert report.accounted
    assert (report.partitions[0].committed, report.partitions[0].loaded, report.partitions[0].pending) == (
        6,
        4,
        2,
    )


def test_rows_of_a_parked_table_wait_in_its_backlog_and_it_is_noted() -> None:
    bench = loaded()
    operate.propose_park_table(bench.store, A).apply()
    for _ in range(2):  # the second run finds the first one's files to move
        bench.produce(1)
        bench.extract()
        bench.load()
    assert bench.paths("backlog/")
    report = counted(bench)
    assert (report.findings, report.partitions[0].pending) == ((), 2)
    assert report.notes == ("d.A is parked: operator",)


def test_a_count_of_one_table_or_topic_notes_nothing_about_others() -> None:
    bench = loaded()
    operate.propose_park_table(bench.store, A).apply()
    assert counted(bench, tables=frozenset({B})).notes == ()
    assert counted(bench, topics=frozenset()).notes == ()


def test_quarantined_rows_are_counted_apart() -> None:
    bench = Bench(auto_run=True)
    bench.produce(1, 3)
    bench.extract()
    bench.warehouse.bad_paths.update(path for path in bench.paths("staging/") if ".d.A." in path)
    bench.load()
    report = counted(bench)
    finding = "shop.events[0]: d.A: 1 row in quarantine and in no table"
    assert (report.findings, report.partitions[0].quarantined) == ((finding,), 1)
    assert report.partitions[0].loaded == 1


def test_a_job_that_nobody_recorded_yet_may_have_loaded_its_rows_or_not() -> None:
    bench = Bench(auto_run=False)
    bench.produce(1, 1)
    bench.extract()
    bench.load(wait_seconds=0)
    [before] = counted(bench).tables
    bench.warehouse.step()
    [after] = counted(bench).tables
    assert [(c.rows, c.loaded, c.in_flight, c.findings) for c in (before, after)] == [
        (0, 0, 2, ()),
        (2, 0, 2, ()),
    ]
    rows(bench, A).append(rows(bench, A)[0])
    assert not counted(bench).accounted


def test_a_load_and_an_extraction_while_rows_are_counted_disturb_nothing() -> None:
    bench = loaded()
    bench.produce(1, 3)
    bench.extract()
    summary = bench.warehouse.kafka_summary

    def busy(table: TableReference, since: date | None = None) -> object:
        bench.load()
        bench.produce(1)
        bench.extract()
        found = summary(table, since)
        bench.load()
        bench.produce(3)
        bench.extract()
        return found

    bench.warehouse.kafka_summary = busy  # type: ignore[method-assign, assignment]
    assert counted(bench).findings == ()


def test_a_reset_while_rows_are_counted_is_noted_and_not_judged() -> None:
    bench = loaded()
    summary = bench.warehouse.kafka_summary

    def reset(table: TableReference, since: date | None = None) -> object:
        if table == A:
            operate.propose_reset(bench.store, bench.kafka, TOPIC).apply()
            bench.extract()
        return summary(table, since)

    bench.warehouse.kafka_summary = reset  # type: ignore[method-assign, assignment]
    report = counted(bench)
    assert report.findings == ()
    assert report.partitions[0].notes == (
        f"{TP}: reset while the rows were counted: not compared with its commit",
    )


# Books


def forget_rows(bench: Bench) -> None:
    def change(table: TableState) -> TableState:
        return dataclasses.replace(table, rows={})

    state.change(bench.store, TableState, table_state_path(A), change)


def test_books_that_contradict_the_commit_are_named() -> None:
    bench = loaded()
    forget_rows(bench)
    rows(bench, A).clear()
    assert counted(bench).findings == (
        "shop.events[0]: d.A: 0 rows loaded, 0 to load, 0 quarantined, but 2 were committed",
    )


def test_positions_without_a_count_are_named() -> None:
    bench = loaded()

    def change(commit: Commit) -> Commit:
        found = commit.partitions[0]
        totals = found.totals + Counts(positions=-1)
        return commit.with_partition(0, dataclasses.replace(found, totals=totals))

    state.change(bench.store, Commit, commit_path(TOPIC, 0), change)
    assert counted(bench).findings == ("shop.events[0]: counts of 5 positions in [0, 6)",)


def test_a_job_that_loaded_another_number_of_rows_is_reported_with_the_difference() -> None:
    bench = Bench(auto_run=False)
    bench.produce(1, 1)
    bench.extract()
    bench.load(wait_seconds=0)

    def change(table: TableState) -> TableState:
        return table_state.record_success(table, 1)

    bench.warehouse.step()
    rows(bench, A).pop()
    state.change(bench.store, TableState, table_state_path(A), change)
    [finding] = counted(bench).findings
    assert finding.endswith(
        "1 row, but 2 were loaded (deleted or lost); rows of its jobs that differ from their files: -1"
    )


@pytest.mark.parametrize(
    ("path", "finding"),
    [
        (commit_path(TOPIC, 0), f"the commit of {TOPIC} (shard 0) cannot be read"),
        (table_state_path(A), "the state of table d.A cannot be read"),
    ],
)
@pytest.mark.parametrize("damage", ["gone", "garbled"])
def test_state_that_cannot_be_read_is_a_finding(path: str, finding: str, damage: str) -> None:
    bench = loaded()
    if damage == "gone":
        bench.store.delete(path)
    else:
        bench.store.swap(path, b"{", bench.store.get(path).generation)
    assert finding in counted(bench).findings


# Resets


def test_epochs_before_a_reset_are_compared_with_what_was_loaded_then() -> None:
    bench = loaded()
    operate.propose_reset(bench.store, bench.kafka, TOPIC).apply()
    bench.extract()
    bench.load()
    assert counted(bench).accounted
    assert {c.range.epoch for c in counted(bench).tables} == {1, 2}
    rows(bench, A).remove(Row(1, TOPIC, 0, 5))
    assert counted(bench).findings == (
        "d.A: shop.events[0] epoch 1: 1 row, but 2 were loaded (deleted or lost)",
    )


def test_a_partition_that_went_on_through_a_reset_of_another_agrees() -> None:
    bench = Bench(partitions=2)
    for _ in range(2):
        bench.produce(1, 3)
        bench.produce(1, partition=1)
        bench.extract()
        bench.load()
        operate.propose_reset(bench.store, bench.kafka, TOPIC, partition=1).apply()
    bench.produce(1)
    bench.extract()
    bench.load()
    report = counted(bench)
    assert report.findings == ()
    assert [(p.epoch, p.committed, p.loaded) for p in report.partitions] == [(3, 5, 5), (3, 2, 2)]
    rows(bench, B)[0] = Row(1, TOPIC, 0, 5)
    assert counted(bench).findings == ("d.B: shop.events[0] epoch 1: offset 5, but extraction is at 5",)


def test_rows_that_a_reset_gave_up_leave_nothing_to_compare_with_and_it_is_noted() -> None:
    bench = Bench(partitions=2)
    bench.produce(1)
    bench.produce(1, partition=1)
    bench.extract()
    bench.load()
    bench.produce(1)
    bench.extract()
    late = BacklogChunk(tuple(bench.commit().files))
    proposal = operate.propose_reset(bench.store, bench.kafka, TOPIC, partition=1, give_up_pending=True)
    proposal.apply()
    state.create(bench.store, backlog_path(A, 1, TP, 1), late)
    report = counted(bench)
    assert report.findings == ()
    assert [(p.committed, p.loaded, p.pending) for p in report.partitions] == [(2, 1, 0), (0, 0, 0)]
    assert [p.notes for p in report.partitions] == [
        (f"{TP}: d.A: a reset gave rows up: not compared with its commit",),
        (),
    ]


# Broker


def test_the_broker_is_asked_for_offsets_alone() -> None:
    bench = loaded()
    bench.produce(1, 1, 1)
    asked: list[Call] = []

    def ask(call: Call) -> Outcome:
        asked.append(call)
        return Outcome.OK

    bench.faults = ask
    report = reconcile_counts(CountPorts(bench.store, bench.kafka.view("r"), bench.warehouse))
    assert (report.accounted, report.partitions[0].unread) == (True, 3)
    assert {call.operation for call in asked} == {"offsets"}


def test_a_broker_that_ends_before_the_position_is_a_finding() -> None:
    bench = loaded()
    bench.kafka.truncate(TP, 3)
    assert counted(bench).findings == ("shop.events[0]: extraction is at 6, but the broker ends at 3",)


def test_records_deleted_before_they_were_read_are_a_finding() -> None:
    bench = loaded()
    bench.produce(1, 1)
    bench.kafka.delete_before(TP, 7)
    assert counted(bench).findings == ("shop.events[0]: extraction is at 6, but the broker begins at 7",)


# Selection


def test_since_a_date_only_doubled_and_unknown_offsets_are_found() -> None:
    bench = loaded()
    assert [c.rows for c in counted(bench, since=DAY).tables] == [2, 1, 1]
    later = counted(bench, since=DAY + timedelta(1))
    assert (later.tables, later.findings) == ((), ())
    lose(bench)
    assert counted(bench, since=DAY).accounted
    double(bench)
    double(bench)
    assert counted(bench, since=DAY).findings == (
        "shop.events[0] epoch 1: doubled: offset 0 (d.A and d.A and d.A)",
        "d.A: shop.events[0] epoch 1: 3 rows of 1 offset",
        "d.A: shop.events[0] epoch 1: 3 rows, but 2 were loaded",
    )
    assert counted(bench, since=DAY + timedelta(1)).accounted


def test_chosen_tables_alone_are_queried() -> None:
    bench = loaded()
    double(bench)
    report = counted(bench, tables=frozenset({B}))
    assert ([c.table for c in report.tables], report.findings) == ([B], ())
    assert not counted(bench, tables=frozenset({A})).accounted


def test_chosen_topics_alone_are_counted() -> None:
    bench = loaded()
    double(bench)
    bench.kafka.create_topic("other")
    bootstrap.propose_bootstrap(bench.store, bench.kafka, "other", StartAt("earliest")).apply()
    report = counted(bench, topics=frozenset({"other"}))
    assert ([p.topic_partition.topic for p in report.partitions], report.findings) == (["other"], ())
    assert not counted(bench, topics=frozenset({TOPIC})).accounted


@pytest.mark.parametrize("selection", [{"topics": {"other"}}, {"tables": {TableReference("d", "other")}}])
def test_a_name_that_nothing_is_known_of_is_refused(selection: dict[str, set[object]]) -> None:
    with pytest.raises(NotFound, match="other"):
        counted(loaded(), **selection)


def test_each_counted_table_is_reported_and_several_are_counted_at_once() -> None:
    bench = loaded()
    reported: list[tuple[str, int]] = []
    ports = CountPorts(bench.store, bench.kafka, bench.warehouse)
    report = reconcile_counts(ports, at_once=3, on_table=lambda table, of: reported.append((str(table), of)))
    assert reported == [("d.A", 3), ("d.B", 3), ("d.kbq_errors", 3)]
    assert report == counted(bench)


def test_skipped_records_need_no_row() -> None:
    report = counted(loaded(settings=SETTINGS.with_options(errors="skip")))
    assert (report.findings, report.partitions[0].committed, report.partitions[0].skipped) == ((), 3, 1)
