"""Replays of error rows in a warehouse where one commit cannot change two tables (PROTOCOL ER7).

    intent    swap the job id, the target and the error rows into the error table's state
    land      add the rows, with a job of the target table
    mark      mark the error rows, with a job of the error table under the same id
    end       remove the intent, by swap

A process that finds an intent ends it first. If its job did not run, it either runs then, or its id is burned.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.erasure.offset_sets import has, offsets_of
from kbq_assets.core.errors import JobAlreadyExists, JobFailed, Refused, Unavailable
from kbq_assets.core.errors_replay.intents import ReplayIntent
from kbq_assets.core.errors_replay.tables import begin_replay, end_replay
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference, schema_path, table_state_path
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.errors_replay import ErrorReplay, ErrorReplays, ErrorReplaySteps, Replayed
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobStatus, KafkaRange, Warehouse

#: Attempts while other replays of the same error table are faster.
_ATTEMPTS: Final = 20
_AGAIN: Final = "kbq errors replay"


class _Open(Exception):
    """Another replay has entered an intent meanwhile."""


@dataclass(frozen=True)
class SteppedReplays:
    """`ErrorReplays` of a warehouse that replays in steps. ``store`` is its view of the staging area."""

    store: ObjectStore
    warehouse: Warehouse
    steps: ErrorReplaySteps

    def replay(self, replay: ErrorReplay) -> Replayed:
        """Add the rows whose error rows are not marked, then mark the error rows."""
        for _ in range(_ATTEMPTS):
            self._settle(replay.errors)
            with suppress(_Open):
                intent = self._enter(replay)
                return Replayed(_added(intent, self._end(replay.errors, intent)) if intent else 0)
        raise Unavailable(f"other replays of {replay.errors} were faster {_ATTEMPTS} times", next_step=_AGAIN)

    def settle(self, *, gives_up: bool = False) -> Counter[TableReference]:
        """End unfinished replays of other processes; return the rows that they added, by table. A job that has not run
        runs now, or is given up with ``gives_up``."""
        added: Counter[TableReference] = Counter()
        for errors in state.read_table_states(self.store):
            added += self._settle(errors, gives_up=gives_up)
        return added

    def _settle(self, errors: TableReference, *, gives_up: bool = False) -> Counter[TableReference]:
        found = state.find(self.store, TableState, table_state_path(errors))
        intent = found.value.definition.replaying if found else None
        if intent is None:
            return Counter()
        return Counter({intent.table: self._end(errors, intent, gives_up=gives_up).output_rows})

    def _enter(self, replay: ErrorReplay) -> ReplayIntent | None:
        """Enter an intent for the rows whose error rows are not marked; None if there is none. Raises Refused."""

        def entered(now: TableState) -> TableState:
            if now.definition.replaying is not None:
                raise _Open
            # Read the error rows after the state: if no intent names one, it is marked, or waits (ER7).
            wanted = self._waiting(replay)
            return begin_replay(now, wanted) if wanted else now

        path = table_state_path(replay.errors)
        return state.change(self.store, TableState, path, entered).value.definition.replaying

    def _waiting(self, replay: ErrorReplay) -> ReplayIntent | None:
        """An intent for the rows of the files whose error rows are not marked; None if there are none."""
        found = self.steps.places(replay)
        [(partition, epoch, own)] = found.places
        known = self.warehouse.positions(replay.errors, KafkaRange(found.topic, partition, epoch))
        offsets = offsets_of(offset for offset in known if has(own, offset))
        files = tuple(replay.files.values())
        return ReplayIntent("", replay.table, files, replay.now_ms, offsets) if offsets else None

    def _end(self, errors: TableReference, intent: ReplayIntent, *, gives_up: bool = False) -> JobStatus:
        """End an intent; return its job's status. Raises JobFailed if the error rows cannot be marked."""
        found = self._status(intent) or self._run(errors, intent, gives_up=gives_up)
        if _has_landed(found):
            with suppress(JobAlreadyExists):
                self.steps.mark(intent.job_id, errors, intent.places, intent.at_ms)
        path = table_state_path(errors)
        state.change(self.store, TableState, path, lambda now: end_replay(now, intent.job_id))
        return found

    def _run(self, errors: TableReference, intent: ReplayIntent, *, gives_up: bool) -> JobStatus:
        """Run the job or burn its id; return its status. Raises UnknownOutcome, Unavailable."""
        place = self.warehouse.project, self.warehouse.location
        with suppress(JobAlreadyExists):
            # Check after entering the intent: a process that replaces rows of the target looks for intents once the
            # target waits.
            if gives_up or self._is_replaced(intent.table):
                self.warehouse.burn_job(intent.job_id, *place, intent.table)
            else:
                self.steps.land(intent.job_id, self._replay_of(errors, intent), intent.places)
        found = self._status(intent)
        if found is None:
            raise Unavailable(f"job {intent.job_id} has not ended", next_step=_AGAIN)
        return found

    def _replay_of(self, errors: TableReference, intent: ReplayIntent) -> ErrorReplay:
        schema = self.store.get(schema_path(intent.files[0].fingerprint)).data.decode()
        files = {self.store.uri(file.path): file for file in intent.files}
        return ErrorReplay(intent.table, errors, tuple(files), schema, intent.at_ms, files)

    def _is_replaced(self, table: TableReference) -> bool:
        found = state.find(self.store, TableState, table_state_path(table))
        return found is not None and found.value.definition.replacing is not None

    def _status(self, intent: ReplayIntent) -> JobStatus | None:
        found = self.warehouse.get_job(
            intent.job_id, self.warehouse.project, self.warehouse.location, intent.table
        )
        return found if found is not None and found.state == "DONE" else None


def _has_landed(found: JobStatus) -> bool:
    """Whether a job added its rows. A burned id has no sources."""
    return found.error is None and bool(found.source_uris)


def _added(intent: ReplayIntent, found: JobStatus) -> int:
    """The rows that a job added. Raises JobFailed and Refused if it added none."""
    if found.error is not None:
        raise JobFailed(f"the files do not load into {intent.table}: {found.error.message}")
    if not _has_landed(found):
        raise Refused(f"rows of {intent.table} are being replaced or erased", next_step=_AGAIN)
    return found.output_rows


def replays_of(store: ObjectStore, warehouse: Warehouse) -> ErrorReplays:
    """The way in which a warehouse replays error rows. Raises Refused if it has none of its own."""
    found = warehouse.errors_replay
    if found is None:
        raise Refused("these tables have no error rows of their own", next_step="kbq errors list")
    return SteppedReplays(store, warehouse, found) if isinstance(found, ErrorReplaySteps) else found


def settle_replays(store: ObjectStore, warehouse: Warehouse) -> Counter[TableReference]:
    """End unfinished replays of error rows. A job that has not run runs now. Raises Unavailable, UnknownOutcome."""
    found = warehouse.errors_replay
    return (
        SteppedReplays(store, warehouse, found).settle() if isinstance(found, ErrorReplaySteps) else Counter()
    )


def give_up_replays(store: ObjectStore, warehouse: Warehouse) -> None:
    """End unfinished replays of error rows before rows are replaced or erased. A job that has not run is given up."""
    found = warehouse.errors_replay
    if isinstance(found, ErrorReplaySteps):
        SteppedReplays(store, warehouse, found).settle(gives_up=True)
