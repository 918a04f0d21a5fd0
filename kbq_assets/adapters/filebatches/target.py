"""The table of a job in DuckDB. It is created, emptied and checked as by a load job in BigQuery."""

from __future__ import annotations

from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import schema
from kbq_assets.adapters.duckdb.types import quoted
from kbq_assets.adapters.filebatches.bigquery_columns import schema_columns
from kbq_assets.adapters.filebatches.reading import HiveGroup
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.wire.arrow.errors import BadFile, LoadError, MissingSource

#: Time formats of partition names, by the length of the name.
_PARTITIONS: Final = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H"}
#: Formats whose files name their columns.
_SELF_DESCRIBING: Final = frozenset({"AVRO", "ORC", "PARQUET"})


class TargetTable:
    """One job's table, inside its transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, job: FileJob) -> None:
        self._connection = connection
        self._config = job.config
        self._table = TableReference(job.target.dataset, job.target.table)
        self._partition = job.target.decorator.removeprefix("$")
        self._columns: tuple[Column, ...] = ()
        self._all: list[str] = []

    @property
    def _name(self) -> str:
        return schema.name_of(self._connection, self._table)

    def prepare(self, group: HiveGroup) -> None:
        """Create the table if it is missing, and empty it as `writeDisposition` says. Raises LoadError."""
        declared = schema_columns(self._config.get("schema"))
        if not schema.exists(self._connection, self._table):
            self._create(group, declared)
        found = schema.columns(self._connection, self._table) or ()
        self._all = _names(found)
        # Avro, ORC and Parquet name their columns. A schema is for the other formats.
        self._columns = _loaded(declared, found) if declared and group.form not in _SELF_DESCRIBING else found
        write = self._config["writeDisposition"]
        if write == "WRITE_TRUNCATE":
            self._connection.execute(f"DELETE FROM {self._name}{self._where()}")
        elif write == "WRITE_EMPTY" and self._count(self._where()):
            raise LoadError(f"{self._table} has rows, but writeDisposition is WRITE_EMPTY")

    def insert(self, group: HiveGroup) -> int:
        """Append a group's rows, and return their number."""
        rows = 0
        for select in group.selects(self._columns):
            if not self._partition or not self._field():
                rows += self._insert(self._name, select)
            else:
                rows += self._insert_checked(select)
        return rows

    def _insert(self, name: str, select: str) -> int:
        [(rows,)] = self._connection.execute(f"INSERT INTO {name} BY NAME {select}").fetchall()
        return int(rows)

    def _insert_checked(self, select: str) -> int:
        """Append rows. Like BigQuery, refuse rows of other partitions."""
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE kbq_rows AS FROM {self._name} LIMIT 0")
        rows = self._insert("kbq_rows", select)
        [(other,)] = self._connection.execute(
            f"SELECT count(*) FROM kbq_rows WHERE ({self._in_partition()}) IS NOT TRUE"
        ).fetchall()
        if other:
            raise LoadError(
                f"{counted(other, 'row does', 'rows do')} not belong to the partition ${self._partition}"
            )
        self._insert(self._name, "FROM kbq_rows")
        self._connection.execute("DROP TABLE kbq_rows")
        return rows

    def _create(self, group: HiveGroup, declared: tuple[Column, ...]) -> None:
        if self._config.get("createDisposition") == "CREATE_NEVER":
            raise MissingSource(f"table {self._table} does not exist, but createDisposition is CREATE_NEVER")
        columns = declared or group.describe()
        if columns is not None:
            more = (Column(n, t) for n, t in group.constant_types.items() if n not in _names(columns))
            schema.create(self._connection, self._table, (*columns, *more))
        elif group.form in _SELF_DESCRIBING or self._config.get("autodetect"):
            self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(self._table.dataset)}")
            self._connection.execute(f"CREATE TABLE {self._name} AS {group.inferred()} LIMIT 0")
        else:
            raise MissingSource(
                f"table {self._table} does not exist: create it, or set schema or autodetect in load.json"
            )

    def _field(self) -> str:
        partitioning: Any = self._config.get("timePartitioning") or {}
        return str(partitioning.get("field", ""))

    def _in_partition(self) -> str:
        """The condition for the partition's rows. Raises LoadError."""
        field = self._field()
        if field.lower() not in map(str.lower, self._all):
            raise LoadError(f"{self._table} has no column {field} (timePartitioning)")
        return f"strftime({quoted(field)}, '{_PARTITIONS[len(self._partition)]}') = '{self._partition}'"

    def _where(self) -> str:
        if not self._partition:
            return ""
        if not self._field():
            raise LoadError(
                f"a local table has no partition ${self._partition}: name its column in timePartitioning.field"
            )
        return f" WHERE {self._in_partition()}"

    def _count(self, where: str) -> int:
        [(rows,)] = self._connection.execute(f"SELECT count(*) FROM {self._name}{where}").fetchall()
        return int(rows)


def _names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]


def _loaded(declared: tuple[Column, ...], found: tuple[Column, ...]) -> tuple[Column, ...]:
    """The table's columns in the order of the declared schema. Raises LoadError."""
    by_name = {column.name.lower(): column for column in found}
    if missing := [column.name for column in declared if column.name.lower() not in by_name]:
        raise BadFile(f"the table lacks {', '.join(missing)}: add the columns first")
    return tuple(by_name[column.name.lower()] for column in declared)
