"""Replays of error rows in a lake (`ports.errors_replay.ErrorReplaySteps`): a load job for the target, then a commit to
the error table that marks its rows (PROTOCOL ER7)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg.data_files import rows_at, touched
from kbq_assets.adapters.iceberg.erased_rows import is_erased
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.adapters.iceberg.load_jobs import LakeJobs
from kbq_assets.adapters.iceberg.replaced_files import CopiedRows, ReplacedFiles
from kbq_assets.adapters.iceberg.rewrite import rewrite
from kbq_assets.adapters.iceberg.rewrites import Rewrite
from kbq_assets.adapters.iceberg.schema import columns_in
from kbq_assets.adapters.iceberg.writer import ParquetWriter
from kbq_assets.core.compaction.model import RewriteTask, Rewritten
from kbq_assets.core.erasure.offset_sets import RowPlaces, offsets_of
from kbq_assets.core.errors import JobFailed, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.errors_replay import REPLAYED_AT, ErrorReplay
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri, StagedTables

#: Attempts to commit while loads or compaction change the error table.
_ATTEMPTS: Final = 20
_PLACE: Final = ("_kafka_topic", "_kafka_partition", "_kbq_epoch", "_kafka_offset")
_AGAIN: Final = "run it again"


@dataclass(frozen=True)
class LakeErrorReplays:
    """Replays error rows in a catalog's tables."""

    lake: IcebergLake
    jobs: LakeJobs
    open_uri: OpenUri

    def places(self, replay: ErrorReplay) -> RowPlaces:
        """The places of the rows in the files. Checks that their error rows can be marked."""
        with lake_errors(f"a replay into {replay.table}"):
            table, errors = self.lake.table(replay.table), self.lake.table(replay.errors)
            if table is None or errors is None:
                raise JobFailed(f"{replay.table} or {replay.errors} does not exist", next_step=_AGAIN)
            try:
                places = self._read(table, replay)
            except LoadError as error:
                raise JobFailed(f"the files do not load into {replay.table}: {error.message}") from error
            for _ in touched(errors, places):
                pass  # raises JobFailed for a file that KBQ cannot replace
        return places

    def _read(self, table: Table, replay: ErrorReplay) -> RowPlaces:
        offsets: list[int] = []
        at = ("", 0, 0)
        for batch in StagedTables(columns_in(table), self.open_uri).read(replay.source_uris, replay.files):
            topics, partitions, epochs, own = (batch.table[name] for name in _PLACE)
            at = topics[0].as_py(), partitions[0].as_py(), epochs[0].as_py()
            offsets += own.to_pylist()
        topic, partition, epoch = at
        return RowPlaces(topic, ((partition, epoch, offsets_of(offsets)),))

    def land(self, job_id: str, replay: ErrorReplay, places: RowPlaces) -> None:
        job = LoadJob(
            job_id, "local", "local", replay.table, replay.source_uris, replay.schema, files=replay.files
        )

        def open_writer(table: Table, token: str) -> ParquetWriter:
            chosen = partial(_replayed, places=places, now_ms=replay.now_ms)
            return ParquetWriter(table, job, token, self.open_uri, chosen=chosen)

        self.jobs.insert(job, open_writer)

    def mark(self, job_id: str, errors: TableReference, places: RowPlaces, now_ms: int) -> None:
        """Replace the data files that have these rows with files in which the rows are marked."""
        with lake_errors(f"job {job_id}"):
            for _ in range(_ATTEMPTS):
                table = self.jobs.free_table(errors, job_id)
                if table is None:
                    return self.jobs.note_in_dataset(errors, JobRecord(job_id, uuid.uuid4().hex[:12]))
                ready = self._marked(table, errors, job_id, places, now_ms)
                if ready is not None and ready.commit():
                    return
        raise Unavailable(
            f"job {job_id}: {errors} changed {_ATTEMPTS} times while it was written",
            next_step="run again; check which other program writes to the table",
        )

    def _marked(
        self, table: Table, errors: TableReference, job_id: str, places: RowPlaces, now_ms: int
    ) -> ReplacedFiles | None:
        """The new files; None if the table changed meanwhile."""
        old = list(touched(table, places))
        again = Rewrite(errors, job_id, uuid.uuid4().hex[:12], places)
        results = again.run(self.lake, table, old, lambda: nullcontext(self._rewrite))
        if results is None:
            return None
        ready = ReplacedFiles("", table, job_id, old, results)
        copies = CopiedRows(table, job_id, {REPLAYED_AT: _moment(now_ms)})
        try:
            copies.write(rows_at(table, old, places))
            ready.added = copies
            if copies.rows != ready.replaced_rows:
                raise JobFailed(f"{errors}: {copies.rows} of {ready.replaced_rows} rows could be copied")
        except BaseException:
            ready.discard()
            raise
        return ready

    def _rewrite(self, tasks: Sequence[RewriteTask]) -> list[Rewritten]:
        """Rewrite files in this process, regardless of their size."""
        return [rewrite(task, self.lake.properties) for task in tasks]


def _replayed(rows: pa.Table, *, places: RowPlaces, now_ms: int) -> pa.Table:
    """The rows at ``places``, with the time of the replay."""
    batches = rows.to_batches()
    wanted = [is_erased(batch, places) for batch in batches]
    chosen = rows.filter(pa.array(np.concatenate(wanted))) if wanted else rows
    column = chosen.schema.get_field_index(REPLAYED_AT)
    kind = chosen.schema.field(column).type
    return chosen.set_column(
        column, REPLAYED_AT, pa.repeat(pa.scalar(_moment(now_ms), kind), chosen.num_rows)
    )


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC)
