"""Load jobs whose data files are written in tasks: the inside of a task, and the writer that collects the files."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pyiceberg.manifest import DataFile
from pyiceberg.table import StaticTable, Table

from kbq_assets.adapters.iceberg.lake import lake_errors
from kbq_assets.adapters.iceberg.writer import ParquetWriter
from kbq_assets.core.errors import KbqError
from kbq_assets.core.loading.task_sources import split_sources, total_bytes
from kbq_assets.ports.load_tasks import RunTasks, WriteTask, WrittenFiles
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri

#: Bytes of Arrow that a task sorts and writes at once. This keeps it below 512 MB of memory.
_FLUSH_BYTES: Final = 16 << 20


def write(task: WriteTask, properties: Mapping[str, Any], open_uri: OpenUri) -> WrittenFiles:
    """Write the rows of a task's sources. ``properties`` configures access to the catalog's files. KBQ's errors are
    returned instead of raised, because they cross processes. If Spark runs a task twice, each attempt has its own files
    (PROTOCOL I5)."""
    try:
        with lake_errors(f"job {task.job.job_id}"):
            table = StaticTable.from_metadata(task.metadata, dict(properties))
            writer = ParquetWriter(table, task.job, uuid.uuid4().hex[:12], open_uri, _FLUSH_BYTES)
            try:
                writer.write()
            except Exception:
                writer.discard()
                raise
            return WrittenFiles(writer.rows, tuple(writer.files))
    except KbqError as error:
        return WrittenFiles(error=error)


@dataclass(frozen=True)
class LargeJobs:
    """Tasks write jobs whose files have ``from_bytes`` or more."""

    run: RunTasks
    from_bytes: int


def job_writer(
    table: Table, job: LoadJob, token: str, open_uri: OpenUri, large: LargeJobs | None
) -> ParquetWriter | TaskWriter:
    """The writer of a job's files, which uses tasks or this process."""
    if large is not None and total_bytes(job.source_uris, job.files) >= large.from_bytes:
        return TaskWriter(table, job, large.run)
    return ParquetWriter(table, job, token, open_uri)


@dataclass
class TaskWriter:
    """Collects the files of one job from its tasks."""

    table: Table
    job: LoadJob
    run: RunTasks
    rows: int = 0
    files: list[DataFile] = field(default_factory=list)

    def write(self) -> None:
        """Write all files in tasks. Raises LoadError, Unavailable, ConfigurationError."""
        groups = split_sources(self.job.source_uris, self.job.files)
        written = self.run([WriteTask(self._part(group), self.table.metadata_location) for group in groups])
        for each in written:
            self.files += cast("tuple[DataFile, ...]", each.files)
            self.rows += each.rows
        if errors := [each.error for each in written if each.error is not None]:
            self.discard()
            raise next((error for error in errors if isinstance(error, LoadError)), errors[0])

    def discard(self) -> None:
        """Delete the files of a job that was not committed, as far as possible. Remaining files only take space."""
        for each in self.files:
            with contextlib.suppress(OSError):
                self.table.io.delete(each.file_path)
        self.files.clear()

    def _part(self, sources: tuple[str, ...]) -> LoadJob:
        """The job, reduced to what a task needs. The task reads the schema from the files."""
        files = {uri: self.job.files[uri] for uri in sources}
        return dataclasses.replace(self.job, source_uris=sources, files=files, schema="", labels={})
