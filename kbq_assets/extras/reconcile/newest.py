"""The account of a table with the newest record of each key: compares its rows with the records of its topics."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.statements.rules import MARK, TIMESTAMP, StatementRule
from kbq_assets.extras.reconcile.account import SHOWN
from kbq_assets.extras.reconcile.findings import DELETE_ROWS, Finding, read_again
from kbq_assets.extras.reconcile.spill import Spill

#: Records that are compared in memory at once.
PER_PART: Final = 100_000


class RecordPlace(NamedTuple):
    """The position of a record in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offset {self.offset}"


class KeyedRecord(NamedTuple):
    """An applied record: its key (None: it has none), Kafka's timestamp, and whether it deletes its key.

    ``rows``: the number of the table's rows with its position. ``is_remembered``: whether the table stores it as a
    deletion.
    """

    place: RecordPlace
    key: tuple[Any, ...] | None
    time: Any = None
    deletes: bool = False
    rows: int = 0
    is_remembered: bool = True


@dataclass(frozen=True)
class UpsertAccount:
    """What became of a table's records: a row, superseded by a newer record of the key, or deleted with the key."""

    table: TableReference
    rows: int = 0
    superseded: int = 0
    deleted: int = 0
    findings: tuple[Finding, ...] = ()
    topics: tuple[str, ...] = ()

    @property
    def is_unknown(self) -> bool:
        """Whether the table was not compared."""
        return any(finding.is_unknown for finding in self.findings)

    def __str__(self) -> str:
        changes = f"{counted(self.superseded, 'record')} superseded, {counted(self.deleted, 'key')} deleted"
        return f"{self.table}: {counted(self.rows, 'row')}, {changes}"


@dataclass
class NamedRecords:
    """The number of some records, and the first few of them."""

    count: int = 0
    first: list[tuple[RecordPlace, str]] = field(default_factory=list)

    def add(self, place: RecordPlace, note: str = "") -> None:
        self.count += 1
        bisect.insort(self.first, (place, note))
        del self.first[SHOWN:]

    @property
    def again(self) -> str:
        place = self.first[0][0]
        return read_again(TopicPartition(place.topic, place.partition), place.offset)

    def __str__(self) -> str:
        more = f" and {self.count - SHOWN} more" if self.count > SHOWN else ""
        return ", ".join(f"{place}{note}" for place, note in self.first) + more


@dataclass
class OtherRows:
    """Rows without an applied record at their position. ``undecided`` are those whose records Kafka no longer has.
    ``repaired`` are those that a function made from bad records; their keys may differ from the records'.
    ``has_several_pseudonyms``: whether a key may have several rows (hidden_keys.py). ``expire``: whether the table
    drops old rows."""

    rows: int = 0
    unknown: NamedRecords = field(default_factory=NamedRecords)
    strange: list[str] = field(default_factory=list)
    undecided: int = 0
    repaired: int = 0
    has_several_pseudonyms: bool = False
    expire: bool = False


@dataclass
class _PartOfKeys:
    """The newest record of each key in a part, and the keys that are in two partitions."""

    newest: dict[tuple[Any, ...], KeyedRecord] = field(default_factory=dict)
    torn: set[tuple[Any, ...]] = field(default_factory=set)


