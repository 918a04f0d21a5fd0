"""The statement of `load: upsert`, for tables that show the newest record of each key.

Batches may come in any order: schemas take turns (E8), files come back from quarantine, ranges are read again. So the
statement compares positions, and never relies on what was applied before:

    a record changes the row of its key only if its epoch and offset are higher than the row's
    a deletion is stored with its epoch and offset, so that an older record does not restore its key
    positions of two partitions cannot be compared: the statement fails unless timestamps decide (`tie: timestamp`)

Epochs can be compared within a commit, which has 64 partitions. Rows without a key are appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.debezium.change_columns import CHANGE_COLUMNS, OP, TRUNCATE
from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import PARTITIONS_PER_SHARD
from kbq_assets.core.statements import change_data
from kbq_assets.core.statements.dialects import Dialect
from kbq_assets.core.statements.expressions import greater, is_tombstone, same
from kbq_assets.core.statements.rules import DELETED, MARK, TIMESTAMP, StatementRule
from kbq_assets.core.statements.table_statements import SCRATCH

#: The error message of a statement that found a key in two partitions.
TWO_PARTITIONS: Final = "kbq: a key is in two partitions"
#: The columns of a record's position. The table of deleted keys uses other names, so that no listing mistakes it for a
#: table of records.
POSITION: Final = ("_kafka_topic", "_kafka_partition", "_kbq_epoch", "_kafka_offset")
REMEMBERED: Final = ("kbq_topic", "kbq_partition", "kbq_epoch", "kbq_offset")
TIME, REMEMBERED_TIME = "_kafka_timestamp", "kbq_timestamp"
_TYPES: Final = ("STRING", "INT64", "INT64", "INT64")


@dataclass(frozen=True)
class Upsert:
    """The inputs of an upsert's text. Names are in SQL; ``columns`` are the table's. ``tombstones``: all rows of the
    batch are deletions; ``flag`` is the column that marks deletions, if any. ``changes``: the rows are change events.
    ``converts``: the table's rows were appended."""

    dialect: Dialect
    rule: StatementRule
    target: str
    deleted: str
    columns: tuple[Column, ...]
    tombstones: bool = False
    flag: str = ""
    changes: bool = False
    one_partition: bool = False
    converts: bool = False

    @property
    def remembers(self) -> bool:
        """Whether deleted keys are in a separate table. Otherwise their rows stay, marked as deleted."""
        return self.rule.deletes != MARK


def deleted_columns(key: Sequence[Column]) -> tuple[Column, ...]:
    parts = (Column(key_name(number), column.type) for number, column in enumerate(key))
    positions = (Column(name, kind) for name, kind in zip(REMEMBERED, _TYPES, strict=True))
    return (*parts, *positions, Column(REMEMBERED_TIME, "TIMESTAMP"))


def upsert_sql(upsert: Upsert) -> str:
    """The statement's text, with `SCRATCH` for the name of the scratch table."""
    statements = [*_conversion(upsert)] if upsert.converts else []
    if not upsert.one_partition and upsert.rule.tie != TIMESTAMP:
        statements.append(_refusal(upsert))
    statements += _applied(upsert)
    if upsert.remembers and (upsert.tombstones or upsert.flag):
        statements.append(_memory(upsert, _newest(upsert, _batch(upsert), _is_deleted(upsert, "b"))))
    if not upsert.tombstones:
        statements.append(_without_key(upsert))
    return ";\n".join(statements)


def effective_sql(upsert: Upsert) -> str:
    """Query of the number of effective records in a batch that was just applied: those that the table shows, or that
    are stored as deletions of keys that the table lacks. The others are superseded."""

    def found(table: str, names: tuple[str, ...]) -> str:
        place = " AND ".join(f"x.{mine} = b.{theirs}" for mine, theirs in zip(names, POSITION, strict=True))
        return f"EXISTS (SELECT 1 FROM {table} AS x WHERE {place})"

    places = [found(upsert.target, POSITION)]
    if upsert.remembers:
        shown = f"SELECT 1 FROM {upsert.target} AS t WHERE {same(key_of(upsert, 't'), key_of(upsert, 'b'))}"
        places.append(f"({found(upsert.deleted, REMEMBERED)} AND NOT EXISTS ({shown}))")
    return f"SELECT COUNT(*) AS effective FROM {SCRATCH} AS b WHERE {' OR '.join(places)}"


