"""Compares counts that must agree, and explains differences: the pure half of `reconcile_counts`.

There are three comparisons: the warehouse's rows with the loaded rows in the tables' states; loaded, pending and
quarantined rows with the staged rows in the commits; the commits' positions with the broker's. Loads and extractions
may run meanwhile, so states and commits are read before and after, and a count must lie between the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import PartitionCommit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.extras.reconcile.findings import DELETE_ROWS, Finding
from kbq_assets.pipelines.observation.accounting import (
    Books,
    PartitionHistory,
    labels,
    loaded_rows,
    out_of_balance,
    range_of,
    replaced_rows,
)
from kbq_assets.ports.warehouse import KafkaRange, OffsetSummary


@dataclass(frozen=True)
class TableCount:
    """One topic, partition and epoch in one table.

    ``loaded`` are the rows of jobs recorded in the table's state; ``in_flight`` are those of jobs that were not yet
    recorded, or were recorded during the count. The offsets ``first`` and ``last`` are None without rows. ``notes`` are
    differences that may be legitimate.
    """

    table: TableReference
    range: KafkaRange
    rows: int
    distinct: int
    first: int | None
    last: int | None
    loaded: int
    in_flight: int
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def duplicates(self) -> int:
        return self.rows - self.distinct

    @property
    def expired(self) -> int:
        """The number of rows that are gone because of their age."""
        return self.loaded - self.rows if self.notes else 0

    @property
    def suspicious(self) -> bool:
        """Whether there are too many rows. One may be duplicated, in this table or in another one."""
        return self.duplicates > 0 or self.rows > self.loaded + self.in_flight


@dataclass(frozen=True)
class PartitionCount:
    """One partition since its last reset: the rows committed for all its tables, and their places according to state.

    ``unread`` are positions on the broker above ``position``. ``notes`` name what could not be compared.
    """

    topic_partition: TopicPartition
    epoch: int
    position: int
    committed: int
    loaded: int
    pending: int
    quarantined: int
    skipped: int
    erased: int
    lost: int
    unread: int
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def count_table(
    table: TableReference,
    summary: Mapping[KafkaRange, OffsetSummary],
    states: tuple[TableState, TableState],
    *,
    whole: bool,
    expired: int = 0,
) -> list[TableCount]:
    """Compare a table's rows with its state, read before and after. ``whole``: whether all rows were counted.
    ``expired``: the number of rows that may be gone because of their age (`may_have_expired`)."""
    before, after = map(loaded_rows, states)
    changing = [replaced_rows(state) for state in states]
    rows_in_flight: Counter[KafkaRange] = Counter()
    for file in states[1].in_flight.files if states[1].in_flight else ():
        rows_in_flight[range_of(file)] += file.rows
    counts = []
    for range_ in sorted({*summary, *((*after, *rows_in_flight) if whole else ())}, key=_order):
        known = [rows.get(range_, 0) for rows in (before, after)]
        # A replacement is in the table before it is in the state.
        possible = [*known, *(n + change.get(range_, 0) for n, change in zip(known, changing, strict=True))]
        loaded = min(possible)
        in_flight = max(possible) - loaded + rows_in_flight[range_]
        counts.append(_count(table, range_, summary.get(range_), loaded, in_flight))
    missing = sum(max(0, count.loaded - count.rows) for count in counts)
    return [_judged(count, states[1], whole, 0 < missing <= expired) for count in counts]


def may_have_expired(state: TableState, first_kept: date, kept: Iterable[OffsetSummary]) -> int:
    """The maximum number of a table's rows that can be gone because they are older than ``first_kept``.

    Rows that the state lists for later hours must be among the ``kept`` rows, which have this event date or a later
    one. Rows whose hour the state no longer lists may have any age.
    """
    first_hour = (first_kept - date(1970, 1, 1)).days * 24
    recent = sum(rows for hour, rows in state.hours.rows.items() if hour >= first_hour)
    if sum(summary.rows for summary in kept) < recent:
        return 0
    return max(0, sum(state.rows.values()) - recent)


def _count(
    table: TableReference, range_: KafkaRange, found: OffsetSummary | None, loaded: int, in_flight: int
) -> TableCount:
    if found is None:
        return TableCount(table, range_, 0, 0, None, None, loaded, in_flight)
    return TableCount(table, range_, found.rows, found.distinct, found.first, found.last, loaded, in_flight)


def _judged(count: TableCount, state: TableState, whole: bool, has_expired: bool) -> TableCount:
    findings: list[str] = []
    notes: list[str] = []
    where = f"{count.table}: {range_name(count.range)}"
    if count.duplicates:
        findings.append(
            Finding(
                f"{where}: {counted(count.rows, 'row')} of {counted(count.distinct, 'offset')}", DELETE_ROWS
            )
        )
    most = count.loaded + count.in_flight
    differing = sum(m.actual - m.expected for m in state.mismatches)
    jobs = f"; rows of its jobs that differ from their files: {differing:+}" if state.mismatches else ""
    if count.rows > most:
        findings.append(
            Finding(
                f"{where}: {counted(count.rows, 'row')}, but {counted(most, 'was', 'were')} loaded{jobs}",
                DELETE_ROWS,
            )
        )
    if whole and count.rows < count.loaded:
        why = "they are older than the table keeps rows" if has_expired else "deleted or lost"
        fewer = Finding(
            f"{where}: {counted(count.rows, 'row')}, but {counted(count.loaded, 'was', 'were')} loaded ({why}){jobs}",
            f"kbq reconcile --topic {count.range.topic} names the offsets",
        )
        (notes if has_expired else findings).append(fewer)
    return replace(count, findings=tuple(findings), notes=tuple(notes))


def unknown_offsets(count: TableCount, ledgers: Mapping[TopicPartition, PartitionHistory]) -> Iterable[str]:
    """Findings about rows in a table that no commit can have staged."""
    tp = count.range.topic_partition
    where = f"{count.table}: {range_name(count.range)}"
    if count.first is None or count.last is None:
        return
    if tp not in ledgers:
        if (
            not count.loaded + count.in_flight
        ):  # a reset may have dropped a partition that is gone from the broker
            yield Finding(
                f"{where}: {counted(count.rows, 'row')} of a partition that was never extracted here",
                DELETE_ROWS,
            )
        return
    ledger = ledgers[tp]
    if count.range.epoch > ledger.after.epoch:
        yield Finding(
            f"{where}: {counted(count.rows, 'row')}, but the topic's epoch is {ledger.after.epoch}",
            DELETE_ROWS,
        )
    elif count.range.epoch >= ledger.state.since:
        if count.last >= ledger.state.next:
            yield f"{where}: offset {count.last}, but extraction is at {ledger.state.next}"
        if count.first < ledger.state.start:
            yield f"{where}: offset {count.first}, but extraction began at {ledger.state.start}"


def count_partition(ledger: PartitionHistory, books: Books, broker: BrokerOffsets | None) -> PartitionCount:
    """Compare a partition's commit with the tables' states and the broker's offsets."""
    tp, state = ledger.topic_partition, ledger.state
    loaded, pending, quarantined = books.sums(books.tables[tp], ledger.ranges)
    findings, notes = _compared_with_books(ledger, books)
    findings += _refused(ledger, books)
    if state.totals.positions != state.next - state.start:
        findings.append(
            f"{tp}: counts of {counted(state.totals.positions, 'position')} in [{state.start}, {state.next})"
        )
    return PartitionCount(
        topic_partition=tp,
        epoch=ledger.after.epoch,
        position=state.next,
        committed=ledger.given.staged + ledger.given.errors,
        loaded=loaded,
        pending=pending,
        quarantined=quarantined,
        skipped=state.totals.skipped,
        erased=ledger.given.erased,
        lost=state.totals.lost,
        unread=max(0, broker.latest - state.next) if broker else 0,
        findings=(*findings, *_compared_with_broker(tp, state, broker)),
        notes=(*notes, *([] if broker else [f"{tp}: not on the broker"])),
    )


