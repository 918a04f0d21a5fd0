"""Records that a table's topics now require another `load`, before a batch is loaded that way (PROTOCOL S10)."""

from __future__ import annotations

from collections.abc import Sequence

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.batches import pending_files
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.statements import switching
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.ordering.decisions import with_room
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.statements.prepare import asked_rule, topics_fed


def record_switch(
    run: TableRun, view: LoadView, current: Versioned[TableState], files: Sequence[StagedFile]
) -> Turn | None:
    """Record a change of `load`, or take one back; None if there is none. Contradicting options fail the next batch,
    but not a table without a batch."""
    now, store = current.value, run.ports.store
    if (asked := _asked_anew(run, view, now, files)) is None:
        return None
    changed = _changed(view, with_room(store, run.table, now), asked, files, store.now_ms())
    run.swap(current, changed)
    return CONTINUE


def planned_switch(run: TableRun, view: LoadView, now: TableState) -> str:
    """The change of `load` that will still wait after the next load; "" if there is none."""
    files = view.files(run.table)
    if (asked := _asked_anew(run, view, now, files)) is not None:
        now = _changed(view, now, asked, files, 0)
        if switching.open_switch(now) is None:
            return f"load={asked.kind} as before: the next load withdraws the change"
    return switching.waiting_words(now, pending_files(now, files))


def _asked_anew(
    run: TableRun, view: LoadView, now: TableState, files: Sequence[StagedFile]
) -> StatementRule | None:
    """The rule that a table's topics require, if the state does not have it yet."""
    try:
        asked = asked_rule(run, view, now, files)
    except ConfigurationError:
        return None
    return asked if switching.is_change(now, asked) else None


def _changed(
    view: LoadView,
    now: TableState,
    asked: StatementRule,
    files: Sequence[StagedFile],
    now_ms: int,
) -> TableState:
    at = switching.committed(pending_files(now, files), view.positions, topics_fed(now, files))
    return switching.with_change(now, asked, at, now_ms)
