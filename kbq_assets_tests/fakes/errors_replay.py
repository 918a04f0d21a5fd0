"""Replays of error rows in the fake warehouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbq_assets.core.errors import JobFailed, UnknownOutcome
from kbq_assets.ports.errors_replay import ErrorReplay, Replayed
from kbq_assets.ports.warehouse import LoadJob

if TYPE_CHECKING:
    from kbq_assets_tests.fakes.warehouse import FakeWarehouse


class FakeErrorReplays:
    """``loses_reply``: the next replay takes effect, and nobody hears of it."""

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
