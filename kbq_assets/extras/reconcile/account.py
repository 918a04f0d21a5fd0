"""The account of one partition: compares the broker's records with the warehouse's rows, and explains differences."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kbq_assets.core.erasure.offset_sets import Offsets, has
from kbq_assets.core.errors import NotFound, StateError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.topics.error_tables import ERROR_TABLE, is_error_table
from kbq_assets.extras.reconcile.findings import DELETE_ROWS, Finding, read_again, read_backup
from kbq_assets.ports.kafka import RecordSource

#: Maximum number of offsets that a finding names. It only counts the others.
SHOWN = 10
#: A producers' log by offset: `row:<dataset>.<table>`, `error` or `skip`.
Expected = Mapping[int, str]


@dataclass(frozen=True)
class Judgement:
    """Offsets of records that extraction would stage, and the reason why others could not be judged ("": all were)."""

    rows: Sequence[int] = ()
    problem: str = ""


#: Judges records that are in no table, by extracting them again without staging anything.
Judge = Callable[[Commit, TopicPartition, Sequence[int]], Judgement]


@dataclass(frozen=True)
class PartitionAccount:
    """The account of one partition since its topic's start or its last reset.

    ``read`` are the records below ``position`` that the broker still has; ``gaps`` are positions without a record.
    ``unread`` are positions above ``position``. ``retired`` are records that the broker no longer has, so they are only
    counted.
    """

    topic_partition: TopicPartition
    epoch: int
    position: int
    produced: int | None
    read: int
    gaps: int
    retired: int
    pending: int
    rows: int
    errors: int
    quarantined: int
    unread: int
    #: the commit's counts, adjusted for replays and erasures
    totals: Counts
    findings: tuple[Finding, ...] = ()

    @property
    def skipped(self) -> int:
        return self.totals.skipped

    @property
    def erased(self) -> int:
        return self.totals.erased

    @property
    def lost(self) -> int:
        """Positions that were given up."""
        return self.totals.lost

    @property
    def accounted(self) -> bool:
        """Whether nothing is missing, duplicated or unknown."""
        return not self.findings


@dataclass
class WarehouseRows:
    """The number of rows of one partition and epoch in the warehouse, by table and offset."""

    tables: dict[TableReference, Mapping[int, int]] = field(default_factory=dict)

    def count(self, *, errors: bool) -> int:
        chosen = (rows for table, rows in self.tables.items() if is_error_table(table) == errors)
        return sum(sum(rows.values()) for rows in chosen)

    def offsets(self) -> Counter[int]:
        counter: Counter[int] = Counter()
        for rows in self.tables.values():
            counter.update(rows)
        return counter


@dataclass(frozen=True)
class UnloadedFiles:
    """Staged files of a partition whose rows are in no table, because they wait to be loaded or are in quarantine.

    An erasure is ``deleting`` this number of rows from tables. Tables dropped ``expired`` rows because of their age.
    """

    pending: Sequence[StagedFile] = ()
    quarantined: Sequence[StagedFile] = ()
    deleting: int = 0
    expired: int = 0

    @property
    def pending_rows(self) -> int:
        """Rows that wait for the next load."""
        return sum(file.rows for file in self.pending)

    @property
    def quarantined_rows(self) -> int:
        """Rows of files that the warehouse rejected."""
        return sum(file.rows for file in self.quarantined)

    def outside(self, offsets: Iterable[int]) -> list[int]:
        """Offsets outside the files' ranges."""
        files = (*self.pending, *self.quarantined)
        ranges = _merged(sorted((f.name.first_offset, f.until) for f in files))
        firsts = [first for first, _ in ranges]
        return [o for o in offsets if not (i := bisect_right(firsts, o)) or o >= ranges[i - 1][1]]


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, until in ranges:
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(until, merged[-1][1])
        else:
            merged.append((first, until))
    return merged


@dataclass(frozen=True)
class Witnesses:
    """The sources of an account. ``expected`` is the producers' log. ``compacts``: whether the broker compacts a topic.
    ``skips_nulls``: whether a topic's records without a value are skipped."""

    source: RecordSource
    expected: Callable[[TopicPartition], Expected | None]
    compacts: Callable[[str], bool]
    skips_nulls: Callable[[str], bool]
    judge: Judge
    #: the erased offsets of a commit's partition
    erased: Callable[[Commit, int], Offsets] = lambda commit, partition: ()
    #: the warehouse whose rows are compared
    warehouse: str = FIRST_WAREHOUSE