@dataclass
class NewestAccount:
    """Accounts for one table, one part of its keys at a time."""

    table: TableReference
    rule: StatementRule
    spill: Spill[KeyedRecord]
    other: OtherRows
    #: the offset below which every record of a partition is deleted (Debezium's truncations)
    truncations: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: the end of the last erased record in each partition
    erased: Mapping[TopicPartition, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _doubled: NamedRecords = field(default_factory=NamedRecords)
    _older: NamedRecords = field(default_factory=NamedRecords)
    _missing: NamedRecords = field(default_factory=NamedRecords)
    _perhaps_erased: NamedRecords = field(default_factory=NamedRecords)
    _forgotten: NamedRecords = field(default_factory=NamedRecords)
    _truncated: NamedRecords = field(default_factory=NamedRecords)

    def settle(self) -> UpsertAccount:
        """Compare the rows with the applied records."""
        rows, superseded, deleted, torn = self.other.rows, 0, 0, 0
        for number in self.spill.parts:
            part = self._newest_of(number)
            torn += len(part.torn)
            superseded -= len(part.newest)
            for record in self.spill.read(number):
                rows += record.rows
                superseded += record.key is not None
                self._judge(record, part)
            deleted += self._judge_keys(part)
        if torn:
            self._unknown(f"{counted(torn, 'key')} in two partitions, whose records cannot be compared")
        if self.other.undecided:
            self._unknown(f"Kafka no longer has the records of {counted(self.other.undecided, 'row')}")
        if self.other.repaired:
            self._unknown(
                f"a function repaired the records of {counted(self.other.repaired, 'row')} (kbq errors replay)"
            )
        self._name_all()
        return UpsertAccount(self.table, rows, superseded, deleted, tuple(self.findings))

    def _newest_of(self, number: int) -> _PartOfKeys:
        part = _PartOfKeys()
        for record in self.spill.read(number):
            if record.key is None:
                continue
            known = part.newest.setdefault(record.key, record)
            if known.place[:2] != record.place[:2] and (
                self.rule.tie != TIMESTAMP or known.time is None or known.time == record.time
            ):
                part.torn.add(record.key)
            if self._order(record) > self._order(known):
                part.newest[record.key] = record
        return part

    def _order(self, record: KeyedRecord) -> tuple[Any, ...]:
        by_time = self.rule.tie == TIMESTAMP and record.time is not None
        return (record.time, record.place.offset) if by_time else (record.place.offset,)

    def _judge(self, record: KeyedRecord, part: _PartOfKeys) -> None:
        """Compare the rows of a record with the expected ones."""
        if record.rows > 1:
            self._doubled.add(record.place, f" ({record.rows} rows)")
        if record.rows and self.rule.deletes != MARK and self._is_truncated(record):
            self._truncated.add(record.place)
        elif record.key is None:
            if not (record.rows or record.deletes or self._is_truncated(record)):
                self._missing.add(record.place)
        elif record.rows and record.key not in part.torn:
            newest = part.newest[record.key]
            if newest.place != record.place:
                self._older.add(record.place, f" (newest: {newest.place})")

    def _judge_keys(self, part: _PartOfKeys) -> int:
        """Record keys without their row; return the number of deleted keys."""
        deleted, marks = 0, self.rule.deletes == MARK
        for newest in self._decided(part):
            is_truncated = self._is_truncated(newest)
            deleted += newest.deletes or is_truncated
            if is_truncated:
                continue  # it depends on the batches whether its row was ever written
            if (marks or not newest.deletes) and not newest.rows:
                (self._perhaps_erased if self._may_be_erased(newest) else self._missing).add(newest.place)
            if newest.deletes and not newest.is_remembered:
                self._forgotten.add(newest.place)
        return deleted

    def _is_truncated(self, record: KeyedRecord) -> bool:
        topic, partition, offset = record.place
        return offset < self.truncations.get(TopicPartition(topic, partition), 0)

    def _may_be_erased(self, record: KeyedRecord) -> bool:
        """Whether a newer record of the key may have been erased, together with the key's row."""
        topic, partition, offset = record.place
        return offset < self.erased.get(TopicPartition(topic, partition), 0)

    def _decided(self, part: _PartOfKeys) -> Iterator[KeyedRecord]:
        return (newest for key, newest in part.newest.items() if key not in part.torn)

    def _name_all(self) -> None:
        may_be_newer = bool(self.other.undecided) and self.rule.tie == TIMESTAMP
        may_be_newer = may_be_newer or bool(self.other.repaired)
        several = self.other.has_several_pseudonyms
        note = "several rows of a key, because pseudonyms changed: " if several else ""
        self._name(f"{note}doubled rows", self._doubled, DELETE_ROWS, is_unknown=several)
        self._name(
            f"{note}rows that are older than their key's newest record", self._older, is_unknown=several
        )
        self._name("rows of records before the last truncation", self._truncated, DELETE_ROWS)
        self._name("rows without an applied record", self.other.unknown, DELETE_ROWS)
        for text in self.other.strange:
            self._add(f"rows without an applied record: {text}", DELETE_ROWS)
        too_old = ", which may be older than partition_expiry_days" if self.other.expire else ""
        is_unknown = may_be_newer or self.other.expire
        self._name(f"keys without their newest row{too_old}", self._missing, is_unknown=is_unknown)
        self._name(
            "keys without a row, whose newest record may be one that was erased",
            self._perhaps_erased,
            "to erase all records of such a key: kbq erase start TOPIC --key-file FILE; do not reset the topic",
            is_unknown=True,
        )
        self._name("deletions that are not stored", self._forgotten)

    def _name(
        self, what: str, places: NamedRecords, next_step: str = "", *, is_unknown: bool = False
    ) -> None:
        if places.count:
            self._add(f"{what}: {places}", next_step or places.again, is_unknown=is_unknown)

    def _unknown(self, text: str) -> None:
        self._add(text, "", is_unknown=True)

    def _add(self, text: str, next_step: str, *, is_unknown: bool = False) -> None:
        self.findings.append(Finding(f"{self.table}: {text}", next_step, is_unknown=is_unknown))