def _compared_with_books(ledger: PartitionHistory, books: Books) -> tuple[list[str], list[str]]:
    tp = ledger.topic_partition
    if ledger.before is not None and ledger.before.epoch != ledger.after.epoch:
        return [], [f"{tp}: reset while the rows were counted: not compared with its commit"]
    findings = [f"{tp}: {label}: {why}" for label, _, why in out_of_balance(ledger, books)]
    notes = [
        f"{tp}: {label}: a reset gave rows up: not compared with its commit"
        for label, tables in labels(ledger, books)
        if ledger.given_up & tables
    ]
    return findings, notes


def _refused(ledger: PartitionHistory, books: Books) -> list[str]:
    """Findings about rows of files that the warehouse rejected, unless an operator accepted their loss."""
    return [
        Finding(
            f"{ledger.topic_partition}: {table}: {counted(rows, 'row')} in quarantine and in no table",
            f"kbq quarantine list --table {table} shows why the files were rejected; kbq quarantine retry loads them "
            f"once you have fixed that; kbq resume --table {table} accepts the loss",
        )
        for table in sorted(books.tables[ledger.topic_partition])
        if (rows := sum(books.refused[table, range_] for range_ in ledger.ranges))
    ]


def _compared_with_broker(
    tp: TopicPartition, state: PartitionCommit, broker: BrokerOffsets | None
) -> list[str]:
    if broker is None:
        return []
    if state.next > broker.latest:
        return [f"{tp}: extraction is at {state.next}, but the broker ends at {broker.latest}"]
    if state.next < broker.earliest:
        return [f"{tp}: extraction is at {state.next}, but the broker begins at {broker.earliest}"]
    return []


def range_name(range_: KafkaRange) -> str:
    """Example: ``shop.orders[3] epoch 1``."""
    return f"{range_.topic_partition} epoch {range_.epoch}"


def _order(range_: KafkaRange) -> tuple[str, int, int]:
    return (range_.topic, range_.partition, range_.epoch)