def key_name(number: int) -> str:
    """The name of a key column in the table of deleted keys."""
    return f"key_{number}"


def key_of(upsert: Upsert, alias: str) -> list[str]:
    """The key's parts in a row of the table or of the batch."""
    return [upsert.dialect.path(alias, path) for path in upsert.rule.key]


def remembered_key(upsert: Upsert, alias: str) -> list[str]:
    """The key's parts in a row of the table of deleted keys."""
    return [f"{alias}.{key_name(number)}" for number in range(len(upsert.rule.key))]


def has_key(upsert: Upsert, alias: str) -> str:
    """Whether all parts of a row's key are set."""
    return " AND ".join(f"{part} IS NOT NULL" for part in key_of(upsert, alias))


def _is_deleted(upsert: Upsert, alias: str) -> str:
    if upsert.tombstones:
        return "TRUE"
    return f"COALESCE({alias}.{upsert.dialect.quoted(upsert.flag)}, FALSE)" if upsert.flag else "FALSE"


def _is_record(upsert: Upsert) -> str:
    """Whether a row of the batch is neither a deletion nor a truncation."""
    others = f" AND COALESCE(b.{OP}, '') <> '{TRUNCATE}'" if upsert.changes else ""
    return f"NOT {_is_deleted(upsert, 'b')}{others}"


def _batch(upsert: Upsert) -> str:
    """The rows of the batch that have an effect."""
    return change_data.AFTER_TRUNCATION if upsert.changes else SCRATCH


def _kept(upsert: Upsert) -> change_data.KeptColumns:
    """The columns that may keep the table's value."""
    partition = ", ".join(key_of(upsert, "b"))
    roots = {path.partition(".")[0] for path in upsert.rule.key}
    return change_data.kept_columns(
        upsert.dialect, upsert.columns if upsert.changes else (), partition, roots
    )


def is_newer(upsert: Upsert, left: str, right: str, of: tuple[str, ...] = POSITION, time: str = TIME) -> str:
    """Whether the row ``left`` is newer than ``right``, whose position columns are ``of``. A row without a position was
    written by hand, and counts as the oldest."""
    topic, partition, epoch, offset = (
        (f"{left}.{mine}", f"{right}.{theirs}") for mine, theirs in zip(POSITION, of, strict=True)
    )
    if upsert.rule.tie == TIMESTAMP:
        pairs = [(f"{left}.{TIME}", f"{right}.{time}"), epoch, topic, partition, offset]
        return f"COALESCE({greater(pairs)}, TRUE)"
    shards = (upsert.dialect.divided(each, PARTITIONS_PER_SHARD) for each in partition)
    apart = (
        f"{topic[0]} <> {topic[1]} OR {' <> '.join(shards)}"
        f" OR ({epoch[0]} = {epoch[1]} AND {partition[0]} <> {partition[1]})"
    )
    message = _message(left, right, of)
    failing = upsert.dialect.failing(message)
    return f"COALESCE(CASE WHEN {apart} THEN {failing} ELSE {greater([epoch, offset])} END, TRUE)"


def _message(left: str, right: str, of: tuple[str, ...]) -> str:
    """The error message. It has positions, but not the key's value, which may be personal data."""
    places = " || ' and ' || ".join(
        f"CAST({alias}.{names[1]} AS STRING) || ':' || CAST({alias}.{names[3]} AS STRING)"
        for alias, names in ((left, POSITION), (right, of))
    )
    return f"'{TWO_PARTITIONS}: ' || {places}"


