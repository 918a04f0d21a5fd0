"""Rules of replays of error rows removed: schedules of a lake must notice each (PROTOCOL ER7)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kbq_assets.core.errors_replay.tables import begin_replay, end_replay
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.pipelines.errors_replay import steps, target
from kbq_assets.pipelines.errors_replay.steps import SteppedReplays
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.simulation.mutants import Mutant


def _forgets(self: SteppedReplays, errors: Any, **_: Any) -> Any:
    """Another's intent is removed, and its id is as it was."""
    found = state.find(self.store, TableState, table_state_path(errors))
    if found is not None and (intent := found.value.definition.replaying):
        path = table_state_path(errors)
        state.change(self.store, TableState, path, lambda now: end_replay(now, intent.job_id))
    return Counter()


def _lands_first(self: SteppedReplays, replay: Any) -> Any:
    """The rows land under an id that no state names."""
    if (wanted := self._waiting(replay)) is None:
        return None
    intent = wanted.under(f"kbq-errors-{wanted.files[0].name.attempt}-1")
    self.steps.land(intent.job_id, replay, intent.places)
    return intent


def _as_planned_before(self: SteppedReplays, replay: Any) -> Any:
    """The error rows are read before the state."""
    wanted = self._waiting(replay)
    path = table_state_path(replay.errors)

    def entered(now: TableState) -> TableState:
        if now.definition.replaying is not None:
            raise steps._Open
        return begin_replay(now, wanted) if wanted else now

    return state.change(self.store, TableState, path, entered).value.definition.replaying


def _marks_in_any_case(found: Any) -> bool:
    return True


def _marks_later(self: SteppedReplays, errors: Any, intent: Any, *, gives_up: bool = False) -> Any:
    """The intent is removed before the error rows are marked."""
    found = self._status(intent) or self._run(errors, intent, gives_up=gives_up)
    path = table_state_path(errors)
    state.change(self.store, TableState, path, lambda now: end_replay(now, intent.job_id))
    if found.error is None and found.source_uris:
        self.steps.mark(intent.job_id, errors, intent.places, intent.at_ms)
    return found


def _silently(*_: Any, **__: Any) -> None:
    """Rows come out of order, and no decision says so."""


#: Schedules of ordered tables with replays of error rows notice these.
OUT_OF_ORDER_MUTANTS = (
    Mutant("rows come out of order before the state says so", "ER8", ((target, "_let_in", _silently),)),
)
#: Schedules of replays of error rows notice these.
ERROR_REPLAY_MUTANTS = (
    Mutant("rows land before the intent is there", "ER7", ((SteppedReplays, "_enter", _lands_first),), seed=9),
    Mutant("who finds an intent forgets it", "ER7", ((SteppedReplays, "_settle", _forgets),), seed=6),
    Mutant("error rows are read before the state", "ER7", ((SteppedReplays, "_enter", _as_planned_before),),
           seed=119),
    Mutant("error rows are marked whatever became of the job", "ER7",
           ((steps, "_has_landed", _marks_in_any_case),)),
    Mutant("an intent is removed before its error rows are marked", "ER7",
           ((SteppedReplays, "_end", _marks_later),), seed=23),
)  # fmt: skip
