"""What a table does before its next batch: take over its topics' order, and wait while it is held (PROTOCOL O2, O5)."""

from __future__ import annotations

from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.rules import order_rule, with_rule
from kbq_assets.core.ordering.table_order import OrderRule
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn, topics_of
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.protocol.state import Versioned


def before_batch(run: TableRun, current: Versioned[TableState], batch: LoadBatch) -> Turn | None:
    """The step that comes before a batch; None if the batch may start."""
    rule = _asked_for(run, current.value, batch)
    if rule != current.value.order.rule:
        run.swap(current, with_rule(current.value, rule))
        return CONTINUE
    if why := current.value.order.why_held:
        return run.park(current, ParkReason.HELD, why)
    return None


def _asked_for(run: TableRun, state: TableState, batch: LoadBatch) -> OrderRule:
    topics = topics_of(batch.files) | {key.partition("/")[0] for key in state.rows}
    return order_rule(run.table, topics, run.options.topics(topics), state.order.rule)