def _newest(upsert: Upsert, source: str, condition: str = "TRUE") -> str:
    """Query of the newest row of each key in a batch."""
    order = ["_kbq_epoch", "_kafka_offset"]
    if upsert.rule.tie == TIMESTAMP:
        order = [TIME, "_kbq_epoch", "_kafka_topic", "_kafka_partition", "_kafka_offset"]
    ranked = (
        f"ROW_NUMBER() OVER (PARTITION BY {', '.join(key_of(upsert, 'b'))}"
        f" ORDER BY {', '.join(f'b.{name} DESC' for name in order)})"
    )
    where = f"{has_key(upsert, 'b')} AND {condition}"
    return f"SELECT b.*{_kept(upsert).selected} FROM {source} AS b WHERE {where} QUALIFY {ranked} = 1"


def _refusal(upsert: Upsert) -> str:
    """Statement that fails if the batch has a key in two partitions, whose positions cannot be compared."""
    shard = upsert.dialect.divided("b._kafka_partition", PARTITIONS_PER_SHARD)
    places = "b._kbq_epoch * 4294967296 + b._kafka_partition"
    found = (
        f"SELECT MIN(b._kafka_offset) AS first, MAX(b._kafka_offset) AS last FROM {SCRATCH} AS b"
        f" WHERE {has_key(upsert, 'b')} GROUP BY {', '.join(key_of(upsert, 'b'))}"
        f" HAVING MIN(b._kafka_topic) <> MAX(b._kafka_topic) OR MIN({shard}) <> MAX({shard})"
        f" OR COUNT(DISTINCT {places}) > COUNT(DISTINCT b._kbq_epoch)"
    )
    message = f"'{TWO_PARTITIONS}: offsets ' || CAST(f.first AS STRING) || ' and ' || CAST(f.last AS STRING)"
    return f"SELECT {upsert.dialect.failing(message)} FROM ({found}) AS f"


def _applied(upsert: Upsert) -> list[str]:
    """Statements that apply the batch's newest row of each key. Before deletions mark rows, records are applied: a
    marked row has the values of its key's last record, which may be in the same batch."""
    truncation = (
        [change_data.truncation(upsert.target, upsert.columns, upsert.rule)] if upsert.changes else []
    )
    if upsert.remembers or not upsert.flag:
        newest = _newest(upsert, _batch(upsert))
        return [*truncation, _merge(upsert, newest, _is_deleted(upsert, "s"))]
    records = _newest(upsert, SCRATCH, _is_record(upsert))
    deletions = _newest(upsert, _batch(upsert), _is_deleted(upsert, "b"))
    return [_merge(upsert, records, "FALSE"), *truncation, _merge(upsert, deletions, "TRUE")]


def _merge(upsert: Upsert, source: str, deleted: str) -> str:
    """Statement that applies the rows of the query ``source``, at most one per key. ``deleted``: whether a row ``s`` is
    a deletion."""
    quoted, newer = upsert.dialect.quoted, is_newer(upsert, "s", "t")
    if upsert.remembers:
        known = is_newer(upsert, "n", "d", REMEMBERED, REMEMBERED_TIME)
        source = (
            f"SELECT n.* FROM ({source}) AS n LEFT JOIN {upsert.deleted} AS d"
            f" ON {same(remembered_key(upsert, 'd'), key_of(upsert, 'n'))} WHERE d.kbq_offset IS NULL OR {known}"
        )
    lines = [
        f"MERGE INTO {upsert.target} AS t USING ({source}) AS s"
        f" ON {same(key_of(upsert, 't'), key_of(upsert, 's'))}"
    ]
    names = [column.name for column in upsert.columns]
    if deleted != "FALSE" and upsert.remembers:
        lines.append(f"WHEN MATCHED AND {newer} AND {deleted} THEN DELETE")
    elif deleted != "FALSE":
        own = [n for n in names if n.lower() in (*OWN_COLUMNS, *CHANGE_COLUMNS) and n not in upsert.rule.key]
        marked = [*(f"{quoted(name)} = s.{quoted(name)}" for name in own), f"{quoted(DELETED)} = TRUE"]
        lines.append(f"WHEN MATCHED AND {newer} AND {deleted} THEN UPDATE SET {', '.join(marked)}")
    if deleted != "TRUE":
        kept = _kept(upsert)
        updates = ", ".join(f"{quoted(n)} = {kept.updated(n) or _value(upsert, n)}" for n in names)
        lines.append(f"WHEN MATCHED AND {newer} THEN UPDATE SET {updates}")
    if deleted != "TRUE" or not upsert.remembers:
        condition = f" AND NOT {deleted}" if upsert.remembers and deleted != "FALSE" else ""
        values = ", ".join(_value(upsert, name) for name in names)
        lines.append(
            f"WHEN NOT MATCHED{condition} THEN INSERT ({', '.join(map(quoted, names))}) VALUES ({values})"
        )
    return "\n".join(lines)


