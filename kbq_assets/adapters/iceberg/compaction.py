"""Compaction of a table: its files, and the commit that replaces some of them (PROTOCOL C1 to C7)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace as replaced
from datetime import date
from typing import Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import HourTransform, IdentityTransform, MonthTransform
from pyiceberg.types import DateType

from kbq_assets.adapters.iceberg import job_records
from kbq_assets.adapters.iceberg.commits import COMPLETE_HOUR, commit_once, turn_retries_off
from kbq_assets.adapters.iceberg.housekeeping import delete_orphans, keep_house
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.adapters.iceberg.manifests import entries_of, manifests_of
from kbq_assets.adapters.iceberg.rewrite import rewrite
from kbq_assets.adapters.iceberg.whole_days import add_coarse_spec, coarse_spec, replace
from kbq_assets.core.compaction.model import LakeFile, LakeView, RewriteTask, Rewritten, policy_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import TableMoved, Tidied

#: The series of the ids of compactions, and the snapshot property that names the compaction.
SERIES: Final = "kbq-compact"
COMPACTION: Final = "kbq.compaction"


class LakeCompaction:
    """Compaction of a catalog's tables."""

    def __init__(self, lake: IcebergLake) -> None:
        self._lake = lake

    def view(self, table: TableReference) -> LakeView | None:
        with lake_errors(str(table)):
            stored = self._lake.table(table)
            return None if stored is None else _view(stored, table)

    def rewrite(self, task: RewriteTask) -> Rewritten:
        return rewrite(task, self._lake.properties)

    def replace_files(self, view: LakeView, results: Sequence[Rewritten]) -> None:
        """Replace the old files with the new ones in one commit. Raises TableMoved if the table has changed."""
        self._replace(view, {path for each in results for path in each.task.group.paths}, results)

    def drop_files(self, view: LakeView, paths: Sequence[str]) -> bool:
        """Remove files from the table in one commit. Returns False if the table has changed."""
        try:
            self._replace(view, set(paths), ())
        except TableMoved:
            return False
        return True

    def tidy(self, table: TableReference) -> Tidied:
        with lake_errors(str(table)):
            stored = self._lake.table(table)
            if stored is None:
                return Tidied()
            orphans = delete_orphans(stored, int(time.time() * 1000))
            before = len(stored.snapshots())
            keep_house(stored, batch=1)
            return Tidied(max(0, before - len(stored.snapshots())), len(orphans))

    def _replace(self, view: LakeView, old: set[str], results: Sequence[Rewritten]) -> None:
        with lake_errors(f"a compaction of {view.table}"):
            stored = self._lake.table(view.table)
            try:
                if stored is not None:
                    turn_retries_off(stored)  # reads the table again: check afterwards
                    if any(each.task.group.coarse for each in results):
                        add_coarse_spec(stored)
                if stored is None or not _is_unchanged(stored, view):
                    raise TableMoved(f"{view.table} changed during compaction", next_step="plan again")
                _commit(stored, view, old, results)
            except (CommitFailedException, NoSuchTableError, ValidationException) as error:
                raise TableMoved(
                    f"{view.table} changed during compaction: {error}", next_step="plan again"
                ) from error

    def discard(self, table: TableReference, paths: Sequence[str]) -> None:
        with lake_errors(str(table)):
            stored = self._lake.table(table)
            for path in paths if stored is not None else ():
                with contextlib.suppress(OSError):
                    stored.io.delete(path)  # type: ignore[union-attr]


def _view(stored: Table, table: TableReference) -> LakeView:
    snapshot = stored.current_snapshot()
    data, deletes = _entries(stored, snapshot) if snapshot else ([], 0)
    coarse = coarse_spec(stored.metadata)
    known = {stored.metadata.default_spec_id, coarse.spec_id if coarse else stored.metadata.default_spec_id}
    times = {each.snapshot_id: each.timestamp_ms for each in stored.snapshots()}
    leaves = _leaves(stored)
    files = (
        replaced(
            _file(stored, entry.data_file, times.get(entry.snapshot_id or 0, 0)),
            older=bool(entry.data_file.column_sizes) and not leaves <= entry.data_file.column_sizes.keys(),
        )
        for entry in data
        if entry.data_file.spec_id in known
    )
    return LakeView(
        table=table,
        snapshot=snapshot.snapshot_id if snapshot else 0,
        layout=_layout(stored),
        number=job_records.last_of(stored.properties, SERIES) + 1,
        files=tuple(sorted(files, key=lambda file: file.path)),
        policy=policy_of(stored.properties, table),
        complete_until=int(stored.properties.get(COMPLETE_HOUR, 0)),
        left_alone="another program deleted rows with delete files" if deletes else "",
        metadata=stored.metadata_location,
        has_hours=coarse is not None,
    )


