"""`kbq order skip` of a batch whose statement failed: writes the ledger, then the table's state (PROTOCOL S5).

Before that, a swap enters the failed statement as the job in flight again. So no loader gives the batch's number to
other files meanwhile. After a crash, this command or a loader continues, because a loader reads the ledger.
"""

from __future__ import annotations

import dataclasses

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements import steps
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.ordering.decisions import decide, read_table
from kbq_assets.pipelines.statements.statement_job import statement_job
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.statements import Statements
from kbq_assets.ports.warehouse import Warehouse


def propose_skip(
    store: ObjectStore, warehouse: Warehouse, table: TableReference, batch: int, entry: AuditEntry
) -> Proposal:
    """Skip the batch whose statement failed, and give up its rows. Raises Refused, NotFound."""
    current = read_table(store, table)
    steps.begin_skip(current, batch, entry)  # raises Refused before the user is asked
    statements, failed = warehouse.statements, current.definition.failed
    assert failed is not None
    if statements is None:
        raise Refused(f"{table}: the warehouse does not run statements", next_step="correct KBQ_WAREHOUSE")
    rows, files = sum(file.rows for file in failed.files), ", ".join(file.path for file in failed.files)
    line = f"gives up {counted(rows, 'row')} of batch {batch}: {files}"

    def apply() -> None:
        stamped = dataclasses.replace(entry, at_ms=store.now_ms())

        def begin(now: TableState) -> TableState:
            return steps.begin_skip(now, batch, stamped)

        decide(store, table, begin)
        skipped = _raise_ledger(statements, table, failed)
        decide(store, table, lambda now: steps.end_skip(now, failed.job_id, skipped=skipped))

    return Proposal(f"skip batch {batch} of {table}", (line,), apply)


def _raise_ledger(statements: Statements, table: TableReference, failed: JobInFlight) -> bool:
    """Whether the ledger counts the batch as skipped; otherwise its statement was faster. Raises Refused."""
    job = statement_job(statements, table, failed)
    ledger = statements.skip(table, job.batch, job.digest)
    if ledger is not None and (ledger.batch, ledger.digest) == (job.batch, job.digest):
        return ledger.skipped
    raise Refused(
        f"{table}: the ledger is {f'at batch {ledger.batch}' if ledger else 'gone'}, so nothing is skipped",
        next_step=f"kbq resume --table {table}; the next load shows what kbq adopt can do",
    )
