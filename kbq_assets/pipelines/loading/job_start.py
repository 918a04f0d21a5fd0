"""The next load job of a table: choose its files, prepare the table, enter the job into the state (PROTOCOL L1, L2)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from kbq_assets.core.avro.common import NoCommonSchema
from kbq_assets.core.errors import KbqError, WrongOptions
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.batches import LoadBatch, blocked_files
from kbq_assets.core.loading.expiration import require_rows_kept
from kbq_assets.core.loading.merging import MergedFile
from kbq_assets.core.loading.origins import doubt, with_label
from kbq_assets.core.loading.schema_changes import note_change, settle_change
from kbq_assets.core.loading.table_notes import StoredTable, needs_notes, noted
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import (
    Column,
    FullTable,
    IncompatibleColumn,
    TableOptions,
    clusterable,
    columns_of,
)
from kbq_assets.core.ordering.batches import next_batch
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TABLES, quarantine_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.switching import in_turn
from kbq_assets.core.statements.table_statements import BatchStatement
from kbq_assets.pipelines.loading.merging import merge
from kbq_assets.pipelines.loading.ports import CONTINUE, END, Turn, blocked_by, topics_of
from kbq_assets.pipelines.loading.restaging import Fit, fit
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.verification import StagedContents
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.ordering.one_schema import under_one_schema
from kbq_assets.pipelines.ordering.released_hours import release_for, why_no_batch
from kbq_assets.pipelines.ordering.steps import before_batch
from kbq_assets.pipelines.protocol.evolutions import has_variants
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.statements import prepare
from kbq_assets.pipelines.statements.switches import record_switch


def start_job(run: TableRun, view: LoadView, current: Versioned[TableState]) -> Turn:
    """Enter the next batch into the state as the job in flight. The next step submits it.

    If the options contradict the table or its records, park it: between two runs, a mere failure would show nowhere
    (L5).
    """
    try:
        return _start(run, view, current)
    except WrongOptions as error:
        now = run.read_state()
        if now.value.parked is None and now.value.in_flight is None:
            run.park(now, ParkReason.WRONG_OPTIONS, f"{error.message}; {error.next_step}")
        return CONTINUE


def _start(run: TableRun, view: LoadView, current: Versioned[TableState]) -> Turn:
    warehouse, files = run.ports.warehouse, view.files(run.table)
    if (turn := record_switch(run, view, current, files)) is not None:
        return turn
    files = in_turn(current.value, files, view.given_up)
    release = release_for(view, current.value, files, run.options.topics)
    batch = next_batch(
        run.table, current.value, files, run.limits(files), view.given_up, view.blocks, release
    )
    waits = "" if batch else why_no_batch(view, current.value, files, release)
    if (
        turn := before_batch(run, view, current, batch.files if batch else files if waits else (), waits)
    ) is not None:
        return turn
    if batch is None:
        return _end_without_batch(run, view, current, files)
    if (wait := run.quota_wait(current.value.jobs.submitted, batch.files, len(view.states))) is not None:
        return wait
    if batch.retried:
        for file in batch.files:
            run.ports.store.copy(quarantine_path(file.path), file.path)
    if (prepared := _prepare_table(run, view, current, batch)) is not None:
        ready, batch, statement = prepared
        settled = _settled(run, ready.value)
        settled = replace(settled, definition=replace(settled.definition, labelled=True))
        if (merged := _merge(run, ready, batch)) is not None:
            submitted = table_state.begin_job(
                settled, batch.files, warehouse.project, warehouse.location, statement, merged
            )
            run.swap(ready, run.count_job(submitted))
    return CONTINUE


def _merge(run: TableRun, current: Versioned[TableState], batch: LoadBatch) -> tuple[MergedFile, ...] | None:
    """Merged copies of small files for the job (L15); None if damaged files parked the table."""
    try:
        return merge(run.ports.store, batch.files, run.options.merge_files, run.ports.new_uuid)
    except KbqError:
        if not (found := StagedContents(run.ports.store, math.inf).unsound(batch.files)):
            raise
        run.fail_batch(current, found.reason, found.message, batch.files)
        return None


def _end_without_batch(
    run: TableRun, view: LoadView, current: Versioned[TableState], files: list[StagedFile]
) -> Turn:
    """Drop the table's loaded backlog, unless blocks make files wait (L9)."""
    if blocked := blocked_files(current.value, files, view.given_up, view.blocks):
        return run.end("blocked", blocked_by(blocked, view.blocks))
    for path in view.whole_chunks(run.table):
        run.ports.store.delete(path)
    if current.value.restarting is not None:
        run.swap(current, table_state.end_restart(current.value))
    return END


