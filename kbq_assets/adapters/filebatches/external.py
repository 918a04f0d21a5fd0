"""Statements over the external table `temp_ext` in DuckDB: a view over the batch's files, or a temporary table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb.types import quoted
from kbq_assets.adapters.filebatches import reading
from kbq_assets.adapters.filebatches.bigquery_columns import schema_columns
from kbq_assets.adapters.filebatches.local_files import LocalFiles
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.wire.arrow.errors import LoadError

_DML: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE_INTO"})
#: Keys of external.json that DuckDB honors, in addition to those of `csvOptions`.
_KEYS: Final = frozenset(
    {"sourceFormat", "schema", "autodetect", "csvOptions", "hivePartitioningOptions", "ignoreUnknownValues",
     "decimalTargetTypes"}
)  # fmt: skip


def as_load(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an external table as those of a load job. Raises ConfigurationError for a key that DuckDB does not
    honor."""
    if unknown := sorted(config.keys() - _KEYS):
        raise ConfigurationError(
            f"external.json: a local warehouse does not honor {', '.join(unknown)}",
            next_step="docs/file-batches.md#duckdb",
        )
    return {**{key: config[key] for key in config if key != "csvOptions"}, **config.get("csvOptions", {})}


def run(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> int:
    """Run a statement; return how many rows it changed. Raises LoadError, duckdb.Error."""
    loaded = dataclasses.replace(job, config=as_load(job.config))
    _create_external(connection, loaded, files)
    dataset, table = quoted(job.target.dataset), quoted(job.target.table)
    text = job.sql.replace("{dest_dataset}", dataset).replace("{dest_table}", table)
    changed = 0
    for statement in connection.extract_statements(text):
        if statement.type == duckdb.StatementType.TRANSACTION:
            raise StatementFails("the job is one transaction: BEGIN, COMMIT and ROLLBACK are refused")
        result = connection.execute(statement)
        if statement.type.name not in _DML:
            continue
        [(rows,)] = result.fetchall()
        if job.fail_on_zero and not rows:
            raise StatementFails("the statement changed no row (KBQ_FILES_FAIL_ON_ZERO_DML_ROWS_AFFECTED)")
        changed += rows
    return changed


def _create_external(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> None:
    """`temp_ext`: a view where DuckDB reads the files itself, a temporary table for Avro and ORC."""
    declared, selects = schema_columns(job.config.get("schema")), list[str]()
    for number, group in enumerate(reading.groups(connection, job, files)):
        columns = declared or group.describe() or ()
        if group.form not in ("AVRO", "ORC"):
            selects.extend(group.selects(columns) if columns else [group.inferred()])
            continue
        name, made = f"kbq_part_{number}", 0
        for made, select in enumerate(group.selects(columns), 1):
            create = f"CREATE TEMP TABLE {name} AS" if made == 1 else f"INSERT INTO {name} BY NAME"
            connection.execute(f"{create} {select}")
        if made:
            selects.append(f"SELECT * FROM {name}")
    if not selects:
        raise StatementFails("the batch's files have no rows")
    connection.execute(f"CREATE TEMP VIEW temp_ext AS {' UNION ALL BY NAME '.join(selects)}")


class StatementFails(LoadError):
    """A statement that must not take effect."""
