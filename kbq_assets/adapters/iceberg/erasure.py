"""Erasures in a lake (`ports.erasure.ErasureTables`): the data files that have erased rows are rewritten without them,
and one commit replaces exactly these files. Old snapshots keep the rows until they expire (PROTOCOL X7)."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef

from kbq_assets.adapters.iceberg import job_records, schema
from kbq_assets.adapters.iceberg.commits import (
    COMPLETE,
    JOB_ID,
    commit_job,
    commit_once,
    move_tag,
)
from kbq_assets.adapters.iceberg.data_files import touched, where
from kbq_assets.adapters.iceberg.erased_rows import is_erased
from kbq_assets.adapters.iceberg.housekeeping import GRACE, MAX_AGE, max_age_ms
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.adapters.iceberg.load_jobs import LakeJobs
from kbq_assets.adapters.iceberg.manifests import require_whole
from kbq_assets.adapters.iceberg.overwrites import replace_files
from kbq_assets.adapters.iceberg.rewrites import Rewrite, discard
from kbq_assets.adapters.iceberg.whole_days import replace
from kbq_assets.core.compaction.model import Rewritten
from kbq_assets.core.erasure.offset_sets import RowPlaces, offsets_of
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.erasure import ErasedRows, ErasureJob
from kbq_assets.ports.errors_replay import REPLAYED_AT

#: Attempts to commit while compaction or other programs change the table. Its loads wait.
_ATTEMPTS: Final = 20


class LakeErasureTables:
    """Runs erasures on a catalog's tables."""

    tables_per_job: int | None = 1

    def __init__(self, lake: IcebergLake, jobs: LakeJobs) -> None:
        self._lake = lake
        self._jobs = jobs

    def find(
        self, tables: Collection[TableReference], topic: str, column: str, value: str, limit: int
    ) -> Mapping[TableReference, RowPlaces]:
        steps, found = column.split("."), {}
        for reference, table in self._existing(tables):
            path = _path(schema.columns_in(table), steps)
            if path is None:
                continue
            by_range: dict[tuple[int, int], set[int]] = defaultdict(set)
            with lake_errors(f"a search of {reference}"):
                require_whole(table)
                wanted = (*schema.POSITIONS, path[0]) if path[0] not in schema.POSITIONS else schema.POSITIONS
                scan = table.scan(
                    EqualTo(term=Reference("_kafka_topic"), value=literal(topic)), selected_fields=wanted
                )
                for batch in scan.to_arrow_batch_reader():
                    for row in np.flatnonzero(_has(batch, path, value))[:limit].tolist():
                        at = (batch["_kafka_partition"][row].as_py(), batch["_kbq_epoch"][row].as_py())
                        by_range[at].add(batch["_kafka_offset"][row].as_py())
                    if sum(map(len, by_range.values())) >= limit:
                        break
            found[reference] = RowPlaces(
                topic, tuple((*at, offsets_of(own)) for at, own in sorted(by_range.items()))
            )
        return found

    def count(
        self, tables: Collection[TableReference], rows: RowPlaces
    ) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
        found = {}
        for reference, table in self._existing(tables):
            with lake_errors(f"a search of {reference}"):
                found[reference] = _counted(reference, table, rows)
        return found

    def keeps(self, tables: Collection[TableReference]) -> Iterable[str]:
        """Snapshots, tags, branches, and files of failed jobs."""
        now = datetime.now(UTC)
        for reference, table in self._existing(tables):
            age = max_age_ms(table)
            yield (
                f"{reference}: its current snapshots, until {_day(now, age) or f'you lower {MAX_AGE}'}, and files of"
                f" failed jobs, until {(now + GRACE).date()}: then kbq expire {reference} deletes them"
            )
            for name, ref in sorted(table.metadata.refs.items()):
                if name not in ("main", COMPLETE):
                    yield f"{reference}: {ref.snapshot_ref_type} {name}, until {_until(table, ref)}"

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        """Replace the files of the job's table."""
        [reference] = job.tables
        with lake_errors(f"job {job.job_id}"):
            for _ in range(_ATTEMPTS):
                table = self._jobs.free_table(reference, job.job_id)
                token = uuid.uuid4().hex[:12]
                record = JobRecord(job.job_id, token, job.sources[0], 0, int(time.time() * 1000))
                if table is None:
                    return self._jobs.note_in_dataset(reference, record)
                if self._replace(reference, table, job, record, open_rewriter):
                    return
        raise Unavailable(
            f"job {job.job_id}: {reference} changed {_ATTEMPTS} times while it was written",
            next_step="run again; check which other program writes to the table",
        )

    def _replace(
        self,
        reference: TableReference,
        table: Table,
        job: ErasureJob,
        record: JobRecord,
        open_rewriter: OpenRewriter,
    ) -> bool:
        """Rewrite the files and commit. Returns False if the table changed meanwhile."""
        files = list(touched(table, job.rows))
        if not files:
            commit_job(table, record)
            return True
        again = Rewrite(reference, job.job_id, record.commit, job.rows)
        results = again.run(self._lake, table, files, open_rewriter)
        if results is None:
            return False
        try:
            _commit(table, record, files, results)
        except CommitFailedException:
            discard(table, [each.path for each in results])
            return False
        discard(table, [each.path for each in results if not each.after.rows])
        return True

    def _existing(self, tables: Collection[TableReference]) -> Iterator[tuple[TableReference, Table]]:
        for reference in tables:
            with lake_errors(str(reference)):
                table = self._lake.table(reference)
            if table is not None:
                yield reference, table


