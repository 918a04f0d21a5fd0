"""Records that a table's topics ask for another `load`, before a batch is loaded that way (PROTOCOL S10)."""

from __future__ import annotations

from collections.abc import Sequence

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.batches import pending_files
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.statements import switching
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.ordering.decisions import with_room
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.statements.prepare import asked_rule, topics_fed


def record_switch(
    run: TableRun, view: LoadView, current: Versioned[TableState], files: Sequence[StagedFile]
) -> Turn | None:
    """The swap that records a change of `load`, or takes one back; None if there is none. Options that contradict each
    other fail the next batch, and no table without one."""
    now = current.value
    try:
        asked = asked_rule(run, now, files)
    except ConfigurationError:
        return None
    if not switching.is_change(now, asked):
        return None
    store, at = (
        run.ports.store,
        switching.committed(pending_files(now, files), view.positions, topics_fed(now, files)),
    )
    run.swap(current, switching.with_change(with_room(store, run.table, now), asked, at, store.now_ms()))
    return CONTINUE
