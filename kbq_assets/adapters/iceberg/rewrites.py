"""Rewrites a table's data files without some rows, here or in tasks, for the commit that replaces them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg.data_files import coarse_id
from kbq_assets.adapters.iceberg.lake import IcebergLake
from kbq_assets.adapters.iceberg.rewrite import rewrite
from kbq_assets.core.compaction.model import FileGroup, RewriteTask, Rewritten
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import JobFailed
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import IN_PROCESS_BYTES, OpenRewriter, Rewriter


@dataclass(frozen=True)
class Rewrite:
    """Rewrites files of one table without ``rows``, for a job. ``token`` is unique to one attempt."""

    table: TableReference
    job_id: str
    token: str
    rows: RowPlaces

    def run(
        self, lake: IcebergLake, table: Table, files: Sequence[DataFile], open_rewriter: OpenRewriter
    ) -> list[Rewritten] | None:
        """Rewrite the files. Returns None if one of them is gone, because the table changed. If JobFailed is raised, no
        new file remains."""
        tasks = [self._task(table, number, file) for number, file in enumerate(files)]
        with _rewriter(lake, sum(file.file_size_in_bytes for file in files), open_rewriter) as rewriter:
            results = list(rewriter(tasks)) if tasks else []
        failed = [each for each in results if each.failure or each.difference]
        if not failed:
            return results
        discard(table, [each.path for each in results])
        if all(each.gone for each in failed):
            return None
        why = failed[0].failure or failed[0].difference
        raise JobFailed(f"{self.table}: {failed[0].task.group.paths[0]} cannot be rewritten: {why}")

    def _task(self, table: Table, number: int, file: DataFile) -> RewriteTask:
        coarse = file.spec_id == coarse_id(table)
        group = FileGroup("", (file.file_path,), file.file_size_in_bytes, file.record_count, coarse=coarse)
        token = f"{self.token[:6]}{number:06x}"
        return RewriteTask(self.table, table.metadata_location, self.job_id, token, group, self.rows)


def _rewriter(lake: IcebergLake, size: int, open_rewriter: OpenRewriter) -> AbstractContextManager[Rewriter]:
    if size < IN_PROCESS_BYTES:
        return nullcontext(lambda tasks: [rewrite(task, lake.properties) for task in tasks])
    return open_rewriter()


def discard(table: Table, paths: Iterable[str]) -> None:
    """Delete files that no snapshot lists, as far as possible. Those that remain are orphans."""
    for path in filter(None, paths):
        try:
            table.io.delete(path)
        except OSError:
            continue  # clean-up deletes it later
