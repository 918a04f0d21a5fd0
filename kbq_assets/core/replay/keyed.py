"""The SQL that replaces a range of an upsert table, or restores its former rows (PROTOCOL R11). Pure functions.

The table shows the newest record of each key, so a range is replaced key by key:

    all rows of the range are removed, and all stored deletions by records of the range
    then the replay's records, or the copies of what they replaced, are applied like any batch of the table

So a key whose row is newer than the range keeps it. If the replay lacks a key of the range, the table should show the
key's previous row, but that was not kept; `unknown_sql` counts such keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.replay.model import REPLAY_COLUMN, Replay
from kbq_assets.core.statements.expressions import is_tombstone, same
from kbq_assets.core.statements.rules import DELETED
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.upsert import (
    POSITION,
    REMEMBERED,
    REMEMBERED_TIME,
    TIME,
    Upsert,
    has_key,
    is_newer,
    key_name,
    key_of,
    remembered_key,
    upsert_sql,
)


@dataclass(frozen=True)
class KeyedRange:
    """A replay's range in one upsert table. Names are in SQL. ``shadow`` and ``former`` have all columns of the table,
    ``former_deleted`` those of the table of deleted keys. ``tombstones``: records without a value are deletions."""

    replay: Replay
    upsert: Upsert
    shadow: str
    former: str
    former_deleted: str
    tombstones: bool = False

    @property
    def _is_flagged(self) -> bool:
        return any(column.name == DELETED for column in self.upsert.columns)

    def promotion_sql(self) -> str:
        """Text that copies all rows that may change, then replaces the range's rows by the replay's records."""
        applied = replace(self.upsert, flag=DELETED if self.tombstones or self._is_flagged else "")
        return ";\n".join(
            (*self._copies(), *self._removals(), upsert_sql(applied).replace(SCRATCH, self._records()))
        )

    def rollback_sql(self) -> str:
        """Text that restores the copies, except where newer rows came since. Older rows cannot have come (R11)."""
        applied = replace(self.upsert, flag=DELETED if self._is_flagged else "")
        statements = [*self._removals()]
        if self.upsert.remembers:
            statements.append(self._remembering())
        return ";\n".join((*statements, upsert_sql(applied).replace(SCRATCH, self.former)))

    def unknown_sql(self) -> str:
        """Query of the number of keys whose newest record is in the range, and that have no record in the replay."""
        found = f"{self._within('s')} AND {same(key_of(self.upsert, 's'), _names('c', self._keys))}"
        return (
            f"SELECT COUNT(*) AS keys FROM ({self._newest_in_range()}) AS c"
            f" WHERE NOT EXISTS (SELECT 1 FROM {self.shadow} AS s WHERE {found})"
        )

    def unread_sql(self, shadows: Iterable[str]) -> str:
        """Query of the number of keys whose newest record is in the range but in none of the replay's tables."""
        places = " UNION ALL ".join(f"SELECT _kafka_partition, _kafka_offset FROM {name}" for name in shadows)
        return (
            f"SELECT COUNT(*) AS keys FROM ({self._newest_in_range()}) AS c WHERE NOT EXISTS (SELECT 1 FROM ({places})"
            " AS s WHERE s._kafka_partition = c._kafka_partition AND s._kafka_offset = c._kafka_offset)"
        )

    @property
    def _keys(self) -> list[str]:
        return [key_name(number) for number in range(len(self.upsert.rule.key))]

    def _within(self, alias: str, names: Sequence[str] = POSITION) -> str:
        topic, partition, epoch, offset = (f"{alias}.{name}" for name in names)
        ranges = " OR ".join(
            f"({partition} = {each.topic_partition.partition:d}"
            f" AND {offset} >= {each.from_offset:d} AND {offset} < {each.until_offset:d})"
            for each in self.replay.ranges
        )
        return f"{topic} = '{self.replay.topic}' AND {epoch} = {self.replay.epoch:d} AND ({ranges})"

    def _records(self) -> str:
        """The replay's records, as rows of a batch."""
        upsert, flags = self.upsert, [f"COALESCE(x.{DELETED}, FALSE)"] if self._is_flagged else []
        if self.tombstones:
            found = is_tombstone(upsert.dialect, upsert.columns, [DELETED], "x")
            flags.append(f"({found or 'TRUE'})")
        flag = f", ({' OR '.join(flags)}) AS {DELETED}" if flags else ""
        replaced = f"{self.replay.number:d} AS {REPLAY_COLUMN}{flag if self._is_flagged else ''}"
        added = "" if self._is_flagged else flag
        return f"(SELECT x.* REPLACE ({replaced}){added} FROM {self.shadow} AS x WHERE {self._within('x')})"

    def _copies(self) -> Iterable[str]:
        upsert = self.upsert
        names = ", ".join(upsert.dialect.quoted(column.name) for column in upsert.columns)
        rows = f"SELECT {names} FROM {upsert.target} AS t WHERE {self._replaceable('t', key_of(upsert, 't'))}"
        yield f"DELETE FROM {self.former} WHERE TRUE"
        yield f"INSERT INTO {self.former} ({names}) {rows}"
        if upsert.remembers:
            names = ", ".join((*self._keys, *REMEMBERED, REMEMBERED_TIME))
            of = self._replaceable("d", remembered_key(upsert, "d"), REMEMBERED)
            yield f"DELETE FROM {self.former_deleted} WHERE TRUE"
            yield f"INSERT INTO {self.former_deleted} ({names}) SELECT {names} FROM {upsert.deleted} AS d WHERE {of}"

    def _replaceable(self, alias: str, key: list[str], names: Sequence[str] = POSITION) -> str:
        """Whether a promotion may change a row, because it is in the range or has a key of the replay."""
        found = f"SELECT 1 FROM {self.shadow} AS s WHERE {self._within('s')} AND {same(key_of(self.upsert, 's'), key)}"
        return f"(({self._within(alias, names)}) OR EXISTS ({found}))"

    def _removals(self) -> Iterable[str]:
        upsert = self.upsert
        yield f"DELETE FROM {upsert.target} AS t WHERE {self._within('t')}"
        if upsert.remembers:
            yield f"DELETE FROM {upsert.deleted} AS d WHERE {self._within('d', REMEMBERED)}"

    def _remembering(self) -> str:
        """Statement that restores former deletions."""
        names = (*self._keys, *REMEMBERED, REMEMBERED_TIME)
        place = dict(zip(POSITION, REMEMBERED, strict=True)) | {TIME: REMEMBERED_TIME}
        columns = ", ".join((*self._keys, *(f"{mine} AS {theirs}" for theirs, mine in place.items())))
        newer = is_newer(self.upsert, "s", "d", REMEMBERED, REMEMBERED_TIME)
        changes = ", ".join(f"{mine} = s.{theirs}" for theirs, mine in place.items())
        values = ", ".join((*_names("s", self._keys), *(f"s.{theirs}" for theirs in place)))
        key = same(remembered_key(self.upsert, "d"), _names("s", self._keys))
        return (
            f"MERGE INTO {self.upsert.deleted} AS d USING (SELECT {columns} FROM {self.former_deleted}) AS s ON {key}\n"
            f"WHEN MATCHED AND {newer} THEN UPDATE SET {changes}\n"
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"
        )

    def _newest_in_range(self) -> str:
        """Query of the keys whose newest record (or deletion) is in the range, with its position."""
        upsert = self.upsert
        parts = [f"{part} AS {name}" for part, name in zip(key_of(upsert, "t"), self._keys, strict=True)]
        own = ", ".join((*parts, *(f"t.{name}" for name in POSITION)))
        found = f"SELECT {own} FROM {upsert.target} AS t WHERE {self._within('t')} AND {has_key(upsert, 't')}"
        if not upsert.remembers:
            return found
        pairs = zip(POSITION, REMEMBERED, strict=True)
        own = ", ".join((*remembered_key(upsert, "d"), *(f"d.{mine} AS {name}" for name, mine in pairs)))
        shown = f"SELECT 1 FROM {upsert.target} AS t WHERE {same(key_of(upsert, 't'), remembered_key(upsert, 'd'))}"
        deletions = f"SELECT {own} FROM {upsert.deleted} AS d WHERE {self._within('d', REMEMBERED)}"
        return f"{found} UNION ALL {deletions} AND NOT EXISTS ({shown})"


def _names(alias: str, names: Iterable[str]) -> list[str]:
    return [f"{alias}.{name}" for name in names]


def with_all(shadow: Iterable[Column], target: Iterable[Column]) -> tuple[Column, ...]:
    """The columns that a shadow lacks to serve as a batch of its table."""
    known = {column.name.lower() for column in shadow}
    return tuple(
        replace(column, mode="NULLABLE") if column.mode == "REQUIRED" else column
        for column in target
        if column.name.lower() not in known
    )
