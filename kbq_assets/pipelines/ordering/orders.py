"""Ordered tables: their status, and the operator's decisions about their batches (PROTOCOL O3 to O5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.batches import pending_files
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditChunk, AuditEntry, TableOrder
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference, audit_path
from kbq_assets.core.protocol.waits import ParkReason, park_commands
from kbq_assets.core.statements import steps
from kbq_assets.core.statements.switching import in_turn, waiting_words
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.loading.load_blocks import TopicOptions, default_options
from kbq_assets.pipelines.loading.view import UNUSABLE, LoadView, read_view
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.ordering.decisions import decide, read_table
from kbq_assets.pipelines.ordering.released_hours import release_for, why_no_batch
from kbq_assets.pipelines.protocol.archives import archived_entries, read_archive
from kbq_assets.pipelines.statements.skip import propose_skip


@dataclass(frozen=True)
class OrderStatus:
    """The status of an ordered table. ``current`` is the batch in flight, the failed one, or the next one."""

    table: TableReference
    current: int
    #: ready, waits (for an hour), in flight, failed, held, gate or parked
    state: str
    #: the load job that locks the table; "" if none is in flight
    job_id: str
    #: pending files, windows and rows, without those of the job in flight
    files: int
    windows: int
    rows: int
    #: Kafka timestamp of the oldest row that is not loaded; 0 if there is none
    oldest_ms: int
    why: str
    order: TableOrder
    #: bytes billed for the last statement, and for the last day with a statement
    billed: int = 0
    billed_that_day: int = 0
    #: the change of `load` that waits
    switch: str = ""
    #: commands that let the table continue
    commands: tuple[str, ...] = ()


def order_status(
    view: LoadView, table: TableReference, options: TopicOptions = default_options
) -> OrderStatus | None:
    """The status of a table; None if it has neither order nor statement. ``options`` are those of the topics that are
    extracted now. Raises StateError if the state is unreadable."""
    current = view.state_of(table)
    if current.order == TableOrder() and not current.has_statements and current.definition.failed is None:
        return None
    pending = [f for f in pending_files(current, view.files(table)) if f.path not in view.given_up]
    locked = {file.path for file in current.in_flight.files} if current.in_flight else set[str]()
    waiting = [file for file in pending if file.path not in locked]
    kind, why = _state(current)
    due = in_turn(current, pending, view.given_up)
    if kind == "ready" and (
        waits := why_no_batch(view, current, due, release_for(view, current, pending, options))
    ):
        kind, why = "waits", waits
    return OrderStatus(
        table=table,
        current=_number(current),
        state=kind,
        job_id=current.in_flight.job_id if current.in_flight else "",
        files=len(waiting),
        windows=len({(f.name.topic_partition, f.name.epoch, f.window) for f in waiting}),
        rows=sum(f.rows for f in waiting),
        oldest_ms=min((f.oldest_ms for f in pending), default=0),
        why=why,
        order=current.order,
        billed=current.definition.statements.billed,
        billed_that_day=current.definition.statements.billed_that_day,
        switch=waiting_words(current, pending),
        commands=park_commands(table, current.parked.reason, transitions.failed_batch(current))
        if current.parked
        else (),
    )


def _number(current: TableState) -> int:
    """The number of the current batch. If the table has statements, its ledger has the number, unless the batch failed
    before its statement."""
    if failed := transitions.failed_batch(current):
        return failed
    entry = current.definition.failed or current.in_flight
    if entry is not None and entry.statement is not None:
        return entry.statement.number
    applied = current.definition.statements.applied
    return applied + 1 if applied else current.order.next


def _state(current: TableState) -> tuple[str, str]:
    order, parked = current.order, current.parked
    if parked is not None and parked.reason == ParkReason.STATEMENT_FAILED:
        return "failed", parked.error
    if order.failed is not None:
        return "failed", parked.error if parked else f"batch {order.failed.number} will be tried again"
    if current.in_flight is not None:
        return "in flight", ""
    if parked is not None and parked.reason in transitions.GATED:
        return "gate", f"{parked.reason}: {parked.error}"
    if parked is not None and parked.reason not in transitions.HELD:
        return "parked", f"{parked.reason}: {parked.error}"
    if order.unvalidated:
        return "gate", f"batch {order.unvalidated} is applied and not validated"
    if order.why_held:
        return "held", order.why_held
    return "ready", ""


def _failed_by_statement(current: TableState) -> bool:
    why = current.parked or current.restarting
    return why is not None and why.reason == ParkReason.STATEMENT_FAILED


@dataclass(frozen=True)
class Orders:
    """Shows ordered tables and proposes decisions. The tables' audit lists store the decisions."""

    deployment: Deployment

    def status(self, tables: Iterable[TableReference] = ()) -> list[OrderStatus]:
        """The status of all ordered tables, or of some. Raises NotFound for a table without an order."""
        view, wanted = read_view(self.deployment.load_cache, self.deployment.blocks), list(tables)
        found = []
        for table in wanted or view.tables:
            try:
                status = order_status(view, table, self.deployment.sources.select)
            except UNUSABLE:
                if wanted:
                    raise
                continue  # `kbq status` shows it
            if status is not None:
                found.append(status)
            elif wanted:
                raise NotFound(
                    f"{table} has no order", next_step="order=offset in the source list gives it one"
                )
        return found

    def audit(self, table: TableReference) -> list[AuditEntry]:
        """All decisions about a table, oldest first. Raises NotFound."""
        store = self.deployment.load_store
        order = read_table(store, table).order

        def chunk(first: int) -> tuple[AuditEntry, ...]:
            return read_archive(store, AuditChunk, audit_path(table, first)).entries

        return [*archived_entries(order.archived, chunk), *order.audit]

    def retry(self, table: TableReference, by: str) -> Proposal:
        """Load the failed batch again."""
        current = read_table(self.deployment.load_store, table)
        failed = current.order.failed
        if _failed_by_statement(current):
            line = "its batch is loaded again, and its statement is generated again"
            entry = AuditEntry(0, "", 0, "", by)
            return self._decide(table, "retry the failed batch of", line, steps.retry_statement, entry)
        line = f"batch {failed.number} is loaded again: {failed.error}" if failed else ""
        return self._decide(
            table, "retry the failed batch of", line, transitions.retry, AuditEntry(0, "", 0, "", by)
        )

    def skip(self, table: TableReference, batch: int, reason: str, by: str) -> Proposal:
        """Continue without the rows of the failed batch."""
        store, entry = self.deployment.load_store, AuditEntry(0, "", 0, reason, by)
        current = read_table(store, table)
        if _failed_by_statement(current) or (
            current.order.failed is None and current.definition.failed is not None
        ):
            return propose_skip(store, self.deployment.warehouse, table, batch, entry)
        failed = current.order.failed
        rows = sum(file.rows for file in failed.files) if failed else 0
        line = (
            f"gives up {counted(rows, 'row')} of batch {batch}: {', '.join(f.path for f in failed.files)}"
            if failed
            else ""
        )
        return self._decide(
            table,
            f"skip batch {batch} of",
            line,
            lambda now, entry: transitions.skip(now, batch, entry),
            entry,
        )

    def hold(self, table: TableReference, reason: str, by: str) -> Proposal:
        """Hold the table: no batch starts."""
        if read_table(self.deployment.load_store, table).order == TableOrder():
            raise Refused(f"{table} has no order", next_step=f"kbq park {table}")
        line = "no batch starts until kbq order release; its files wait in order"
        return self._decide(table, "hold", line, transitions.hold, AuditEntry(0, "", 0, reason, by))

    def release(self, table: TableReference, reason: str, by: str) -> Proposal:
        """Let batches start again."""
        line = read_table(self.deployment.load_store, table).order.why_held
        return self._decide(table, "release", line, transitions.release, AuditEntry(0, "", 0, reason, by))

    def go_on(self, table: TableReference, reason: str, by: str) -> Proposal:
        """Pass the gates of the last batch."""
        current = read_table(self.deployment.load_store, table)
        order, parked = current.order, current.parked
        line = f"batch {order.settled} counts as validated: {', '.join(order.open_gates())}"
        if parked is not None and parked.reason == ParkReason.LATE_ROWS:
            line = f"its rows become visible: {parked.error}"
        return self._decide(table, "continue", line, transitions.go_on, AuditEntry(0, "", 0, reason, by))

    def _decide(
        self,
        table: TableReference,
        title: str,
        line: str,
        change: Callable[[TableState, AuditEntry], TableState],
        entry: AuditEntry,
    ) -> Proposal:
        store = self.deployment.load_store
        change(read_table(store, table), entry)  # raises Refused before the user is asked

        def apply() -> None:
            stamped = dataclasses.replace(entry, at_ms=store.now_ms())
            decide(store, table, lambda now: change(now, stamped))

        return Proposal(f"{title} {table}", (line,) if line else (), apply)