def _settled(run: TableRun, current: TableState) -> TableState:
    """The state after the noted change of the table: the change is made by now."""
    return settle_change(current, run.ports.store.now_ms()) if current.definition.changing else current


def _prepare_table(
    run: TableRun, view: LoadView, current: Versioned[TableState], batch: LoadBatch
) -> tuple[Versioned[TableState], LoadBatch, BatchStatement | None] | None:
    """Note the change that a batch needs in the state, then create or alter the table.

    Returns the state with the note, the batch as the table takes it, and the batch's statement, if it has one. Returns
    None if another loader was faster, or if the table was parked: for contradicting schemas, damaged files, or rows
    from another staging area (L12).
    """
    warehouse, staging_id = run.ports.warehouse, view.registry.staging_id
    rule = prepare.rule_for(run, view, current.value, view.files(run.table), batch)
    stored = warehouse.find_table(run.table)
    options = with_label(run.table_options(batch.files), staging_id)
    require_rows_kept(run.table, stored, options.expiry_days)
    if _is_parked(run, current, stored, staging_id):
        return None
    fitted = _fit_or_park(run, current, batch, stored, view.files(run.table))
    if fitted is None:
        return None
    change = prepare.with_own_columns(fitted.change, rule)
    with_note = run.swap(current, note_change(current.value, change, batch.schema.schema_id))
    if with_note is None:
        return None
    run.columns = _change(run, replace(fitted, change=change), stored, options)
    if stored is None:
        # Another staging area may have created the table first.
        stored = warehouse.find_table(run.table)
        require_rows_kept(run.table, stored, options.expiry_days)
        if _is_parked(run, with_note, stored, staging_id):
            return None
    statement = prepare.statement_for(run, with_note.value, rule, fitted)
    return with_note, fitted.batch, statement


def _is_parked(
    run: TableRun, current: Versioned[TableState], stored: StoredTable | None, staging_id: str
) -> bool:
    """Park a table that another staging area feeds, or that is gone (L12). Returns whether it was parked."""
    found = doubt(current.value, stored, staging_id, run.ports.store.uri(TABLES))
    if found is not None:
        run.park(current, *found)
    return found is not None


def _fit_or_park(
    run: TableRun,
    current: Versioned[TableState],
    batch: LoadBatch,
    stored: StoredTable | None,
    pending: Iterable[StagedFile],
) -> Fit | None:
    """The batch as the table takes it; None if contradicting schemas or damaged files parked the table."""
    try:
        fitted = _fit(run, batch, stored, pending)
        if len(fitted.schemas) > 1 and not run.ports.warehouse.limits.mixes_schemas:
            columns = stored.columns if stored else None
            fitted = under_one_schema(run.ports.store, fitted, columns, run.ports.new_uuid())
    except IncompatibleColumn as error:
        hint = f"{error.message}; on_incompatible=variant_column gives it a column of its own"
        run.fail_batch(current, ParkReason.INCOMPATIBLE_SCHEMA, hint, batch.files)
        return None
    except FullTable as error:
        run.fail_batch(
            current, ParkReason.INCOMPATIBLE_SCHEMA, f"{error.message}; {error.next_step}", batch.files
        )
        return None
    except NoCommonSchema as error:
        run.fail_batch(current, ParkReason.BATCH_FAILED, error.message, batch.files)
        return None
    except KbqError:
        # A copy needs whole files (L11).
        if not (found := StagedContents(run.ports.store, math.inf).unsound(batch.files)):
            raise
        run.fail_batch(current, found.reason, found.message, batch.files)
        return None
    return fitted


def _fit(run: TableRun, batch: LoadBatch, stored: StoredTable | None, pending: Iterable[StagedFile]) -> Fit:
    return fit(
        run.ports.store,
        batch,
        stored.columns if stored else None,
        may_vary=lambda: has_variants(run.options.topics(topics_of(batch.files)).values()),
        attempt=run.ports.new_uuid(),
        pending=pending,
    )


def _change(
    run: TableRun, fitted: Fit, stored: StoredTable | None, options: TableOptions
) -> tuple[Column, ...]:
    """Create, alter or describe the table if anything differs, and return its columns."""
    warehouse, columns = run.ports.warehouse, fitted.change.columns
    for schema in fitted.schemas:
        columns = noted(columns, columns_of(schema), options.notes)
    if stored is None:
        warehouse.create_table(run.table, columns, clusterable(options, columns))
    elif fitted.change or columns != stored.columns or needs_notes(stored, options.notes):
        warehouse.update_columns(run.table, columns, options.notes)
    return columns
