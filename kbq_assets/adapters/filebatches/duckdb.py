"""Batches of files in DuckDB. As in other load jobs, one transaction writes the data and the job's own row."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import load_jobs
from kbq_assets.adapters.duckdb.database import DuckDbDatabase, transaction
from kbq_assets.adapters.duckdb.types import quoted
from kbq_assets.adapters.filebatches import reading
from kbq_assets.adapters.filebatches.bigquery_columns import schema_columns
from kbq_assets.adapters.filebatches.local_files import LocalFiles
from kbq_assets.adapters.filebatches.target import TargetTable
from kbq_assets.core.errors import ConfigurationError, KbqError, TransientError
from kbq_assets.core.filebatches.hive import check_hive
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobError, JobStatus
from kbq_assets.wire.arrow.errors import LoadError

_DML: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE_INTO"})
#: Keys of external.json that DuckDB supports, in addition to those of `csvOptions`.
_EXTERNAL_KEYS: Final = frozenset(
    {"sourceFormat", "schema", "autodetect", "csvOptions", "hivePartitioningOptions", "ignoreUnknownValues",
     "decimalTargetTypes"}
)  # fmt: skip
#: Keys of a load job that DuckDB supports, in addition to those of each format.
_KEYS: Final = frozenset(
    {"sourceFormat", "writeDisposition", "createDisposition", "schema", "autodetect", "hivePartitioningOptions",
     "labels", "timePartitioning", "clustering", "ignoreUnknownValues"}
)  # fmt: skip
#: Keys that have no effect in a local file.
_OF_BIGQUERY: Final = frozenset({"useAvroLogicalTypes", "decimalTargetTypes"})
#: Recorded in a statement's row instead of files.
STATEMENT_SOURCE: Final = "(statement)"
#: Errors of disk, memory or bucket. The files or the configuration cause all others, which would occur again.
_PASSING: Final = (TransientError, MemoryError, duckdb.OperationalError)
#: Where a message from DuckDB about a CSV file starts to list options of read_csv.
_ADVICE: Final = re.compile(
    r"\n\s*(?:Column .* is being converted|Possible (?:solutions|fixes):|The search space used)"
)
_FILE: Final = re.compile(r"^\s*file = (.*)$", re.MULTILINE)


class DuckDbFileLoads:
    """`FileLoads` over one DuckDB file. ``source`` has the batches. Files from a bucket are downloaded for each job."""

    def __init__(self, path: Path, source: ObjectStore) -> None:
        self._database = DuckDbDatabase(path)
        self._source = source

    def check(self, config: Mapping[str, Any], sql: str) -> None:
        """Raise ConfigurationError for keys that DuckDB does not support."""
        if sql:
            config = _as_load(config)
        form = str(config.get("sourceFormat"))
        known = _KEYS | _OF_BIGQUERY | reading.KEYS.get(form, frozenset())
        if unknown := sorted(config.keys() - known):
            raise ConfigurationError(
                f"load.json: a local warehouse does not support {', '.join(unknown)} for {form}",
                next_step="docs/file-batches.md#duckdb",
            )
        reading.check(form, config)
        check_hive(config.get("hivePartitioningOptions", {}))

    def insert(self, job: FileJob) -> None:
        """Run a job. If the files cause a failure, the job is DONE with an error. A full disk or a lock raises
        Unavailable and leaves the id free."""
        sources = (STATEMENT_SOURCE,) if job.sql else job.source_uris
        status = JobStatus(job.job_id, "DONE", sources, statement=job.digest)
        with load_jobs.writing(self._database) as connection, LocalFiles(self._source, job.sizes) as files:
            try:
                with transaction(connection, job.job_id):
                    load_jobs.record(connection, status, labels=job.labels)
                    apply = _run_statements if job.sql else _load
                    load_jobs.set_output_rows(connection, job.job_id, apply(connection, job, files))
            except Exception as error:
                if _passes(error):
                    raise
                why = JobError(
                    getattr(error, "reason", "invalid"), files.named(_text(error)), transient=False
                )
                failed = dataclasses.replace(status, error=why)
                with transaction(connection, job.job_id):
                    load_jobs.record(connection, failed, labels=job.labels)


def _passes(error: Exception) -> bool:
    # For damaged files, Arrow raises OSErrors without an errno.
    return isinstance(error, _PASSING) or (isinstance(error, OSError) and error.errno is not None)


def _text(error: Exception) -> str:
    if isinstance(error, KbqError):
        return error.message
    return _brief(str(error)) if isinstance(error, duckdb.Error) else f"{type(error).__name__}: {error}"


def _brief(text: str) -> str:
    """The error and its file, without DuckDB's advice, which concerns options that KBQ sets itself."""
    file = _FILE.search(text)
    brief = _ADVICE.split(text, maxsplit=1)[0].rstrip()
    return f"{brief}\nfile {file[1]}" if file and file[1] not in brief else brief


def _load(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> int:
    """Load all files, and return the number of rows. Raises LoadError, duckdb.Error."""
    target = TargetTable(connection, job)
    groups = list(reading.groups(connection, job, files))
    target.prepare(groups[0])
    return sum(target.insert(group) for group in groups)


def _as_load(config: Mapping[str, Any]) -> dict[str, Any]:
    """An external table's keys converted to those of a load job. Raises ConfigurationError for keys that DuckDB does
    not support."""
    if unknown := sorted(config.keys() - _EXTERNAL_KEYS):
        raise ConfigurationError(
            f"external.json: a local warehouse does not support {', '.join(unknown)}",
            next_step="docs/file-batches.md#duckdb",
        )
    return {**{key: config[key] for key in config if key != "csvOptions"}, **config.get("csvOptions", {})}


def _run_statements(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> int:
    """Run a statement, and return the number of changed rows. Raises LoadError, duckdb.Error."""
    loaded = dataclasses.replace(job, config=_as_load(job.config))
    _create_external(connection, loaded, files)
    dataset, table = quoted(job.target.dataset), quoted(job.target.table)
    text = job.sql.replace("{dest_dataset}", dataset).replace("{dest_table}", table)
    changed = 0
    for statement in connection.extract_statements(text):
        if statement.type == duckdb.StatementType.TRANSACTION:
            raise LoadError("the job is one transaction: BEGIN, COMMIT and ROLLBACK are not allowed")
        result = connection.execute(statement)
        if statement.type.name not in _DML:
            continue
        [(rows,)] = result.fetchall()
        if job.fail_on_zero and not rows:
            raise LoadError("the statement changed no row (KBQ_FILES_FAIL_ON_ZERO_DML_ROWS_AFFECTED)")
        changed += rows
    return changed


def _create_external(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> None:
    """Create `temp_ext`: a view over files that DuckDB reads itself, and over temporary tables for Avro and ORC."""
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
        raise LoadError("the batch's files have no rows")
    connection.execute(f"CREATE TEMP VIEW temp_ext AS {' UNION ALL BY NAME '.join(selects)}")
