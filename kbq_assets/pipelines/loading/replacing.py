"""Makes tables wait while a job replaces or deletes their rows, and lets them continue (PROTOCOL R3, R5, X3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kbq_assets.core.errors import KbqError, PreconditionFailed, Refused, UnknownOutcome
from kbq_assets.core.loading import replacements
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.errors_replay.steps import give_up_replays
from kbq_assets.pipelines.loading.ports import LoadPorts
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache

#: How long a replacement waits for a table's load job, and between two polls.
WAIT_SECONDS: Final = 600.0
POLL_SECONDS: Final = 2.0
#: Raises Refused if the table's state, or one of its files in commits and backlogs, forbids the change.
Check = Callable[[TableState, Iterable[StagedFile]], None]


def enter(
    live: Deployment,
    table: TableReference,
    owner: Replacing,
    check: Check,
    changed: Callable[[TableState], Replacing],
) -> None:
    """Make a table wait for the job of ``owner``, once its load job has ended. ``changed`` adds how the job changes the
    table's rows. Raises Refused."""
    clock, store = live.clock, live.load_store
    state.create_table_state(store, table, LoadPorts(store, live.warehouse, clock).new_uuid())
    deadline = clock.monotonic() + WAIT_SECONDS
    while True:
        # The view reads the state before commits and backlogs: a file that the state lacks is in one of them (L1).
        view = read_view(StateCache(store))
        current = view.states[table]
        if isinstance(current, KbqError):
            raise current
        if current.value.definition.replaying is not None:
            give_up_replays(store, live.warehouse)
            continue
        found = current.value.definition.replacing
        if found is not None and found.job_id == owner.job_id:
            return
        if found is not None and found.what != owner.what:
            raise Refused(f"{found.what} rows of {table}", next_step=found.next_step)
        check(current.value, ())
        if current.value.in_flight is None:
            check(current.value, view.files(table))
            if _swapped(live, current, changed(current.value)):
                return
        elif current.value.parked is not None or clock.monotonic() >= deadline:
            raise Refused(
                f"load job {current.value.in_flight.job_id} of {table} is in flight",
                next_step=f"kbq load, or kbq resume --table {table} if it is parked; then again",
            )
        else:
            clock.sleep(POLL_SECONDS)


def new_staging_id(live: Deployment, tables: Iterable[TableReference]) -> str:
    """The staging area's id in a warehouse where nothing was ever loaded; "" if there are no ``tables``. Creates the
    tables' states, which creates the id. Without it, another staging area could have the same job id (R3)."""
    store = live.load_store
    for table in tables:
        state.create_table_state(store, table, LoadPorts(store, live.warehouse, live.clock).new_uuid())
    return state.table_registry(store).staging_id


def _swapped(live: Deployment, current: Versioned[TableState], wanted: Replacing) -> bool:
    try:
        state.swap(live.load_store, current, replacements.begin_replacing(current.value, wanted))
    except (PreconditionFailed, UnknownOutcome):
        return False
    return True


def waiting(
    live: Deployment, tables: Iterable[TableReference], job_id: str
) -> Mapping[TableReference, Replacing]:
    """The tables that wait for a job, with its changes."""
    found = {}
    for table in tables:
        current = state.read(live.load_store, TableState, table_state_path(table)).value
        if (replacing := current.definition.replacing) and replacing.job_id == job_id:
            found[table] = replacing
    return found


def leave(live: Deployment, tables: Iterable[TableReference], job_id: str, *, done: bool = True) -> None:
    """Let tables continue. If the job is ``done``, count its change of their rows."""
    for table in tables:
        if state.find(live.load_store, TableState, table_state_path(table)) is not None:
            state.change(
                live.load_store,
                TableState,
                table_state_path(table),
                lambda now: replacements.end_replacing(now, job_id, done=done),
            )
