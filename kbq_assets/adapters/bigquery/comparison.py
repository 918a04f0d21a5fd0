"""Queries that compare the rows of a scratch table with those of the real one.

They read whole rows, so they filter by the dates of the scratch table's rows: BigQuery reads only those partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from google.cloud import bigquery

from kbq_assets.adapters.bigquery.queries import Query, all_partitions, hours_since, name_of
from kbq_assets.ports.warehouse import Comparable, DifferingRow, KafkaRange

_PLACE: Final = ("_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Both:
    """A scratch table, the real table, and the columns to compare."""

    scratch: bigquery.TableReference
    real: bigquery.Table
    which: Comparable

    @property
    def columns(self) -> list[str]:
        return self.which.columns(field.name for field in self.real.schema)


def dates(both: Both) -> Query:
    """The dates of the scratch table's rows."""
    return Query(f"SELECT DISTINCT event_date FROM {name_of(both.scratch)}")


def count(both: Both, found: Iterable[date | None]) -> Query:
    joined, parameters = _joined(both, found)
    return Query(f"SELECT COUNT(*) AS found, COUNTIF({_same(both)}) AS compared {joined}", parameters)


def differing(both: Both, found: Iterable[date | None], limit: int) -> Query:
    """The first rows that differ, each with the numbers of its differing columns. Values of any type are compared as
    JSON text: nulls are equal, and the order of lists counts."""
    joined, parameters = _joined(both, found)
    each = (f"IF({_equal(name)}, '', '{number},')" for number, name in enumerate(both.columns))
    rows = bigquery.ScalarQueryParameter("rows", "INT64", limit)
    return Query(
        f"SELECT * FROM (SELECT t._kafka_topic, t._kafka_partition, t._kbq_epoch, t._kafka_offset,"
        f" CONCAT('', {', '.join(each)}) AS differing {joined} AND {_same(both)})"
        " WHERE differing != '' ORDER BY 1, 2, 3, 4 LIMIT @rows",
        (*parameters, rows),
    )


def row_of(both: Both, row: tuple[Any, ...]) -> DifferingRow:
    """A row of `differing`."""
    *place, offset, numbers = row
    names = both.columns
    return DifferingRow(KafkaRange(*place), offset, tuple(names[int(n)] for n in numbers.split(",") if n))


def _joined(
    both: Both, found: Iterable[date | None]
) -> tuple[str, tuple[bigquery.ArrayQueryParameter | bigquery.ScalarQueryParameter, ...]]:
    known = list(found)
    days = sorted(each for each in known if each is not None)
    parameters: list[bigquery.ArrayQueryParameter | bigquery.ScalarQueryParameter] = [
        bigquery.ArrayQueryParameter("dates", "DATE", days)
    ]
    equal = [f"f.{name} = t.{name}" for name in _PLACE]
    where = "t.event_date IN UNNEST(@dates)" + (" OR t.event_date IS NULL" if None in known else "")
    pruned = hours_since(both.real, "@first", "t.") if days and None not in known else ""
    if pruned:
        parameters.append(bigquery.ScalarQueryParameter("first", "DATE", days[0]))
    pruned = pruned or all_partitions(both.real, "t.")
    pruned = pruned and f" AND {pruned}"
    return (
        f"FROM {name_of(both.scratch)} AS f JOIN {name_of(both.real.reference)} AS t ON {' AND '.join(equal)}"
        f" AND t._kbq_epoch BETWEEN {both.which.since} AND f._kbq_epoch WHERE ({where}){pruned}"
    ), tuple(parameters)


def _same(both: Both) -> str:
    names = {field.name for field in both.real.schema}
    return " AND ".join(_equal(name) for name in both.which.same if name in names) or "TRUE"


def _equal(name: str) -> str:
    return f"COALESCE(TO_JSON_STRING(f.`{name}`), '') = COALESCE(TO_JSON_STRING(t.`{name}`), '')"
