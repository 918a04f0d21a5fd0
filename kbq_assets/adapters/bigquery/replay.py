"""Replays in BigQuery (`ports.replay.ReplayTables`): one multi-statement transaction replaces the range in all tables.

BigQuery bills three parts: the copy of the former rows for the range's days, the deletion for KBQ's narrow columns and
for all columns of the partitions that it changes, and the insertion for the replay's rows. A transaction changes at
most 100 tables: https://cloud.google.com/bigquery/docs/transactions
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final, TypeAlias

from google.cloud import bigquery

from kbq_assets.adapters.bigquery import catalog, load_jobs, schema
from kbq_assets.adapters.bigquery.insertions import JobKey, insert_query
from kbq_assets.adapters.bigquery.outcomes import calls
from kbq_assets.adapters.bigquery.queries import Query, all_partitions, hours_since, name_of
from kbq_assets.adapters.bigquery.renaming import insertion
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import REPLAY_COLUMN, SHADOW, check_own
from kbq_assets.core.statements.dialects import BIGQUERY
from kbq_assets.core.statements.keys import has_paths
from kbq_assets.ports.replay import (
    DayRows,
    Keys,
    PartitionDay,
    ReplaceJob,
    Replacement,
    RowDifference,
    RowRange,
)
from kbq_assets.ports.warehouse import EVERYTHING, JobStatus

#: The table of job ids that took effect. Each transaction adds its id, because a script may fail after its COMMIT.
ENDED: Final = f"{SHADOW}jobs"
_DATE: Final = "event_date"
#: How often a promotion counts a range before its transaction (pipelines/replay/promote.py): twice for the affected
#: tables, once while each table waits, and once for the days of the copy.
_COUNTS: Final = 4
_MOST_TABLES: Final = 100  # includes the copies of former rows, deleted keys, and `ENDED`
_Parameter: TypeAlias = bigquery.ScalarQueryParameter | bigquery.ArrayQueryParameter


class BigQueryReplayTables:
    """Runs replays with a session's client."""

    one_transaction: bool = True

    def __init__(self, session: Session) -> None:
        self._session = session

    def days(
        self, tables: Collection[TableReference], rows: RowRange, keys: Keys | None = None
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        """Counts of the range by partition and day. One query per table reads narrow columns and those of the key."""
        found = catalog.find_all(self._session, tables)
        return {
            table: self._days(table, stored, rows, (keys or {}).get(table, ()))
            for table, stored in found.items()
        }

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        """The first offsets that differ. Reads whole rows, but only of the range's days."""
        found = catalog.find_all(self._session, (live, replay))
        sides = [
            Side(found[table], self._days_of(table, found[table], rows))
            for table in (live, replay)
            if table in found
        ]
        if not sides or not limit:
            return ()
        if len(sides) == 1:
            common, query = [], _lone(sides[0], live in found, rows, limit)
        else:
            common, query = _common(*sides), _both(sides[0], sides[1], rows, limit)
        return tuple(
            RowDifference(p, o, () if only else tuple(common[int(n)] for n in numbers.split(",") if n), only)
            for p, o, numbers, only in self._session.query(f"{live} and its replay", query)
        )

    def shared(
        self, one: Collection[TableReference], other: Collection[TableReference], rows: RowRange
    ) -> int:
        """The number of the range's offsets on both sides, from one query of narrow columns."""
        found = catalog.find_all(self._session, (*one, *other))
        where, parameters = _where(rows)
        sides = [
            " UNION DISTINCT ".join(
                f"SELECT _kafka_partition, _kafka_offset FROM {name_of(found[table])}"
                f" WHERE {_all(all_partitions(found[table]), where)}"
                for table in side
                if table in found
            )
            for side in (one, other)
        ]
        if not all(sides):
            return 0
        sql = f"SELECT COUNT(*) FROM (({sides[0]}) INTERSECT DISTINCT ({sides[1]}))"
        [[count]] = self._session.query("the tables of a replay", Query(sql, parameters))
        return int(count)

    def bytes_billed(self, sources: Mapping[TableReference, TableReference], rows: RowRange) -> int:
        """The estimated bytes from dry runs. Former rows are read for their copy, and their days are billed again for
        the deletion. The deletion and each count before it read narrow columns. New rows are read once."""
        found = catalog.find_all(self._session, (*sources, *sources.values()))
        return sum(self._billed(found.get(t), found.get(source), rows) for t, source in sources.items())

    def replace(self, job: ReplaceJob) -> None:
        """Create the tables for the former rows, then send the transaction once. Raises the errors in the table of
        outcomes."""
        changed = 1 + sum(4 if each.sql else 2 for each in job.replacements)
        if changed > _MOST_TABLES:
            raise Refused(
                f"{len(job.replacements)} tables, {changed} with their copies: a transaction in BigQuery changes at"
                f" most {_MOST_TABLES}",
                next_step="kbq replay drop, then replay a shorter range",
            )
        session, ended = self._session, self._ended(job.replacements)
        parts = [
            part for n, each in enumerate(job.replacements) for part in self._replacement(n, each, job.rows)
        ]
        dates = [parameter for _, parameters in parts for parameter in parameters]
        config = bigquery.QueryJobConfig(
            use_legacy_sql=False,
            query_parameters=[
                *_where(job.rows)[1],
                bigquery.ScalarQueryParameter("job", "STRING", job.job_id),
                *dates,
            ],
            labels={load_jobs.REPLAY: "true"},
            job_timeout_ms=load_jobs.JOB_TIMEOUT_MS,
        )
        text = "\n".join(
            (
                *(f"{load_jobs.SOURCE}{source}" for source in job.sources),
                "BEGIN TRANSACTION;",
                f"INSERT INTO {ended} (job) VALUES (@job);",
                *(statement for statement, _ in parts),
                "COMMIT TRANSACTION;",
            )
        )
        insert_query(session.client, "", text, JobKey(job.job_id, session.project, session.location), config)

    def drop(self, tables: Collection[TableReference]) -> None:
        for table in tables:
            check_own(table)
        for table in tables:
            with calls(f"table {table}", "bigquery.tables.delete"):
                self._session.client.delete_table(
                    self._session.reference(table), not_found_ok=True, **self._session.repeated
                )

    def settled(self, status: JobStatus) -> JobStatus:
        """The status of a replacement job, ignoring a failure after its COMMIT."""
        if status.error is None or status.state != "DONE" or not status.source_uris:
            return status
        name, _, rest = status.source_uris[0].partition(":")
        if name != "replay" or not rest:
            return status
        ended = TableReference(TableReference.parse(rest).dataset, ENDED)
        if self._session.find_table(ended) is None:
            return status
        job = bigquery.ScalarQueryParameter("job", "STRING", status.job_id)
        sql = f"SELECT COUNT(*) FROM {self._name(ended)} WHERE job = @job"
        [[found]] = self._session.query(str(ended), Query(sql, (job,)))
        return replace(status, error=None) if found else status

    def _billed(self, live: bigquery.Table | None, source: bigquery.Table | None, rows: RowRange) -> int:
        kept = counted = 0
        if live is not None:
            days = self._days_of(TableReference(live.dataset_id, live.table_id), live, rows)
            side = Side(live, days)
            kept = self._bytes(live, side.pruned, rows, side.parameters)
            counted = self._session.bytes_read(live.table_id, _counts(live, rows))
        new = self._bytes(source, all_partitions(source), rows) if source else kept
        return 2 * kept + (1 + _COUNTS) * counted + new

    def _bytes(
        self, table: bigquery.Table, pruned: str, rows: RowRange, dates: tuple[_Parameter, ...] = ()
    ) -> int:
        where, parameters = _where(rows)
        sql = f"SELECT * FROM {name_of(table)} WHERE {_all(pruned, where)}"
        return self._session.bytes_read(table.table_id, Query(sql, (*parameters, *dates)))

    def _days(
        self, table: TableReference, stored: bigquery.Table, rows: RowRange, key: Sequence[str] = ()
    ) -> dict[PartitionDay, DayRows]:
        found = self._session.query(str(table), _counts(stored, rows, key))
        return {PartitionDay(*row[:2]): DayRows(*row[2:]) for row in found}

    def _days_of(
        self, table: TableReference, stored: bigquery.Table, rows: RowRange
    ) -> frozenset[date | None]:
        return frozenset(at.day for at in self._days(table, stored, rows))

    def _ended(self, replacements: Iterable[Replacement]) -> str:
        """The name of `ENDED` in the dataset of the first table; creates it if needed."""
        table = TableReference(next(iter(replacements)).table.dataset, ENDED)
        new = bigquery.Table(self._session.reference(table), [bigquery.SchemaField("job", "STRING")])
        self._create(table, new)
        return self._name(table)

    def _replacement(
        self, number: int, each: Replacement, rows: RowRange
    ) -> Iterable[tuple[str, tuple[_Parameter, ...]]]:
        if each.sql:
            yield f"{each.sql};", ()
            return
        where, _ = _where(rows)
        stored = self._existing(each.table)
        name, columns = name_of(stored), _columns(stored)
        if each.former is not None:
            former = self._former(each.former, stored, columns)
            side = Side(stored, self._days_of(each.table, stored, rows), f"dates_{number}")
            yield f"DELETE FROM {former} WHERE TRUE;", ()
            copied = insertion(former, columns, name, columns)
            yield f"{copied} WHERE {_all(side.pruned, where)};", side.parameters
        yield f"DELETE FROM {name} WHERE {_all(all_partitions(stored), where)};", ()
        if each.former is not None:
            yield (
                (
                    f"IF @@row_count != (SELECT COUNT(*) FROM {former}) THEN\n"
                    f"  RAISE USING MESSAGE = 'kbq: rows of {each.table} changed meanwhile';\nEND IF;"
                ),
                (),
            )
        if each.source is not None:
            source = self._existing(each.source)
            added = REPLAY_COLUMN if each.number else ""
            text = insertion(name, columns, name_of(source), _columns(source), added)
            text = text.replace("@number", str(each.number))
            yield f"{text} WHERE {_all(all_partitions(source), where)};", ()

    def _former(self, table: TableReference, live: bigquery.Table, columns: tuple[Column, ...]) -> str:
        """The name of a table for the former rows, with the live table's schema. An existing one is kept, since others
        may need its rows; it only gains missing columns."""
        new = bigquery.Table(self._session.reference(table), live.schema)
        if self._create(table, new).schema != new.schema:
            catalog.update(self._session, table, columns, TableNotes())
        return self._name(table)

    def _create(self, table: TableReference, new: bigquery.Table) -> bigquery.Table:
        if self._session.encryption:
            new.encryption_configuration = self._session.encryption
        with calls(f"table {table}", "bigquery.tables.create"):
            return self._session.client.create_table(new, exists_ok=True, **self._session.repeated)

    def _existing(self, table: TableReference) -> bigquery.Table:
        found = self._session.find_table(table)
        if found is None:
            raise Refused(f"{table} does not exist", next_step="run the command again: it creates the table")
        return found

    def _name(self, table: TableReference) -> str:
        return name_of(self._session.reference(table))


@dataclass(frozen=True)
class Side:
    """A table and the days of its rows in a range."""

    table: bigquery.Table
    days: frozenset[date | None]
    name: str = "dates"

    @property
    def pruned(self) -> str:
        """A condition that matches all rows of these days and reads only their partitions."""
        if not _has_date(self.table):
            return all_partitions(self.table)
        own = f"({_DATE} IN UNNEST(@{self.name})" + (f" OR {_DATE} IS NULL)" if None in self.days else ")")
        hours = (
            hours_since(self.table, f"DATE '{self._known[0]}'")
            if self._known and None not in self.days
            else ""
        )
        return _all(hours or all_partitions(self.table), own)

    @property
    def parameters(self) -> tuple[_Parameter, ...]:
        """The parameters of `pruned`."""
        return (
            (bigquery.ArrayQueryParameter(self.name, "DATE", self._known),) if _has_date(self.table) else ()
        )

    @property
    def _known(self) -> list[date]:
        return sorted(day for day in self.days if day is not None)


def _where(rows: RowRange) -> tuple[str, tuple[_Parameter, ...]]:
    """The condition for rows in the range, and its parameters. Numbers are part of the text: a request may have at most
    10,000 parameters, and a range may have more partitions."""
    parts = " OR ".join(
        f"_kafka_partition = {r.topic_partition.partition:d}"
        f" AND _kafka_offset >= {r.from_offset:d} AND _kafka_offset < {r.until_offset:d}"
        for r in rows.ranges
    )
    return f"_kafka_topic = @topic AND _kbq_epoch = {rows.epoch:d} AND ({parts or 'FALSE'})", (
        bigquery.ScalarQueryParameter("topic", "STRING", rows.topic),
    )


def _counts(table: bigquery.Table, rows: RowRange, key: Sequence[str] = ()) -> Query:
    """Counts rows, offsets and keys of the range by partition and day."""
    where, parameters = _where(rows)
    day = _DATE if _has_date(table) else "CAST(NULL AS DATE)"
    sql = (
        f"SELECT _kafka_partition, {day} AS day, COUNT(*), COUNT(DISTINCT _kafka_offset), {_distinct_keys(table, key)}"
        f" FROM {name_of(table)} AS t WHERE {_all(all_partitions(table), where)} GROUP BY 1, 2 ORDER BY 1, 2"
    )
    return Query(sql, parameters)


def _distinct_keys(table: bigquery.Table, key: Sequence[str]) -> str:
    if not has_paths(_columns(table), key):
        return "CAST(NULL AS INT64)"
    parts = [BIGQUERY.path("t", path) for path in key]
    if len(parts) == 1:
        return f"COUNT(DISTINCT {parts[0]})"
    unknown = " OR ".join(f"{part} IS NULL" for part in parts)
    text = "CONCAT(" + ", ' ', ".join(f"TO_JSON_STRING({part})" for part in parts) + ")"
    return f"COUNT(DISTINCT IF({unknown}, NULL, {text}))"


def _lone(side: Side, is_live: bool, rows: RowRange, limit: int) -> Query:
    where, parameters = _where(rows)
    only = "live" if is_live else "replay"
    return Query(
        f"SELECT _kafka_partition, _kafka_offset, '' AS columns, '{only}' AS alone FROM {name_of(side.table)}"
        f" WHERE {_all(all_partitions(side.table), where)} ORDER BY 1, 2 LIMIT {limit:d}",
        parameters,
    )


def _both(live: Side, replay: Side, rows: RowRange, limit: int) -> Query:
    where, parameters = _where(rows)
    days = live.days | replay.days
    sides = [replace(live, days=days), replace(replay, days=days)]
    texts = [f"(SELECT * FROM {name_of(side.table)} WHERE {_all(side.pruned, where)})" for side in sides]
    each = "".join(f", IF({_equal(name)}, '', '{n},')" for n, name in enumerate(_common(live, replay)))
    joined = (
        "SELECT COALESCE(t._kafka_partition, f._kafka_partition) AS p, COALESCE(t._kafka_offset, f._kafka_offset) AS o,"
        f" CONCAT(''{each}) AS columns, CASE WHEN f._kafka_offset IS NULL THEN 'live'"
        " WHEN t._kafka_offset IS NULL THEN 'replay' ELSE '' END AS alone"
        f" FROM {texts[0]} AS t FULL JOIN {texts[1]} AS f"
        " ON f._kafka_partition = t._kafka_partition AND f._kafka_offset = t._kafka_offset"
    )
    sql = f"SELECT * FROM ({joined}) WHERE alone != '' OR columns != '' ORDER BY 1, 2 LIMIT {limit:d}"
    dated = next((side.parameters for side in sides if side.parameters), ())
    return Query(sql, (*parameters, *dated))


def _common(live: Side, replay: Side) -> list[str]:
    there = {field.name for field in replay.table.schema}
    return EVERYTHING.columns(field.name for field in live.table.schema if field.name in there)


def _equal(name: str) -> str:
    return f"COALESCE(TO_JSON_STRING(t.`{name}`), '') = COALESCE(TO_JSON_STRING(f.`{name}`), '')"


def _columns(table: bigquery.Table) -> tuple[Column, ...]:
    return tuple(map(schema.column_of, schema.api_fields(table.schema)))


def _has_date(table: bigquery.Table) -> bool:
    return any(field.name == _DATE and field.field_type == "DATE" for field in table.schema)


def _all(*conditions: str) -> str:
    return " AND ".join(filter(None, conditions))
