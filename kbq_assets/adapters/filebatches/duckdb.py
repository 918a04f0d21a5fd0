"""Batches of files in DuckDB: a job's row and its rows are one transaction, as of the warehouse's other load_jobs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import load_jobs
from kbq_assets.adapters.duckdb.database import DuckDbDatabase, storage_errors, transaction
from kbq_assets.adapters.filebatches import external, reading
from kbq_assets.adapters.filebatches.local_files import LocalFiles
from kbq_assets.adapters.filebatches.target import TargetTable
from kbq_assets.core.errors import ConfigurationError, KbqError, TransientError
from kbq_assets.core.filebatches.hive import check_hive
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobError, JobStatus

#: Keys of a load job that DuckDB honors, in addition to those of each format.
_KEYS: Final = frozenset(
    {"sourceFormat", "writeDisposition", "createDisposition", "schema", "autodetect", "hivePartitioningOptions",
     "labels", "timePartitioning", "clustering", "ignoreUnknownValues"}
)  # fmt: skip
#: These change nothing in a local file.
_OF_BIGQUERY: Final = frozenset({"useAvroLogicalTypes", "decimalTargetTypes"})
#: What a statement's row has in place of files.
STATEMENT_SOURCE: Final = "(statement)"
#: Errors of disk, memory or bucket. Any other is of the files or of the configuration: the next run meets it again.
_PASSING: Final = (TransientError, MemoryError, duckdb.OperationalError)
#: From here on, a message of DuckDB about a CSV file lists options of read_csv.
_ADVICE: Final = re.compile(
    r"\n\s*(?:Column .* is being converted|Possible (?:solutions|fixes):|The search space used)"
)
_FILE: Final = re.compile(r"^\s*file = (.*)$", re.MULTILINE)


class DuckDbFileLoads:
    """`FileLoads` over one DuckDB file. ``source`` has the batches: files of a bucket are copied here for a job."""

    def __init__(self, path: Path, source: ObjectStore) -> None:
        self._database = DuckDbDatabase(path)
        self._source = source

    def check(self, config: Mapping[str, Any], sql: str) -> None:
        """Raises ConfigurationError for what DuckDB does not honor."""
        if sql:
            config = external.as_load(config)
        form = str(config.get("sourceFormat"))
        known = _KEYS | _OF_BIGQUERY | reading.KEYS.get(form, frozenset())
        if unknown := sorted(config.keys() - known):
            raise ConfigurationError(
                f"load.json: a local warehouse does not honor {', '.join(unknown)} for {form}",
                next_step="docs/file-batches.md#duckdb",
            )
        reading.check(form, config)
        check_hive(config.get("hivePartitioningOptions", {}))

    def insert(self, job: FileJob) -> None:
        """Run a job. If the files are to blame for a failure, it ends DONE with an error. A full disk, or a lock,
        raises Unavailable and leaves the id free."""
        sources = (STATEMENT_SOURCE,) if job.sql else job.source_uris
        status = JobStatus(job.job_id, "DONE", sources, statement=job.digest)
        with self._writing() as connection, LocalFiles(self._source, job.sizes) as files:
            try:
                with transaction(connection, job.job_id):
                    load_jobs.record(connection, status, labels=job.labels)
                    apply = external.run if job.sql else _load
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

    @contextmanager
    def _writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with storage_errors(), self._database.writing() as connection:
            load_jobs.create_tables(connection)
            yield connection


def _passes(error: Exception) -> bool:
    # Arrow raises OSErrors without a number for damaged files.
    return isinstance(error, _PASSING) or (isinstance(error, OSError) and error.errno is not None)


def _text(error: Exception) -> str:
    if isinstance(error, KbqError):
        return error.message
    return _brief(str(error)) if isinstance(error, duckdb.Error) else f"{type(error).__name__}: {error}"


def _brief(text: str) -> str:
    """What is wrong, and in which file: DuckDB's advice is about options of its own that KBQ sets."""
    file = _FILE.search(text)
    brief = _ADVICE.split(text, maxsplit=1)[0].rstrip()
    return f"{brief}\nfile {file[1]}" if file and file[1] not in brief else brief


def _load(connection: duckdb.DuckDBPyConnection, job: FileJob, files: LocalFiles) -> int:
    """Load all files; return the number of rows. Raises LoadError, duckdb.Error."""
    target = TargetTable(connection, job)
    groups = list(reading.groups(connection, job, files))
    target.prepare(groups[0])
    return sum(target.insert(group) for group in groups)
