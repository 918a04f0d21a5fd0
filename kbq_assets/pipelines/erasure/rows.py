"""Deletes the rows of an erasure in one warehouse: one job for all tables that have some, like a promotion (PROTOCOL
X3). In a lake, each table has its own job."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbq_assets.core.erasure.model import (
    JOB_PREFIX,
    Deletion,
    Erasure,
    ErasurePhase,
    erased_rows,
    erasure_path,
    key_of,
    turn_of,
)
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import (
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    Refused,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState, rows_key
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference, commit_path, table_state_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.erasure.topic import ErasedTopic, reached
from kbq_assets.pipelines.errors_replay.steps import give_up_replays
from kbq_assets.pipelines.loading import replacing
from kbq_assets.pipelines.loading.replacing import POLL_SECONDS, WAIT_SECONDS
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.pipelines.statements.scratch import drop_orphans
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.erasure import ErasedRows, ErasureJob, ErasureTables
from kbq_assets.ports.warehouse import JobStatus

if TYPE_CHECKING:
    from kbq_assets.pipelines.erasure.staged import StagedRows


def rows_of(live: Deployment, erasure: Erasure) -> RowPlaces:
    return RowPlaces(erasure.topic, reached(live, erasure).epochs)


def count_rows(
    live: Deployment, tables: ErasureTables, erasure: Erasure
) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
    """Rows of an erasure by table, for tables that have some. Deleted keys that a table stores count as its rows, but
    not as loaded ones. Raises Unavailable."""
    topic = ErasedTopic.read(live, erasure.topic)
    return count_in(topic, tables, topic.tables(live), rows_of(live, erasure))


def count_in(
    topic: ErasedTopic, tables: ErasureTables, chosen: Iterable[TableReference], rows: RowPlaces
) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
    targets = topic.with_memories(chosen)
    found: dict[TableReference, dict[tuple[int, int], ErasedRows]] = {}
    for table, counted in sorted(tables.count(list(targets), rows).items()):
        own = found.setdefault(targets[table], {}) if counted else {}
        for at, n in counted.items():
            before = own.get(at, ErasedRows())
            mine = n.loaded if table == targets[table] else 0
            own[at] = ErasedRows(before.rows + n.rows, before.loaded + mine)
    return found


@dataclass(frozen=True)
class RowDeleter:
    """Deletes the rows of one erasure in one warehouse. Every step can be repeated, and any process can continue."""

    live: Deployment
    tables: ErasureTables
    open_rewriter: OpenRewriter

    @property
    def _warehouse(self) -> str:
        return warehouse_of(self.live.load_store)

    def run(self, number: int) -> None:
        """Delete until no table has such a row, because a replay of error rows may add some meanwhile. Raises Refused,
        Unavailable: call it again to continue."""
        while True:
            give_up_replays(self.live.load_store, self.live.warehouse)
            erasure = self._begin(number)
            self._free(erasure)
            if not (job_id := self._own(erasure).job_id):
                return
            try:
                if not self._is_done(erasure):
                    for table in self._tables(erasure):
                        self._enter(erasure, table)
                    erasure = self._rewrite(erasure)
                    if self._own(erasure).job_id != job_id:
                        continue  # another process continued the erasure, and ended the job
                    self._delete(erasure)
            except (Refused, ConfigurationError, JobFailed):
                self._give_up(number)
                raise
            self._record(erasure)

    def _free(self, erasure: Erasure) -> None:
        """Let tables continue that wait for an ended job: a late process may have made them wait, and died."""
        own, store = self._own(erasure), self.live.load_store
        ended = own.attempt - bool(own.job_id)
        for table, found in state.read_table_states(store).items():
            waits = found.value.definition.replacing
            if waits and waits.erasure == erasure.number and turn_of(waits.job_id)[1] <= ended:
                replacing.leave(self.live, [table], waits.job_id, done=False)

    def _own(self, erasure: Erasure) -> Deletion:
        return erasure.deletion(self._warehouse)

    def _change(self, number: int, function: Callable[[Erasure, Deletion], Deletion]) -> Erasure:
        def change(now: Erasure) -> Erasure:
            return now.with_deletion(self._warehouse, function(now, self._own(now)))

        return state.change(self.live.store, Erasure, erasure_path(number), change).value

    def _tables(self, erasure: Erasure) -> list[TableReference]:
        return [TableReference.parse(table) for table in sorted(self._own(erasure).deleting)]

    def _begin(self, number: int) -> Erasure:
        """Store a job id and its tables in the erasure, unless it has a job or there are no rows."""
        staging_id = state.table_registry(self.live.load_store).staging_id

        def begun(erasure: Erasure, own: Deletion) -> Deletion:
            if own.job_id or erasure.phase != ErasurePhase.LOGGED:
                return own
            # Search the files first: if a job loads one meanwhile, the search of the tables finds it.
            tables = {str(each.table): 0 for each, _ in self._staged(erasure).left()}
            found = count_rows(self.live, self.tables, erasure)
            tables |= {str(table): sum(rows.rows for rows in found[table].values()) for table in found}
            if not tables:
                return own
            attempt = own.attempt + 1
            job_id = f"{JOB_PREFIX}{staging_id}-{number}-{attempt}"
            chosen = dict(sorted(tables.items())[: self.tables.tables_per_job])
            return dataclasses.replace(own, attempt=attempt, job_id=job_id, deleting=chosen)

        return self._change(number, begun)

    def _staged(self, erasure: Erasure) -> StagedRows:
        from kbq_assets.pipelines.erasure.staged import StagedRows  # imports numpy

        return StagedRows(self.live, erasure)

    def _rewrite(self, erasure: Erasure) -> Erasure:
        """Write new staged files without the rows, note them in the erasure, then list them instead of the old ones."""
        own = self._own(erasure)
        kept = self._staged(erasure).kept()
        if not own.staged or kept != own.staged:
            # A clean-up deleted the other files as orphans, because nothing lists them yet (E6).
            staged = (*kept, *self._staged(erasure).rewritten(own.deleting))

            def note(_: Erasure, now: Deletion) -> Deletion:
                is_open = (now.job_id, now.staged) == (own.job_id, own.staged)
                return dataclasses.replace(now, staged=staged) if is_open else now

            erasure = self._change(erasure.number, note)
        self._staged(erasure).replace()
        return erasure

    def _enter(self, erasure: Erasure, table: TableReference) -> None:
        """Make a table wait for the deletion."""

        def check(found: TableState, files: Iterable[StagedFile]) -> None:
            """Any table may wait."""

        def changed(found: TableState) -> Replacing:
            topic = ErasedTopic.read(self.live, erasure.topic)
            counted = count_in(topic, self.tables, [table], rows_of(self.live, erasure)).get(table, {})
            # A table with statements has one row for several records, but its state counts records.
            rows = {
                key_of(TopicPartition(erasure.topic, partition), epoch): -each.loaded
                for (partition, epoch), each in counted.items()
                if each.loaded and not found.has_statements
            }
            waiting: Counter[str] = Counter()
            for each, left_out in self._staged(erasure).left({str(table)}):
                waiting[rows_key(each.file)] += left_out
            return Replacing(0, owner.job_id, rows, erasure=erasure.number, waiting=dict(+waiting))

        owner = Replacing(0, self._own(erasure).job_id, erasure=erasure.number)
        replacing.enter(self.live, table, owner, check, changed)
        current = state.read(self.live.load_store, TableState, table_state_path(table)).value
        if current.has_statements and (statements := self.live.warehouse.statements) is not None:
            drop_orphans(statements, table, lambda: current)

    def _job(self, erasure: Erasure) -> ErasureJob:
        job_id = self._own(erasure).job_id
        topic = ErasedTopic.read(self.live, erasure.topic)
        tables = tuple(sorted(topic.with_memories(self._tables(erasure))))
        return ErasureJob(job_id, rows_of(self.live, erasure), tables)

    def _delete(self, erasure: Erasure) -> None:
        """Run the job unless it ran before. Raises Unavailable, JobFailed."""
        try:
            self.tables.erase(self._job(erasure), self.open_rewriter)
        except JobAlreadyExists:
            pass
        except UnknownOutcome as error:
            raise Unavailable(error.message, next_step=self._again(erasure)) from error
        clock = self.live.clock
        deadline = clock.monotonic() + WAIT_SECONDS
        while not self._is_done(erasure):
            if clock.monotonic() >= deadline:
                job_id = self._own(erasure).job_id
                raise Unavailable(f"job {job_id} has not ended", next_step=self._again(erasure))
            clock.sleep(POLL_SECONDS)

    def _is_done(self, erasure: Erasure) -> bool:
        """Whether the job has deleted the rows. Raises JobFailed."""
        job_id, found = self._own(erasure).job_id, self._status(erasure)
        if found is None or found.state != "DONE":
            return False
        is_ours = found.source_uris == self._job(erasure).sources
        if is_ours and found.error is not None and not self._left(erasure):
            return True  # a script may fail after its COMMIT (S2)
        if found.error is not None or not is_ours:
            why = found.error.message if found.error else "its id was given up"
            raise JobFailed(f"job {job_id} deleted nothing: {why}", next_step=self._again(erasure))
        return True

    def _status(self, erasure: Erasure) -> JobStatus | None:
        warehouse, job_id = self.live.warehouse, self._own(erasure).job_id
        return warehouse.get_job(job_id, warehouse.project, warehouse.location, self._tables(erasure)[0])

    def _left(self, erasure: Erasure) -> bool:
        topic = ErasedTopic.read(self.live, erasure.topic)
        counted = count_in(topic, self.tables, self._tables(erasure), rows_of(self.live, erasure))
        return any(counted.values())

    def _record(self, erasure: Erasure) -> None:
        """Count the deleted rows in the commits while every table waits; then let each table continue."""
        job_id, tables = self._own(erasure).job_id, self._tables(erasure)
        waiting = replacing.waiting(self.live, tables, job_id)
        if len(waiting) == len(tables):
            self._count(erasure, waiting)
        replacing.leave(self.live, tables, job_id)
        # Loads that ended before a table waited may have added rows after the job got its id.
        self._end(erasure, {str(table): -sum(each.rows.values()) for table, each in waiting.items()})

    def _count(self, erasure: Erasure, waiting: Mapping[TableReference, Replacing]) -> None:
        """Count the rows that were deleted from tables and staged files."""
        rows = [(key, table, n) for table, each in sorted(waiting.items()) for key, n in each.rows.items()]
        rows += [(rows_key(each.new), each.new.table, -each.rows) for each in self._own(erasure).staged]
        changes = [
            (int(partition), int(epoch), _counts(table, n))
            for key, table, n in rows
            for _, partition, epoch in [key.rsplit("/", 2)]
        ]
        job_id, warehouse = self._own(erasure).job_id, self._warehouse
        for shard in shards_of(self.live.store, erasure.topic, required=False):
            state.change_head(
                self.live.store,
                commit_path(erasure.topic, shard),
                lambda commit: erased_rows(commit, job_id, _of_shard(commit, changes), warehouse),
            )

    def _give_up(self, number: int) -> None:
        """Burn the job's id, then let the tables continue unchanged. If the job ran, do nothing (R6). Rewritten staged
        files stay."""
        erasure = state.read(self.live.store, Erasure, erasure_path(number)).value
        job_id, tables = self._own(erasure).job_id, self._tables(erasure)
        if not job_id:
            return
        warehouse = self.live.warehouse
        try:
            warehouse.burn_job(job_id, warehouse.project, warehouse.location, tables[0])
        except JobAlreadyExists:
            found = self._status(erasure)
            if found is None or found.state != "DONE":
                return
            if found.error is None and found.source_uris == self._job(erasure).sources:
                return
        self._staged(erasure).replace()
        self._count(erasure, {})
        replacing.leave(self.live, tables, job_id, done=False)
        self._end(erasure, None)

    def _end(self, erasure: Erasure, deleted: Mapping[str, int] | None) -> None:
        """End the job. ``deleted`` are the rows by table that it deleted at least; None if it deleted none."""
        job_id = self._own(erasure).job_id

        def ended(_: Erasure, now: Deletion) -> Deletion:
            if now.job_id != job_id:
                return now
            rows = Counter(now.rows)
            if deleted is not None:
                rows.update({table: max(n, deleted.get(table, 0)) for table, n in now.deleting.items()})
            for each in now.staged:
                rows[str(each.new.table)] += each.rows
            files, kept = now.files + len(now.staged), dict(sorted((+rows).items()))
            return dataclasses.replace(now, job_id="", deleting={}, staged=(), rows=kept, files=files)

        self._change(erasure.number, ended)

    def _again(self, erasure: Erasure) -> str:
        return f"kbq erase resume {erasure.number}"


def _counts(table: TableReference, rows: int) -> Counts:
    """The change of counts by a deletion: records stay, and deleted rows count as erased."""
    is_error = is_error_table(table)
    return Counts(erased=-rows, errors=rows if is_error else 0, rows={} if is_error else {str(table): rows})


def _of_shard(commit: Commit, changes: list[tuple[int, int, Counts]]) -> list[tuple[int, int, Counts]]:
    return [each for each in changes if each[0] in commit.partitions]
