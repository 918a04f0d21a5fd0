"""Looks up and commits the jobs of a table. Records are in the table's properties, or in its dataset's while the table
does not exist."""

from __future__ import annotations

import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import job_records
from kbq_assets.adapters.iceberg.commits import commit_job, turn_retries_off
from kbq_assets.adapters.iceberg.housekeeping import keep_house
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors, shown
from kbq_assets.adapters.iceberg.tasks import TaskWriter
from kbq_assets.adapters.iceberg.writer import ParquetWriter
from kbq_assets.core.errors import CorruptState, JobAlreadyExists, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.arrow.errors import LoadError, MissingSource

#: Opens the writer of a job's files for a table. The token is unique to one attempt.
OpenWriter: TypeAlias = Callable[[Table, str], ParquetWriter | TaskWriter]
_LOGGER: Final = logging.getLogger("kbq.load")


class LakeJobs:
    """Looks jobs up and commits them (PROTOCOL I1 to I5)."""

    def __init__(self, lake: IcebergLake) -> None:
        self._lake = lake

    def find(self, table: TableReference, job_id: str) -> tuple[JobRecord, Table | None] | None:
        """The record of an ended job, with its table; None if its id may still run."""
        stored = self._lake.table(table)
        found = next(self._records(table, stored, job_id), None)
        return None if found is None else (found, stored)

    def insert(self, job: LoadJob, open_writer: OpenWriter) -> None:
        """Run a load job. If the files cause a failure, the job ends with an error."""
        with lake_errors(f"job {job.job_id}"):
            table = self.free_table(job.table, job.job_id)
            if table is None:
                missing = MissingSource(f"table {job.table} does not exist", next_step="create it first")
                return self.note_in_dataset(job.table, _failed(job, missing, ""))
            token = uuid.uuid4().hex[:12]
            sources = _write_sources(table, job, token)
            writer = open_writer(table, token)
            try:
                writer.write()
                record = record_of(job.job_id, token, sources, writer.rows)
            except LoadError as error:
                writer.discard()
                record = _failed(job, error, sources, token)
            self.commit(table, record, writer, replace=job.replace and not record.reason)

    def commit(
        self, table: Table, record: JobRecord, writer: ParquetWriter | TaskWriter, *, replace: bool
    ) -> None:
        """Commit a job. If it certainly was not committed, delete its files."""
        try:
            forgotten = commit_job(table, record, writer.files, replace=replace)
        except (JobAlreadyExists, Unavailable, CorruptState, NoSuchTableError):
            writer.discard()
            raise
        for old in forgotten:
            if old.sources:
                with contextlib.suppress(OSError):
                    table.io.delete(old.sources)
        try:
            keep_house(table)
        except Exception as error:
            _LOGGER.warning("%s: could not expire old snapshots: %s", ".".join(table.name()), shown(error))

    def _records(self, table: TableReference, stored: Table | None, job_id: str) -> Iterator[JobRecord]:
        for properties in (stored.properties if stored else {}, self._dataset_notes(table)):
            if (record := job_records.find(properties, job_id)) is not None:
                yield record

    def free_table(self, table: TableReference, job_id: str) -> Table | None:
        """The table, with the library's retries off; None if it does not exist. Raises JobAlreadyExists if the job id
        is not free.

        A zombie task may use an id that was burned while the table did not exist. The dataset has a record of it.
        """
        stored = self._lake.table(table)
        if stored is not None:
            turn_retries_off(stored)
        for properties in (stored.properties if stored else {}, self._dataset_notes(table)):
            if job_records.find(properties, job_id) is not None:
                raise JobAlreadyExists(f"job {job_id} exists", next_step="get the job and compare its files")
        return stored

    def _dataset_notes(self, table: TableReference) -> Mapping[str, str]:
        """Records of a table's jobs from the time when it did not exist. They are in its dataset's properties, and
        returned as the table's properties would have them."""
        prefix = f"{job_records.PREFIX}{table.table}/"
        found = self._lake.namespace(table.dataset) or {}
        return {
            job_records.PREFIX + name.removeprefix(prefix): text
            for name, text in found.items()
            if name.startswith(prefix)
        }

    def note_in_dataset(self, table: TableReference, record: JobRecord) -> None:
        """Record the outcome of a job whose table does not exist."""
        self._lake.create_namespace(table.dataset)
        changed, _ = job_records.recorded(self._dataset_notes(table), record)
        prefix = f"{job_records.PREFIX}{table.table}/"
        updates = {prefix + name.removeprefix(job_records.PREFIX): text for name, text in changed.items()}
        self._lake.catalog.update_namespace_properties((table.dataset,), updates=updates)


def _write_sources(table: Table, job: LoadJob, token: str) -> str:
    """Write the list of a job's source URIs to a file, and return its path. Catalogs such as Hive limit the length of
    properties."""
    path = f"{table.location().rstrip('/')}/metadata/kbq-{job.job_id}-{token}.json"
    with table.io.new_output(path).create() as stream:
        stream.write(json.dumps(list(job.source_uris)).encode())
    return path


def record_of(job_id: str, token: str, sources: str = "", rows: int = 0) -> JobRecord:
    """The record of a job that ends now. Without sources, it is the record of a burned id."""
    return JobRecord(job_id, token, sources, rows, int(time.time() * 1000))


def _failed(job: LoadJob, error: LoadError, sources: str, token: str = "") -> JobRecord:
    now_ms = int(time.time() * 1000)
    return JobRecord(job.job_id, token, sources, 0, now_ms, error.reason, error.message)