@dataclass
class Account:
    """Accounts for one partition."""

    commit: Commit
    tp: TopicPartition
    state: PartitionCommit
    broker: BrokerOffsets | None
    rows: WarehouseRows
    waiting: UnloadedFiles
    witnesses: Witnesses
    findings: list[Finding] = field(default_factory=list)
    _nulls: set[int] = field(default_factory=set)

    def settle(self) -> PartitionAccount:
        """Compare everything. Raises Unavailable."""
        position, totals = self.state.next, self._totals
        earliest = min(max(self.state.start, self.broker.earliest), position) if self.broker else position
        is_read, delivered = True, list[int]()
        try:
            delivered = self._delivered(earliest) if self.broker else []
        except (StateError, NotFound) as error:  # a damaged batch or another log
            is_read = False
            text = f"{self._place}: the broker's records cannot be compared: {error.message}"
            self.findings.append(Finding(text, error.next_step or "kbq plan", is_unknown=True))
        expected = self.witnesses.expected(self.tp)
        stored = self.rows.offsets()
        self._find_doubled()
        compacted = self._find_unknown(stored, delivered, earliest) if is_read else 0
        retired = sum(1 for offset in stored if offset < earliest) + compacted
        if expected is None and is_read:
            self._find_missing([o for o in delivered if o not in stored], len(delivered), retired, earliest)
        elif expected is not None:
            kept = (o for o in expected if o < position and not has(self._erased, o))
            self._compare_with_log({o: expected[o] for o in kept})
        return PartitionAccount(
            topic_partition=self.tp,
            epoch=self.commit.epoch,
            position=position,
            produced=None if expected is None else sum(1 for o in expected if o < position),
            read=len(delivered),
            gaps=sum(range_.positions for range_ in self._ranges(earliest)) - len(delivered) - compacted
            if self.broker
            else 0,
            retired=retired,
            pending=self.waiting.pending_rows,
            rows=self.rows.count(errors=False),
            errors=self.rows.count(errors=True),
            quarantined=self.waiting.quarantined_rows,
            unread=max(0, self.broker.latest - position) if self.broker else 0,
            totals=totals,
            findings=tuple(self.findings),
        )

    def _delivered(self, earliest: int) -> list[int]:
        """Offsets that the broker delivers in [earliest, position)."""
        delivered: list[int] = []
        for range_ in filter(None, self._ranges(earliest)):
            for batch in self.witnesses.source.read(range_):
                chunk = batch.chunk
                delivered.extend(chunk.offsets.tolist())
                self._nulls.update(chunk.offsets[chunk.starts < 0].tolist())
        return delivered

    def _ranges(self, earliest: int) -> Iterator[OffsetRange]:
        """[earliest, position) without the gaps that an operator accepted. These were not extracted, and some cannot be
        read."""
        first = earliest
        for gap in sorted(self.state.accepted_gaps, key=lambda gap: gap.first):
            if gap.until > first:
                yield OffsetRange(self.tp, first, max(first, gap.first))
                first = gap.until
        yield OffsetRange(self.tp, first, max(first, self.state.next))

    def _find_doubled(self) -> None:
        """Report offsets with several rows, in one table or in several."""
        where: dict[int, list[str]] = defaultdict(list)
        for table, rows in self.rows.tables.items():
            for offset, count in rows.items():
                where[offset].extend([str(table)] * count)
        doubled = {offset: tables for offset, tables in where.items() if len(tables) > 1}
        if doubled:
            self._name(
                "doubled", [f"{o} ({' and '.join(t)})" for o, t in sorted(doubled.items())], DELETE_ROWS
            )

    def _find_unknown(self, stored: Collection[int], delivered: list[int], earliest: int) -> int:
        """Report rows at offsets without a record, or beyond the commit; return the number of rows whose records the
        broker has compacted away."""
        known = set(delivered)
        beyond = [o for o in sorted(stored) if o >= self.state.next]
        absent = [o for o in sorted(stored) if earliest <= o < self.state.next and o not in known]
        compacted = len(absent) if absent and self.witnesses.compacts(self.tp.topic) else 0
        if unknown := beyond if compacted else sorted([*beyond, *absent]):
            named = [self._where(o) for o in unknown]
            self._name("in the warehouse but not on the broker", named, DELETE_ROWS)
        return compacted

    def _find_missing(self, missing: list[int], delivered: int, retired: int, earliest: int) -> None:
        skipped = self._totals.skipped
        excused = self.waiting.pending_rows + skipped + self.waiting.quarantined_rows + self._totals.erased
        # Of records that the broker no longer has, only the number is compared.
        missing_retired = self.state.totals.records - delivered - retired
        elsewhere = self.waiting.outside(o for o in missing if not has(self._erased, o))
        unexplained = len(missing) + missing_retired - excused
        expired = self.waiting.expired
        if not 0 <= unexplained <= self.waiting.deleting + expired or len(elsewhere) > skipped + expired:
            message = f"not in the warehouse (pending, skipped, quarantined or erased: {excused} of them)"
            if missing:
                self._name(message, [str(o) for o in missing], read_again(self.tp, missing[0]))
            else:
                retired_text = f"{counted(missing_retired, 'record')} below offset {earliest}"
                text = f"{self._place}: {message}: {retired_text}"
                step = read_backup if missing_retired > 0 else read_again
                self.findings.append(Finding(text, step(self.tp, earliest)))
        elif elsewhere and not expired:  # which of the records expired is unknown
            self._check_skipped(elsewhere)

    def _check_skipped(self, missing: list[int]) -> None:
        """Report missing records that extraction does not skip."""
        if self.witnesses.skips_nulls(self.tp.topic):
            missing = [o for o in missing if o not in self._nulls]
        if not missing:
            return
        found = self.witnesses.judge(self.commit, self.tp, missing)
        if found.rows:
            why = "not in the warehouse, although such records are not skipped"
            self._name(why, [str(o) for o in found.rows], read_again(self.tp, found.rows[0]))
        if found.problem:
            text = f"{counted(len(missing), 'record')} in no table, skipped or lost"
            self.findings.append(Finding(f"{self._place}: {text}: {found.problem}", is_unknown=True))

    def _compare_with_log(self, expected: Expected) -> None:
        wrong: dict[str, list[str]] = defaultdict(list)
        pending = self.waiting.pending_rows + self.waiting.quarantined_rows
        for offset, outcome in sorted(expected.items()):
            tables = [str(t) for t, rows in self.rows.tables.items() if offset in rows]
            wanted = self._wanted(outcome)
            if tables != wanted:
                kind = "missing" if not tables else "not in the table that the producers' log names"
                wrong[kind].append(f"{offset} (expected {' '.join(wanted) or 'nowhere'})")
        if len(wrong.get("missing", ())) == pending:
            wrong.pop("missing", None)
        for kind, rows in wrong.items():
            self._name(kind, rows, read_again(self.tp, int(rows[0].split()[0])))
        unlogged = [o for o in self.rows.offsets() if o not in expected]
        if unlogged:
            named = [self._where(o) for o in sorted(unlogged)]
            self._name("not in the producers' log", named, DELETE_ROWS)

    def _wanted(self, outcome: str) -> list[str]:
        if outcome.startswith("row:"):
            return [outcome.removeprefix("row:")]
        if outcome == "skip":
            return []
        return [str(t) for t in self.rows.tables if is_error_table(t)] or [ERROR_TABLE]

    def _where(self, offset: int) -> str:
        tables = [str(t) for t, rows in self.rows.tables.items() if offset in rows]
        return f"{offset} ({' and '.join(tables)})"

    @property
    def _totals(self) -> Counts:
        """Counts of the extracted rows, adjusted for replays and erasures."""
        return sum(self.state.changes_of(self.witnesses.warehouse).values(), self.state.totals)

    @property
    def _erased(self) -> Offsets:
        return self.witnesses.erased(self.commit, self.tp.partition)

    @property
    def _place(self) -> str:
        return f"{self.tp} epoch {self.commit.epoch}"

    def _name(self, what: str, offsets: list[str], next_step: str) -> None:
        shown = ", ".join(offsets[:SHOWN])
        more = f" and {len(offsets) - SHOWN} more" if len(offsets) > SHOWN else ""
        self.findings.append(Finding(f"{self._place}: {what}: offset {shown}{more}", next_step))
