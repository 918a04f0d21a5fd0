"""Replays of error rows in the fake warehouse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbq_assets.core.erasure.offset_sets import RowPlaces, has, offsets_of
from kbq_assets.core.errors import JobFailed, UnknownOutcome
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.errors_replay import ErrorReplay, Replayed
from kbq_assets.ports.warehouse import JobError, JobStatus, LoadJob

if TYPE_CHECKING:
    from kbq_assets_tests.fakes.warehouse import FakeWarehouse, Row, WarehouseView


class FakeErrorReplays:
    """``loses_reply``: the next replay takes effect, but its reply is lost."""

    def __init__(self, warehouse: FakeWarehouse) -> None:
        self._warehouse = warehouse
        self.loses_reply = False

    def replay(self, replay: ErrorReplay) -> Replayed:
        """Add the rows whose error rows are not marked, and mark these. A statement adds them too, as every statement
        of the fake does, if the ledger is at its batch."""
        stored = self._warehouse.stored
        if replay.table not in stored or replay.errors not in stored:
            raise JobFailed(f"{replay.table} or {replay.errors} does not exist")
        job = LoadJob("", "local", "local", replay.table, replay.source_uris, replay.schema)
        own, ledger = replay.statement, self._warehouse.statements.read_ledger(replay.table)
        if own is not None and (ledger is None or ledger.batch != own.batch):
            raise JobFailed(f"the ledger is {ledger}, not {own.batch}")
        records, error = self._warehouse.decoded(job)
        if error is not None:
            raise JobFailed(error.message)
        row_of = self._warehouse.row_of
        target, errors = stored[replay.table], stored[replay.errors]
        waiting = set(errors.rows) - errors.replayed
        chosen = [record for record in records if row_of(record) in waiting]
        self._warehouse.append(replay.table, chosen)
        rows = {row_of(record) for record in chosen}
        target.replayed |= rows
        errors.replayed |= rows
        if self.loses_reply:
            self.loses_reply = False
            raise UnknownOutcome("the replay's reply was lost", next_step="run it again")
        return Replayed(len(chosen))


class FakeErrorReplaySteps:
    """`ErrorReplaySteps` over a FakeWarehouse. Its jobs run immediately."""

    def __init__(self, warehouse: FakeWarehouse, view: WarehouseView | None = None) -> None:
        self._warehouse, self._view = warehouse, view

    def places(self, replay: ErrorReplay) -> RowPlaces:
        """The places of the rows in the files."""
        if self._view is None:
            return self._places(replay)
        return self._view.read("places", str(replay.table), lambda: self._places(replay))

    def _places(self, replay: ErrorReplay) -> RowPlaces:
        if not {replay.table, replay.errors} <= self._warehouse.stored.keys():
            raise JobFailed(f"{replay.table} or {replay.errors} does not exist")
        records, error = self._warehouse.decoded(_job("", replay))
        if error is not None:
            raise JobFailed(error.message)
        rows = [self._warehouse.row_of(record) for record in records]
        at = [(row.partition, row.epoch) for row in rows[:1]]
        offsets = offsets_of(row.offset for row in rows)
        return RowPlaces(rows[0].topic if rows else "", tuple((*each, offsets) for each in at))

    def land(self, job_id: str, replay: ErrorReplay, places: RowPlaces) -> None:
        """Add the rows at places."""
        status = JobStatus(job_id, "PENDING", replay.source_uris)

        def added() -> int | JobError:
            job = _job(job_id, replay)
            wanted = self._warehouse.job_errors(job) if self._warehouse.job_errors else None
            records, error = self._warehouse.decoded(job)
            if wanted or error:
                return wanted or error or 0
            chosen = [record for record in records if _is_at(self._warehouse.row_of(record), places)]
            self._warehouse.append(replay.table, chosen)
            self._warehouse.stored[replay.table].replayed.update(map(self._warehouse.row_of, chosen))
            return len(chosen)

        self._write("land", f"{job_id} {replay.table}", status, replay.table, added)

    def mark(self, job_id: str, errors: TableReference, places: RowPlaces, now_ms: int) -> None:
        """Mark the error rows at places."""
        stored = self._warehouse.stored

        def marked() -> int:
            chosen = [row for row in self._warehouse.rows(errors) if _is_at(row, places)]
            if errors in stored:
                stored[errors].replayed.update(chosen)
            return len(chosen)

        self._write("mark", f"{job_id} {errors}", JobStatus(job_id, "PENDING", ("mark",)), errors, marked)

    def _write(
        self,
        operation: str,
        target: str,
        status: JobStatus,
        table: TableReference,
        effect: Callable[[], int | JobError],
    ) -> None:
        def apply() -> None:
            self._warehouse.insert_replacement(status, table, effect)

        if self._view is None:
            apply()
        else:
            self._view.write(operation, target, apply)


def _job(job_id: str, replay: ErrorReplay) -> LoadJob:
    return LoadJob(job_id, "local", "local", replay.table, replay.source_uris, replay.schema)


def _is_at(row: Row, places: RowPlaces) -> bool:
    return row.topic == places.topic and any(
        (row.partition, row.epoch) == (partition, epoch) and has(offsets, row.offset)
        for partition, epoch, offsets in places.places
    )
