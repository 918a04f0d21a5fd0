"""Steps of a table before its next batch: adopt its topics' order, wait while it is held, and check its gates
(PROTOCOL O2, O5, O7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbq_assets.core.errors import JobFailed, NotFound
from kbq_assets.core.loading.completeness import hour_text
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.hour_order import late_rows
from kbq_assets.core.ordering.rules import order_rule, with_rule
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import marker_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.topics.ordering_options import CHECK, PARK, SQL
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn, topics_of
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.ordering.decisions import with_room
from kbq_assets.pipelines.protocol.state import Versioned

#: Bad rows that a gate's message shows.
_SHOWN = 3


def before_batch(
    run: TableRun,
    view: LoadView,
    current: Versioned[TableState],
    files: Collection[StagedFile],
    waits: str = "",
) -> Turn | None:
    """The step before a batch of ``files``, or before the table is done; None if there is none. ``waits`` is the hour
    that the files wait for. If a topic's options are unknown, the table keeps its rule."""
    order = current.value.order
    if not files and not order.unvalidated:
        return None
    topics = topics_of(files) | {key.partition("/")[0] for key in current.value.rows}
    settings = run.options.topics(topics - view.unknown)
    unknown = view.unknown and view.unknown & (topics | topics_of(view.files(run.table)))
    rule = order.rule if unknown else order_rule(run.table, topics, settings, order.rule)
    if rule != order.rule:
        store = run.ports.store
        run.swap(current, with_rule(with_room(store, run.table, current.value), rule, store.now_ms()))
        return CONTINUE
    if order.unvalidated:
        return _ask_gate(run, current, settings, unknown)
    if order.hold is None and order.why_held and _is_marked(run, rule.hold_until):
        run.swap(current, transitions.marked(current.value, run.ports.store.now_ms()))
        return CONTINUE
    if why := order.why_held:
        reason = ParkReason.HELD if order.hold else ParkReason.WAITS_FOR_MARKER
        return run.park(current, reason, why)
    if waits:
        return run.end("waiting", waits)
    if rule.late == PARK and order.late_allowed != order.next:
        until = current.value.hours.until
        if late := late_rows(files, until):
            before = (
                f"{counted(late, 'row belongs', 'rows belong')} to complete hours before {hour_text(until)}"
            )
            return run.park(current, ParkReason.LATE_ROWS, f"batch {order.next} is late: {before}")
    return None


def _is_marked(run: TableRun, marker: str) -> bool:
    try:
        run.ports.store.get(marker_path(marker))
    except NotFound:
        return False
    return True


def _ask_gate(
    run: TableRun,
    current: Versioned[TableState],
    settings: Mapping[str, TopicSettings],
    unknown: Collection[str],
) -> Turn:
    """Check the next gate of the last batch. Queries come first, because they need nobody. An unknown query does not
    pass."""
    state, now_ms = current.value, run.ports.store.now_ms()
    gates = state.order.open_gates()
    if SQL not in gates:
        check = next((gate for gate in gates if gate.startswith(CHECK)), "")
        asked = _with_check(run, state, check, now_ms) if check else transitions.await_person(state, now_ms)
        run.swap(current, asked)
        return CONTINUE
    texts = sorted({each.ordering.gate_sql for each in settings.values()} - {""})
    if unknown or not texts:
        whose = (
            f"its options are unknown: {', '.join(sorted(unknown))}" if unknown else "no topic has a gate_sql"
        )
        run.swap(current, transitions.ask_later(state, f"the query of its gate is unknown: {whose}", now_ms))
        return CONTINUE
    found = [row for text in texts for row in _bad_rows(run, text)]
    message = "; ".join(found[:_SHOWN]) + (" and more" if len(found) > _SHOWN else "")
    run.swap(current, transitions.judge(state, SQL, not found, message, now_ms))
    return CONTINUE


def _with_check(run: TableRun, state: TableState, gate: str, now_ms: int) -> TableState:
    """The state with the result of an asset check. Evaluations that were planned before the gate first checked may have
    read older rows, so they do not count."""
    name = gate.removeprefix(CHECK)
    if run.ports.checks is None:
        only = f"only a load in Dagster can read the asset check {name}; materialize the table there"
        return transitions.ask_later(state, only, now_ms)
    last, first = run.ports.checks.latest(run.table, name), state.order.result(gate)
    number = last.number if last else 0
    if first is None or last is None or number <= first.seen or last.passed is None:
        waits = f"evaluate the asset check {name} in Dagster: it has no result since the batch"
        return transitions.judge(state, gate, False, waits, now_ms, number)
    return transitions.judge(state, gate, last.passed, "" if last.passed else last.message, now_ms)


def _bad_rows(run: TableRun, text: str) -> list[str]:
    """The bad rows that a query returns, or its error."""
    statements = run.ports.warehouse.statements
    if statements is None:
        return ["the warehouse does not run queries"]
    sql = text.replace("{{ table }}", statements.sql_name(run.table))
    try:
        return statements.rows_of(sql, _SHOWN + 1)
    except JobFailed as error:
        return [error.message]