def _value(upsert: Upsert, name: str, alias: str = "s") -> str:
    if name == DELETED:
        return _is_deleted(upsert, alias)
    return f"{alias}.{upsert.dialect.quoted(name)}"


def _memory(upsert: Upsert, deletions: str) -> str:
    """Statement that stores the keys of deletions."""
    key, positions = remembered_key(upsert, "d"), (*REMEMBERED, REMEMBERED_TIME)
    found = (*POSITION, TIME)
    changes = ", ".join(f"{mine} = s.{theirs}" for mine, theirs in zip(positions, found, strict=True))
    inserted = ", ".join((*(key_name(number) for number in range(len(key))), *positions))
    values = ", ".join((*key_of(upsert, "s"), *(f"s.{name}" for name in found)))
    return (
        f"MERGE INTO {upsert.deleted} AS d USING ({deletions}) AS s ON {same(key, key_of(upsert, 's'))}\n"
        f"WHEN MATCHED AND {is_newer(upsert, 's', 'd', REMEMBERED, REMEMBERED_TIME)} THEN UPDATE SET {changes}\n"
        f"WHEN NOT MATCHED THEN INSERT ({inserted}) VALUES ({values})"
    )


def _without_key(upsert: Upsert) -> str:
    """Statement that appends rows without a key. A deletion without a key has no effect."""
    names = [column.name for column in upsert.columns]
    listed = ", ".join(map(upsert.dialect.quoted, names))
    values = ", ".join(_value(upsert, name, "b") for name in names)
    where = f"NOT ({has_key(upsert, 'b')})" + (f" AND NOT {_is_deleted(upsert, 'b')}" if upsert.flag else "")
    return f"INSERT INTO {upsert.target} ({listed}) SELECT {values} FROM {_batch(upsert)} AS b WHERE {where}"


def _conversion(upsert: Upsert) -> Iterable[str]:
    """Statements that make an appended table show the newest record of each key. They store the keys of tombstones,
    then delete the tombstones and all rows for which a newer row or a newer deletion exists; there may be older
    deletions because the table may have been upserted before."""
    quoted = upsert.dialect.quoted
    tombstone = is_tombstone(upsert.dialect, upsert.columns, [DELETED], "t")
    if upsert.remembers and tombstone:
        tombstones = _newest(
            upsert, upsert.target, is_tombstone(upsert.dialect, upsert.columns, [DELETED], "b")
        )
        yield _memory(upsert, tombstones)
    yield (
        f"DELETE FROM {upsert.target} AS t WHERE {has_key(upsert, 't')} AND EXISTS (SELECT 1 FROM {upsert.target}"
        f" AS u WHERE {same(key_of(upsert, 'u'), key_of(upsert, 't'))} AND {is_newer(upsert, 'u', 't')})"
    )
    if upsert.remembers:
        known = is_newer(upsert, "t", "d", REMEMBERED, REMEMBERED_TIME)
        yield (
            f"DELETE FROM {upsert.target} AS t WHERE {has_key(upsert, 't')} AND EXISTS (SELECT 1 FROM "
            f"{upsert.deleted} AS d WHERE {same(remembered_key(upsert, 'd'), key_of(upsert, 't'))} AND NOT {known})"
        )
    if tombstone and upsert.remembers:
        yield f"DELETE FROM {upsert.target} AS t WHERE {tombstone}"
    elif tombstone:
        flag = quoted(DELETED)
        yield f"UPDATE {upsert.target} AS t SET {flag} = ({tombstone}) WHERE t.{flag} IS NULL"