def _leaves(stored: Table) -> set[int]:
    """The ids of the columns in a file with the table's current schema."""
    schema = stored.schema()
    return {id_ for id_ in schema.field_ids if schema.find_type(id_).is_primitive}


def _entries(stored: Table, snapshot: Snapshot) -> tuple[list[ManifestEntry], int]:
    """The entries of data files, and the number of delete files."""
    data: list[ManifestEntry] = []
    deletes = 0
    for manifest in manifests_of(stored, snapshot):
        found = [e for e in entries_of(stored, manifest) if e.status != ManifestEntryStatus.DELETED]
        if manifest.content == ManifestContent.DATA:
            data += found
        else:
            deletes += len(found)
    return data, deletes


def _file(stored: Table, file: DataFile, added_ms: int) -> LakeFile:
    values = [file.partition[i] for i in range(len(file.partition))]
    fields = list(zip(stored.specs()[file.spec_id].fields, values, strict=True))
    hours = [value for field, value in fields if isinstance(field.transform, HourTransform)]
    days = [value for field, value in fields if _is_day(stored, field)]
    days += [_last_day(value) for field, value in fields if isinstance(field.transform, MonthTransform)]
    if not hours and days and days[0] is not None:
        hours = [days[0] * 24 + 23]
    return LakeFile(
        path=file.file_path,
        bytes=file.file_size_in_bytes,
        rows=file.record_count,
        partition=repr(values),
        added_ms=added_ms,
        hour=next(iter(hours), None),
        day=next(iter(days), None),
        coarse=file.spec_id != stored.metadata.default_spec_id,
    )


def _last_day(month: int | None) -> int | None:
    """The last day of a month, both counted from 1970. It decides whether all rows are old, or all hours complete."""
    if month is None:
        return None
    return (date(1970 + (month + 1) // 12, (month + 1) % 12 + 1, 1) - date(1970, 1, 1)).days - 1


def _is_day(stored: Table, field: PartitionField) -> bool:
    kind = stored.schema().find_type(field.source_id)
    return isinstance(field.transform, IdentityTransform) and isinstance(kind, DateType)


def _layout(stored: Table) -> str:
    metadata = stored.metadata
    sort = metadata.default_sort_order_id
    return f"{metadata.table_uuid} {metadata.current_schema_id} {metadata.default_spec_id} {sort}"


def _is_unchanged(stored: Table, view: LakeView) -> bool:
    snapshot = stored.current_snapshot()
    return (
        (snapshot.snapshot_id if snapshot else 0) == view.snapshot
        and _layout(stored) == view.layout
        and job_records.last_of(stored.properties, SERIES) + 1 == view.number
    )


def _commit(stored: Table, view: LakeView, old: set[str], results: Sequence[Rewritten]) -> None:
    job_id = f"{SERIES}-{view.number}"
    tokens = ",".join(sorted({result.task.token for result in results}))
    rows = sum(result.after.rows for result in results)
    record = JobRecord(job_id, tokens, "", rows, int(time.time() * 1000))
    snapshot = stored.current_snapshot()
    assert snapshot is not None
    transaction = stored.transaction()
    replace(stored, transaction, {COMPACTION: job_id}, _data_files(stored, snapshot, old), results)
    changed, _ = job_records.recorded(stored.properties, record)
    transaction.set_properties(changed)
    commit_once(transaction.commit_transaction, record)


def _data_files(stored: Table, snapshot: Snapshot, paths: set[str]) -> Iterator[DataFile]:
    """The files of a snapshot at these paths. Raises ValidationException if one is missing: the plan is outdated."""
    found = {
        entry.data_file.file_path: entry.data_file
        for entry in _entries(stored, snapshot)[0]
        if entry.data_file.file_path in paths
    }
    if missing := sorted(paths - found.keys()):
        raise ValidationException(f"{missing[0]} is not in the table any more")
    yield from found.values()
