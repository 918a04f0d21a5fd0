"""Replays error rows: parses their raw bytes with today's parser, and inserts the results as rows.

A row is inserted with the position and the epoch of its record, in the transaction that marks its error row
(`ports.errors_replay`), or in steps (steps.py). The mark decides, so a second or concurrent replay finds nothing left.
No position and no table's mark changes, so loading is not affected. In a table with statements, the table's own
statement applies the rows (target.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kbq_assets.core.errors import JobFailed, Refused, Unavailable, WrongOptions
from kbq_assets.core.errors_replay.selection import Left, batches, why_left
from kbq_assets.core.errors_replay.tables import check_late_rows
from kbq_assets.core.extraction.units import Unit, UnitOutcome, WindowLimits
from kbq_assets.core.loading.tables import FullTable, IncompatibleColumn, TableOptions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import TableReference, commit_path_of, schema_path
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.ordering_options import NONE
from kbq_assets.core.topics.personal import SEALED
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.errors_replay.steps import replays_of, settle_replays
from kbq_assets.pipelines.errors_replay.target import TargetPorts, prepare, with_mark
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.errors_replay import ErrorReplay, ErrorReplays
from kbq_assets.ports.kafka import RecordSource
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow, KafkaRange, Warehouse

#: Extracts a committed unit again from another source, into the folder of a new attempt.
Parse = Callable[[Unit, RecordSource], UnitOutcome]
#: Returns the corrected value of a bad record; None leaves the error row as it is.
Repair = Callable[[ErrorRow], bytes | None]
#: Number of error rows listed at once, without their values.
PAGE = 20_000


@dataclass(frozen=True)
class ReplayPorts:
    """The ports of a replay. ``settings`` returns the options of the given topics that the source list selects;
    ``table_options`` returns those of a table that some topics feed."""

    store: ObjectStore
    warehouse: Warehouse
    parse: Parse
    settings: Callable[[list[str]], Mapping[str, TopicSettings]]
    table_options: Callable[[TableReference, frozenset[str]], TableOptions]


@dataclass(frozen=True)
class Selection:
    """The error rows to replay: those of a topic, those with a reason, or all. ``repair`` changes their values first.
    ``out_of_order`` is the reason to also add them to ordered tables, after rows that readers have seen; ``by`` is the
    user."""

    topic: str | None = None
    reason: str | None = None
    repair: Repair | None = None
    out_of_order: str = ""
    by: str = ""


@dataclass
class ReplayReport:
    """Rows added by table; error rows that were resolved without a row, because their keys have newer records; error
    rows that stay, by reason, with an example for each."""

    rows: Counter[TableReference] = field(default_factory=Counter)
    superseded: Counter[TableReference] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def leave(self, why: str, rows: Sequence[ErrorRow], example: str = "") -> None:
        """Count error rows that stay."""
        if rows:
            self.left[why] += len(rows)
            first = rows[0]
            place = f"{TopicPartition(first.topic, first.partition)} offset {first.offset}"
            self.examples.setdefault(why, f"{place}: {example or first.reason}")


def waiting(
    warehouse: Warehouse, topic: str | None = None, reason: str | None = None
) -> list[tuple[TableReference, KafkaRange, int]]:
    """Numbers of error rows that were not replayed, by table, partition and epoch. With ``reason``, reads the rows of
    that reason to count them. Raises Unavailable."""
    found = [
        (table, range_, rows)
        for table in sorted(filter(is_error_table, warehouse.tables()))
        for range_, rows in sorted(warehouse.kafka_ranges(table).items(), key=lambda each: str(each[0]))
        if rows and topic in (None, range_.topic)
    ]
    if reason is None:
        return found
    counted = ((table, range_, _count(warehouse, table, range_, reason)) for table, range_, _ in found)
    return [each for each in counted if each[2]]


def _count(warehouse: Warehouse, errors: TableReference, range_: KafkaRange, reason: str) -> int:
    count = first = 0
    while rows := warehouse.error_rows(errors, _page(range_, reason, first, value_bytes=0)):
        count, first = count + len(rows), rows[-1].offset + 1
    return count


def _page(
    range_: KafkaRange,
    reason: str | None,
    first: int,
    *,
    limit: int = PAGE,
    value_bytes: int = 2**31 - 1,
) -> ErrorQuery:
    """The error rows of a partition and epoch from an offset on."""
    return ErrorQuery(
        range_.topic,
        range_.partition,
        limit=limit,
        value_bytes=value_bytes,
        epoch=range_.epoch,
        reason=reason,
        from_offset=first,
    )


def replay_errors(ports: ReplayPorts, chosen: Selection) -> ReplayReport:
    """End what earlier replays began, then replay the chosen error rows. Raises Refused if the warehouse cannot do it;
    Unavailable, UnknownOutcome: the next replay continues where this one ended."""
    replays = replays_of(ports.store, ports.warehouse)
    report = ReplayReport(rows=settle_replays(ports.store, ports.warehouse))
    for errors, range_, _ in waiting(ports.warehouse, chosen.topic):
        _ErrorsReplay(ports, chosen, report, replays, errors, range_).run()
    return report


@dataclass
class _ErrorsReplay:
    """The error rows of one partition and epoch in one error table."""

    ports: ReplayPorts
    chosen: Selection
    report: ReplayReport
    replays: ErrorReplays
    errors: TableReference
    range: KafkaRange

    def run(self) -> None:
        """Replay the error rows page by page. Rows that stay are not tried again."""
        settings = self.ports.settings([self.range.topic]).get(self.range.topic)
        since = self._since() if settings else None
        first = 0
        while rows := self._rows(first, PAGE, value_bytes=0):
            first = rows[-1].offset + 1
            able = []
            for row in rows:
                why = why_left(reason=row.reason, size=row.value_size, epoch=row.epoch, since=since)
                if why is None:
                    able.append(row)
                else:
                    self.report.leave(why, [row])
            for batch in batches(able, [row.value_size or 0 for row in able]):
                offsets = {row.offset for row in batch}
                between = batch[-1].offset - batch[0].offset + 1
                whole = self._rows(batch[0].offset, min(between, PAGE), until=batch[-1].offset)
                assert settings is not None
                self._replay([row for row in whole if row.offset in offsets], settings)

    def _since(self) -> int | None:
        """The epoch in which the partition began; None if it has no commit."""
        tp = self._tp
        commit = state.find(self.ports.store, Commit, commit_path_of(tp))
        found = commit.value.partitions.get(tp.partition) if commit else None
        return found.since if found else None

    @property
    def _tp(self) -> TopicPartition:
        return self.range.topic_partition

    def _rows(
        self, first: int, limit: int, *, value_bytes: int = 2**31 - 1, until: int | None = None
    ) -> list[ErrorRow]:
        query = _page(self.range, self.chosen.reason, first, limit=limit, value_bytes=value_bytes)
        found = self.ports.warehouse.error_rows(self.errors, query)
        return [row for row in found if until is None or row.offset <= until]

    def _replay(self, rows: list[ErrorRow], settings: TopicSettings) -> None:
        sealed = [row for row in rows if _is_sealed(row)]
        self.report.leave(Left.SEALED, sealed)
        records = list(self._repaired([row for row in rows if row not in sealed]))
        if not records:
            return
        from kbq_assets.pipelines.errors_replay.source import ErrorRowSource  # imports numpy

        outcome = self.ports.parse(self._unit(records, settings), ErrorRowSource(records))
        files = [file for window in outcome.windows for file in window.files]
        try:
            if outcome.failure:
                raise Unavailable(outcome.failure, next_step="run it again")
            if outcome.stop is not None:
                self.report.leave(outcome.stop.reason, records, outcome.stop.message)
                return
            good = [file for file in files if not is_error_table(file.table)]
            bad = [file for file in files if is_error_table(file.table)]
            still_bad, first = sum(f.rows for f in bad), min((f.name.first_offset for f in bad), default=0)
            self._leave_some(Left.STILL_BAD, [row for row in records if row.offset >= first], still_bad)
            self._leave_some(Left.SKIPPED, records, len(records) - still_bad - sum(f.rows for f in good))
            for table, fingerprint in sorted({(file.table, file.fingerprint) for file in good}):
                of_schema = [f for f in good if (f.table, f.fingerprint) == (table, fingerprint)]
                self._land(table, of_schema, records, settings)
        finally:
            self.ports.store.delete_many([file.path for file in files])

    def _leave_some(self, why: Left, records: Sequence[ErrorRow], count: int) -> None:
        self.report.leave(why, records[:count], f"{count} of {len(records)} records from here on")

    def _repaired(self, rows: Sequence[ErrorRow]) -> Iterator[ErrorRow]:
        """Rows with the values that the function returns. If it fails for a row, that row stays as it is."""
        for row in rows:
            if self.chosen.repair is None:
                yield row
                continue
            try:
                value, why = self.chosen.repair(row), "it returned nothing"
            except Exception as error:
                value, why = None, f"{type(error).__name__}: {error}"
            if isinstance(value, bytes):
                yield dataclasses.replace(row, value=value, value_size=len(value))
            else:
                self.report.leave(Left.NOT_REPAIRED, [row], why)

    def _unit(self, rows: Sequence[ErrorRow], settings: TopicSettings) -> Unit:
        """A unit for the range of the rows, as one window. Its bad records stop nothing."""
        records = dataclasses.replace(settings.records, error_share=1.0)
        until = rows[-1].offset + 1
        return Unit(
            OffsetRange(self._tp, rows[0].offset, until),
            self.range.epoch,
            dataclasses.replace(settings, records=records),
            accept_errors_until=until,
            limits=WindowLimits(2**62, 2**62, math.inf, 2**62),
        )

    def _land(
        self,
        table: TableReference,
        files: Sequence[StagedFile],
        records: Sequence[ErrorRow],
        settings: TopicSettings,
    ) -> None:
        """Add the rows of files of one table and schema. If the table refuses them, the error rows stay."""
        store, count = self.ports.store, sum(file.rows for file in files)
        schema = store.get(schema_path(files[0].fingerprint)).data.decode()
        uris = {store.uri(file.path): file for file in files}
        ports = TargetPorts(store, self.ports.warehouse, self.ports.table_options)
        try:
            check_late_rows(table, settings.ordering.late_rows)
            own = prepare(
                ports,
                table,
                schema,
                self.range.topic,
                is_ordered=settings.ordering.order != NONE,
                entry=self._decision(files),
            )
            self._mark_errors()
            done = self.replays.replay(
                ErrorReplay(table, self.errors, tuple(uris), schema, store.now_ms(), uris, own)
            )
        except (FullTable, IncompatibleColumn, WrongOptions, JobFailed, Refused) as error:
            steps = f"; {error.next_step}" if error.next_step else ""
            first = min(file.name.first_offset for file in files)
            refused = [row for row in records if row.offset >= first][:count]
            self.report.leave(f"{table} refuses them", refused, error.message + steps)
            return
        if done.added:
            self.report.rows[table] += done.added
        if done.superseded:
            self.report.superseded[table] += done.superseded

    def _decision(self, files: Sequence[StagedFile]) -> AuditEntry | None:
        """The audit entry of an ordered table for the rows of some files; None if the operator does not add rows out of
        order."""
        if not self.chosen.out_of_order:
            return None
        first, last = min(f.name.first_offset for f in files), max(f.until for f in files) - 1
        why = f"{self._tp} offsets {first} to {last}: {self.chosen.out_of_order}"
        rows = sum(file.rows for file in files)
        return AuditEntry(self.ports.store.now_ms(), "", 0, why, self.chosen.by, rows=rows)

    def _mark_errors(self) -> None:
        """Add the column of the mark to the error table."""
        bad = self.ports.warehouse.columns(self.errors) or ()
        if bad != (marked := with_mark(bad)):
            self.ports.warehouse.update_columns(self.errors, marked)


def _is_sealed(row: ErrorRow) -> bool:
    return row.value is not None and row.value.startswith(SEALED)
