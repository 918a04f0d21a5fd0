"""Deletes the rows of an erasure: one job in flight of all tables that have some (PROTOCOL X3), as a promotion is."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbq_assets.core.erasure.model import (
    JOB_PREFIX,
    Erasure,
    Phase,
    erased_rows,
    erasure_path,
    key_of,
)
from kbq_assets.core.errors import (
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    Refused,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference, commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.options import is_error_table
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.topic import ErasedTopic, reached
from kbq_assets.pipelines.loading import replacing
from kbq_assets.pipelines.loading.replacing import POLL_SECONDS, WAIT_SECONDS
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.erasure import ErasedRows, ErasureJob, ErasureTables, RowPlaces


def rows_of(live: Deployment, erasure: Erasure) -> RowPlaces:
    """The rows that an erasure forgets."""
    return RowPlaces(erasure.topic, reached(live, erasure).epochs)


def count_rows(
    live: Deployment, tables: ErasureTables, erasure: Erasure
) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
    """The rows that tables have of an erasure, of those that have some. Raises Unavailable."""
    found = tables.count(ErasedTopic.read(live, erasure.topic).tables(live), rows_of(live, erasure))
    return {table: counted for table, counted in sorted(found.items()) if counted}


@dataclass(frozen=True)
class RowDeleter:
    """Deletes the rows of one erasure. Every step can be repeated, and whoever repeats it continues."""

    live: Deployment
    tables: ErasureTables

    def run(self, number: int) -> Erasure:
        """Delete until no table has such a row: a replay of error rows may add some meanwhile. Raises Refused,
        Unavailable; then the same call continues."""
        while True:
            erasure = self._begin(number)
            if not erasure.job_id:
                return erasure
            try:
                if not self._is_done(erasure):
                    for table in _tables(erasure):
                        self._enter(erasure, table)
                    self._delete(erasure)
            except (Refused, ConfigurationError, JobFailed):
                self._give_up(erasure)
                raise
            self._record(erasure)

    def _begin(self, number: int) -> Erasure:
        """Name a job and its tables, unless one is named. Without rows no job is."""
        staging_id = state.table_registry(self.live.load_store).staging_id

        def change(erasure: Erasure) -> Erasure:
            if erasure.job_id or erasure.phase != Phase.LOGGED:
                return erasure
            found = count_rows(self.live, self.tables, erasure)
            if not found:
                return erasure
            attempt = erasure.attempt + 1
            return dataclasses.replace(
                erasure,
                attempt=attempt,
                job_id=f"{JOB_PREFIX}{staging_id}-{number}-{attempt}",
                deleting={str(t): sum(each.rows for each in found[t].values()) for t in found},
            )

        return state.change(self.live.store, Erasure, erasure_path(number), change).value

    def _enter(self, erasure: Erasure, table: TableReference) -> None:
        """Let a table wait for the deletion."""

        wanted = reached(self.live, erasure)

        def check(found: TableState, files: Iterable[StagedFile]) -> None:
            if found.has_statements:
                raise Refused(f"{table} is kept by statements", next_step=self._again(erasure))
            for file in files:
                if wanted.touches(file) and not found.is_loaded(file):
                    raise Refused(
                        f"{file.path} may have erased rows and is not loaded",
                        next_step=f"kbq load, then {self._again(erasure)}",
                    )

        def changed(found: TableState) -> Replacing:
            counted = self.tables.count([table], rows_of(self.live, erasure)).get(table, {})
            rows = {
                key_of(TopicPartition(erasure.topic, partition), epoch): -each.loaded
                for (partition, epoch), each in counted.items()
                if each.loaded
            }
            return Replacing(0, erasure.job_id, rows, erasure=erasure.number)

        owner = Replacing(0, erasure.job_id, erasure=erasure.number)
        replacing.enter(self.live, table, owner, check, changed)

    def _job(self, erasure: Erasure) -> ErasureJob:
        return ErasureJob(erasure.job_id, rows_of(self.live, erasure), tuple(_tables(erasure)))

    def _delete(self, erasure: Erasure) -> None:
        """Run the job, or find that it ran. Raises Unavailable, JobFailed."""
        try:
            self.tables.erase(self._job(erasure))
        except JobAlreadyExists:
            pass
        except UnknownOutcome as error:
            raise Unavailable(error.message, next_step=self._again(erasure)) from error
        clock = self.live.clock
        deadline = clock.monotonic() + WAIT_SECONDS
        while not self._is_done(erasure):
            if clock.monotonic() >= deadline:
                raise Unavailable(f"job {erasure.job_id} has not ended", next_step=self._again(erasure))
            clock.sleep(POLL_SECONDS)

    def _is_done(self, erasure: Erasure) -> bool:
        """Whether the job has deleted the rows. Raises JobFailed."""
        warehouse = self.live.warehouse
        found = warehouse.get_job(erasure.job_id, warehouse.project, warehouse.location)
        if found is None or found.state != "DONE":
            return False
        is_ours = found.source_uris == self._job(erasure).sources
        if is_ours and found.error is not None and not self._left(erasure):
            return True  # a script may fail after its COMMIT (S2)
        if found.error is not None or not is_ours:
            why = found.error.message if found.error else "its id was given up"
            raise JobFailed(f"job {erasure.job_id} deleted nothing: {why}", next_step=self._again(erasure))
        return True

    def _left(self, erasure: Erasure) -> bool:
        counted = self.tables.count(_tables(erasure), rows_of(self.live, erasure))
        return any(counted.values())

    def _record(self, erasure: Erasure) -> None:
        """Count what was deleted: in the commits, while every table waits; then each table goes on."""
        waiting = replacing.waiting(self.live, _tables(erasure), erasure.job_id)
        if len(waiting) == len(erasure.deleting):
            changes = [
                (int(partition), int(epoch), _counts(table, rows))
                for table, each in sorted(waiting.items())
                for key, rows in each.rows.items()
                for _, partition, epoch in [key.rsplit("/", 2)]
            ]
            for shard in shards_of(self.live.store, erasure.topic):
                state.change_head(
                    self.live.store,
                    commit_path(erasure.topic, shard),
                    lambda commit: erased_rows(commit, erasure.job_id, _of_shard(commit, changes)),
                )
        replacing.leave(self.live, _tables(erasure), erasure.job_id)
        self._end(erasure)

    def _give_up(self, erasure: Erasure) -> None:
        """Let the tables go on as they were, unless the job ran: its id is burned first (R6)."""
        warehouse = self.live.warehouse
        try:
            warehouse.burn_job(erasure.job_id, warehouse.project, warehouse.location)
        except JobAlreadyExists:
            found = warehouse.get_job(erasure.job_id, warehouse.project, warehouse.location)
            if found is None or found.state != "DONE":
                return
            if found.error is None and found.source_uris == self._job(erasure).sources:
                return
        replacing.leave(self.live, _tables(erasure), erasure.job_id, done=False)
        self._end(erasure, deleted=False)

    def _end(self, erasure: Erasure, *, deleted: bool = True) -> None:
        def change(now: Erasure) -> Erasure:
            if now.job_id != erasure.job_id:
                return now
            rows = Counter(now.rows)
            rows.update(now.deleting if deleted else {})
            return dataclasses.replace(now, job_id="", deleting={}, rows=dict(sorted(rows.items())))

        state.change(self.live.store, Erasure, erasure_path(erasure.number), change)

    def _again(self, erasure: Erasure) -> str:
        return f"kbq erase resume {erasure.number}"


def _tables(erasure: Erasure) -> list[TableReference]:
    return [TableReference.parse(table) for table in sorted(erasure.deleting)]


def _counts(table: TableReference, rows: int) -> Counts:
    """What a deletion changes: records stay, and what is no row any more was erased."""
    is_error = is_error_table(table)
    return Counts(erased=-rows, errors=rows if is_error else 0, rows={} if is_error else {str(table): rows})


def _of_shard(commit: Commit, changes: list[tuple[int, int, Counts]]) -> list[tuple[int, int, Counts]]:
    return [each for each in changes if each[0] in commit.partitions]