def _counted(reference: TableReference, table: Table, rows: RowPlaces) -> dict[tuple[int, int], ErasedRows]:
    if not rows.places:
        return {}
    require_whole(table)
    names = {field.name for field in table.schema().fields}
    # A replayed error row still counts as a row of a load job.
    marks = {REPLAYED_AT} & names if not is_error_table(reference) else set()
    fields = (*schema.POSITIONS, *marks)
    all_: Counter[tuple[int, int]] = Counter()
    added: Counter[tuple[int, int]] = Counter()
    for batch in table.scan(where(rows), selected_fields=fields).to_arrow_batch_reader():
        chosen = batch.filter(pa.array(is_erased(batch, rows)))
        places = list(
            zip(chosen["_kafka_partition"].to_pylist(), chosen["_kbq_epoch"].to_pylist(), strict=True)
        )
        all_.update(places)
        if marks:
            is_added = chosen[REPLAYED_AT].is_valid().to_pylist()
            added.update(place for place, mine in zip(places, is_added, strict=True) if mine)
    return {at: ErasedRows(n, n - added[at]) for at, n in sorted(all_.items())}


def _commit(table: Table, record: JobRecord, old: Sequence[DataFile], results: Sequence[Rewritten]) -> None:
    """Replace the old files in one commit with the job's id. KBQ's own tag moves along, since hours stay complete."""
    transaction = table.transaction()
    replace(table, transaction, {JOB_ID: record.job_id}, old, results)
    changed, _ = job_records.recorded(table.properties, record)
    transaction.set_properties(changed)
    move_tag(table, transaction)
    commit_once(transaction.commit_transaction, record)
    _drop_bounds(table)


def _drop_bounds(table: Table) -> None:
    """Commit an empty snapshot: the one before it lists the old files as deleted, including the minimum and maximum of
    their columns. If this fails, the next load job's snapshot has the same effect."""
    transaction = table.transaction()
    replace_files(table, transaction, {}, (), ())
    move_tag(table, transaction)
    with contextlib.suppress(CommitFailedException):
        transaction.commit_transaction()


def _until(table: Table, ref: SnapshotRef) -> str:
    """When a tag or branch expires."""
    snapshot = table.snapshot_by_id(ref.snapshot_id)
    if ref.max_ref_age_ms is None or snapshot is None:
        return "you drop it"
    made = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return _day(made, ref.max_ref_age_ms) or "you drop it"


def _day(since: datetime, age_ms: int) -> str:
    """The day on which an age is reached; "" if it is beyond the calendar: Iceberg's largest age means forever."""
    try:
        return (since + timedelta(milliseconds=age_ms)).date().isoformat()
    except OverflowError:
        return ""


def _path(columns: Iterable[Column], steps: Sequence[str]) -> list[str] | None:
    """A column's path into records with the table's spelling of each name; None if a name is missing."""
    found = [column for column in columns if column.name.lower() == steps[0].lower()]
    if not found or found[0].mode == "REPEATED":
        return None
    rest = _path(found[0].fields, steps[1:]) if len(steps) > 1 else []
    return None if rest is None else [found[0].name, *rest]


def _has(batch: pa.RecordBatch, path: Sequence[str], value: str) -> Any:
    column = batch[path[0]]
    for step in path[1:]:
        column = pc.struct_field(column, step)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        matching = pc.equal(column, pa.scalar(value.encode(), column.type))
    else:
        matching = pc.equal(column.cast(pa.string()), value)
    return pc.fill_null(matching, False).to_numpy(zero_copy_only=False)
