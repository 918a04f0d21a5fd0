"""Erasures in BigQuery (`ports.erasure.ErasureTables`): one multi-statement transaction deletes rows from all tables.

BigQuery bills a DELETE for the columns that it reads, and for all columns of the partitions that it changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from google.cloud import bigquery

from kbq_assets.adapters.bigquery import load_jobs
from kbq_assets.adapters.bigquery.insertions import JobKey, insert_query
from kbq_assets.adapters.bigquery.queries import Query, all_partitions, loaded_rows, name_of
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.erasure.offset_sets import POSITIONS, RowPlaces, offsets_of, positions_in
from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.erasure import ErasedRows, ErasureJob

#: Most row positions per request, whose size BigQuery limits to 10 MB.
_MOST_PLACES: Final = 150_000
#: The longest time that BigQuery's time travel keeps rows. The fail-safe then keeps them as long again.
_TIME_TRAVEL: Final = timedelta(days=7)


class BigQueryErasureTables:
    """Runs erasures with a session's client."""

    tables_per_job: int | None = None

    def __init__(self, session: Session) -> None:
        self._session = session

    def find(
        self, tables: Collection[TableReference], topic: str, column: str, value: str, limit: int
    ) -> Mapping[TableReference, RowPlaces]:
        found = {}
        path = ".".join(f"`{name}`" for name in column.split("."))
        for table, stored in self._existing(tables):
            if _positions(stored) != POSITIONS[0] or not _has(stored.schema, column):
                continue
            sql = (
                f"SELECT DISTINCT _kafka_partition, _kbq_epoch, _kafka_offset FROM {name_of(stored)}"
                f" WHERE {_all(stored, '_kafka_topic = @topic')} AND SAFE_CAST({path} AS STRING) = @value LIMIT {limit}"
            )
            parameters = tuple(
                bigquery.ScalarQueryParameter(name, "STRING", text)
                for name, text in (("topic", topic), ("value", value))
            )
            by_range: dict[tuple[int, int], list[int]] = defaultdict(list)
            for partition, epoch, offset in self._session.query(str(table), Query(sql, parameters)):
                by_range[partition, epoch].append(offset)
            places = tuple((*at, offsets_of(own)) for at, own in sorted(by_range.items()))
            found[table] = RowPlaces(topic, places)
        return found

    def count(
        self, tables: Collection[TableReference], rows: RowPlaces
    ) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
        parameters, found = _parameters(rows), {}
        for table, stored in self._existing(tables):
            if (at := _positions(stored)) is None:
                continue
            sql = (
                f"SELECT {at[1]}, {at[2]}, COUNT(*), COUNTIF({loaded_rows(stored)}) FROM {name_of(stored)}"
                f" WHERE {_is_erased(stored, at)} GROUP BY 1, 2"
            )
            counted = self._session.query(str(table), Query(sql, parameters))
            found[table] = {(p, epoch): ErasedRows(all_, own) for p, epoch, all_, own in counted}
        return found

    def keeps(self, tables: Collection[TableReference]) -> Iterable[str]:
        """Time travel, and the fail-safe that follows it."""
        now = datetime.now(UTC)
        until, last = ((now + n * _TIME_TRAVEL).date().isoformat() for n in (1, 2))
        yield (
            f"BigQuery's time travel, until {until} unless the dataset keeps less, then its fail-safe until {last}; and"
            " your snapshots and clones of the tables"
        )

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        """Send the transaction once. Raises by the table of outcomes."""
        deletions = [
            f"DELETE FROM {name_of(stored)} WHERE {_is_erased(stored, at)};"
            for _, stored in self._existing(job.tables)
            if (at := _positions(stored)) is not None
        ]
        session = self._session
        config = bigquery.QueryJobConfig(
            use_legacy_sql=False,
            query_parameters=list(_parameters(job.rows)),
            labels={load_jobs.ERASURE: job.digest},
            job_timeout_ms=load_jobs.JOB_TIMEOUT_MS,
        )
        text = "\n".join(("BEGIN TRANSACTION;", *deletions, "COMMIT TRANSACTION;"))
        key = JobKey(job.job_id, session.project, session.location)
        insert_query(session.client, "", text, key, config)

    def _existing(self, tables: Iterable[TableReference]) -> Iterable[tuple[TableReference, bigquery.Table]]:
        for table in tables:
            if (found := self._session.find_table(table)) is not None:
                yield table, found


def _parameters(
    rows: RowPlaces,
) -> tuple[bigquery.ScalarQueryParameter | bigquery.ArrayQueryParameter, ...]:
    places = [f"{partition}/{epoch}/{offset}" for partition, epoch, offset in rows.single()]
    if len(places) > _MOST_PLACES:
        raise Refused(
            f"{len(places):,} rows at once are too many for one request to BigQuery",
            next_step="choose fewer people at once",
        )
    return (
        bigquery.ScalarQueryParameter("topic", "STRING", rows.topic),
        bigquery.ArrayQueryParameter("places", "STRING", places),
    )


def _positions(table: bigquery.Table) -> tuple[str, str, str, str] | None:
    return positions_in(column.name for column in table.schema)


def _is_erased(table: bigquery.Table, at: tuple[str, str, str, str]) -> str:
    place = "CONCAT({})".format(", '/', ".join(f"CAST({name} AS STRING)" for name in at[1:]))
    return _all(table, f"{at[0]} = @topic AND {place} IN UNNEST(@places)")


def _all(table: bigquery.Table, condition: str) -> str:
    return " AND ".join(filter(None, (all_partitions(table), condition)))


def _has(fields: Iterable[bigquery.SchemaField], column: str) -> bool:
    """Whether fields contain a column, given as a dotted path into records."""
    name, _, rest = column.partition(".")
    found = [field for field in fields if field.name.lower() == name.lower()]
    if not found or found[0].mode == "REPEATED":
        return False
    return _has(found[0].fields, rest) if rest else True
