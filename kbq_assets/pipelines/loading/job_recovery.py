"""Settles the job in flight: submit, poll, record, retry, isolate bad files, give the id up (PROTOCOL L3 to L5, L8)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Final

from kbq_assets.core.errors import (
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.loading import quarantine, table_state
from kbq_assets.core.loading.origins import doubt
from kbq_assets.core.loading.table_state import JobInFlight, QuarantinedFile, TableState
from kbq_assets.core.loading.verification import DAMAGED, Unsound
from kbq_assets.core.ordering.transitions import fail_batch
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import quarantine_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements import steps
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn
from kbq_assets.pipelines.loading.restaging import is_copy
from kbq_assets.pipelines.loading.table_run import MAX_RETRIES, TableRun
from kbq_assets.pipelines.loading.verification import StagedContents
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.statements.limits import over_limit
from kbq_assets.ports.warehouse import JobError, JobStatus, LoadJob, Warehouse

#: With more bad files than this, the cause is not single files: the search ends, and the table is parked.
MAX_BAD_FILES: Final = 20
#: Attempts of a probe. A transient error proves nothing about its files.
_TRIES: Final = 3
_DAY_MS: Final = 24 * 3600 * 1000


def settle(run: TableRun, current: Versioned[TableState], in_flight: JobInFlight, view: LoadView) -> Turn:
    """Take the job in flight one step further."""
    job = run.ports.warehouse.get_job(in_flight.job_id, in_flight.project, in_flight.location, run.table)
    if job is None:
        return _submit(run, current, in_flight, view)
    if job.state != "DONE":
        return wait_for(run, job, in_flight)
    if in_flight.burning and not job.source_uris:
        return _give_up(run, current, in_flight)
    if job.error is not None and run.ports.warehouse.find_table(run.table) is None:
        return _plan_again(run, current)
    if set(job.source_uris) != set(run.uris(in_flight.sources)):
        return run.park(
            current,
            ParkReason.FOREIGN_JOB,
            f"job {job.job_id} loads other files than the table's state lists",
        )
    if job.error is None:
        return _record_success(run, current, job)
    return _recover(run, current, in_flight, job.error)


def _submit(run: TableRun, current: Versioned[TableState], in_flight: JobInFlight, view: LoadView) -> Turn:
    warehouse, age = run.ports.warehouse, run.ports.store.now_ms() - current.updated_ms
    try:
        if in_flight.burning:
            warehouse.burn_job(in_flight.job_id, in_flight.project, in_flight.location, run.table)
        elif 0 < warehouse.limits.known_days * _DAY_MS < age:
            # "Not found" no longer proves that the job never ran.
            planned = f"planned {age // _DAY_MS} days ago, then lost"
            return run.park(current, ParkReason.OLD_JOB, f"job {in_flight.job_id} was {planned}")
        elif _is_doubtful(run, current.value, view) or (
            not warehouse.verifies and view.staged.unsound(in_flight.sources)
        ):
            # An earlier request with this id may still arrive: burn the id, then decide about table and files.
            run.swap(current, table_state.burn(current.value))
        else:
            run.create_scratch(in_flight)
            warehouse.insert_job(run.load_job(in_flight, in_flight.sources))
    except (JobAlreadyExists, UnknownOutcome) as error:
        # The next step gets the job. If it is not found, it never started, and the same id is submitted again (L3).
        return run.try_again(f"the warehouse does not answer: {error.message}")
    except JobFailed as error:
        # The job was refused, not inserted. An earlier request with its id may still arrive, so burn the id first.
        run.swap(current, table_state.burn(current.value))
        return run.try_again(f"{error.message}; {error.next_step}", transient=False)
    return CONTINUE


def _is_doubtful(run: TableRun, current: TableState, view: LoadView) -> bool:
    """Whether the table was replaced since a former run entered the job (L12). With the job's rows, it would no longer
    show that earlier rows are gone. If there is no table, the job itself fails."""
    if run.columns:
        return False  # this run entered the job
    stored = run.ports.warehouse.find_table(run.table)
    return stored is not None and doubt(current, stored, view.registry.staging_id, "") is not None


def _give_up(run: TableRun, current: Versioned[TableState], in_flight: JobInFlight) -> Turn:
    """Drop a job whose id is burned. Its files are pending again unless they differ from the commit's entries."""
    if found := _unsound(run, in_flight):
        return _replan(run, current, found)
    run.swap(current, table_state.give_up(current.value))
    return CONTINUE


def wait_for(run: TableRun, job: JobStatus, in_flight: JobInFlight) -> Turn:
    """Poll a running job later. At the deadline, leave it in flight (L8)."""
    stuck = _cancel_stuck(run, job, in_flight)
    if run.ports.clock.monotonic() >= run.deadline:
        return run.end("waiting", f"job {job.job_id} is {job.state}{stuck}")
    return Turn("later", run.options.poll_seconds)


def _cancel_stuck(run: TableRun, job: JobStatus, in_flight: JobInFlight) -> str:
    """Cancel a job that does not end, once per run, and return a message. The job's final status decides (L5)."""
    age = (run.ports.store.now_ms() - job.created_ms) / 1000 if job.created_ms else 0.0
    if not 0 < run.options.stuck_seconds < age:
        return ""
    if run.cancelled_job != job.job_id:
        run.cancelled_job = job.job_id
        with contextlib.suppress(UnknownOutcome):  # the next run cancels again
            run.ports.warehouse.cancel_job(in_flight.job_id, in_flight.project, in_flight.location, run.table)
    stuck = f"{age / 3600:.1f} hours after it was inserted: canceled"
    run.note("idle", f"job {job.job_id} was {job.state} {stuck}")
    return f", {stuck}"


def _record_success(run: TableRun, current: Versioned[TableState], job: JobStatus) -> Turn:
    in_flight = current.value.in_flight
    assert in_flight is not None
    if in_flight.statement is not None:
        # The rows are in the scratch table: the statement is next (S4), unless it costs too much (S9).
        if why := over_limit(run, current.value, in_flight):
            return run.park(current, ParkReason.BYTES_LIMIT, why)
        run.swap(current, steps.begin_statement(current.value, job.output_rows))
        return CONTINUE
    recorded = table_state.record_success(current.value, job.output_rows)
    if run.swap(current, table_state.count_success(recorded, in_flight, run.ports.clock.now_ms())):
        finish(run, in_flight)
        brought_back = {bad.file.path for bad in current.value.retried}
        kept = {bad.file.path for bad in recorded.quarantined}
        run.ports.store.delete_many([quarantine_path(path) for path in sorted(brought_back - kept)])
    return CONTINUE


def finish(run: TableRun, job: JobInFlight) -> None:
    """Delete loaded files (L4) that no other warehouse waits for (W4). The sweep deletes the rest."""
    run.loaded.append(job)
    unneeded = run.without_needed((*job.files, *(bad.file for bad in job.quarantined)))
    run.finished.extend(unneeded)
    paths = [file.path for file in unneeded] + [each.file.path for each in job.merged]
    run.ports.store.delete_many(paths)


# Jobs that failed -----------------------------------------------------------------------------------------------------


def _plan_again(run: TableRun, current: Versioned[TableState]) -> Turn:
    """Drop a job that failed after its table was dropped. The next batch parks the table, or creates it again (L12)."""
    run.swap(current, table_state.give_up(table_state.count_failure(current.value)))
    return CONTINUE


def _recover(run: TableRun, current: Versioned[TableState], in_flight: JobInFlight, error: JobError) -> Turn:
    """Decide what to do about a job that ended with an error, and therefore loaded nothing (L5)."""
    if (wait := run.quota_wait(current.value.jobs.submitted, in_flight.files, retry=True)) is not None:
        return wait
    current = dataclasses.replace(current, value=table_state.count_failure(current.value))
    if error.transient:
        return _retry_later(run, current, error)
    if found := _unsound(run, in_flight):
        return _replan(run, current, found)
    try:
        bad, why_none = _bad_files(run, in_flight), "no bad file found"
    except (ConfigurationError, _BlamesNoFile) as found_error:
        bad, why_none = [], f"no file is to blame: {found_error}"
    if not bad and current.value.failed.jobs < MAX_RETRIES:
        # The files did load into a scratch table, so the error may have passed.
        run.swap(current, run.count_job(table_state.retry(current.value)))
        return CONTINUE
    too_much = quarantine.loses_too_much(current.value, bad) if bad else why_none
    is_ordered = bool(current.value.order.rule.by)
    if too_much or is_ordered or len(bad) > MAX_BAD_FILES:
        count = too_much or counted(len(bad), "bad file")
        why, now_ms = f"{error.reason}: {error.message} ({count})", run.ports.store.now_ms()
        reason = ParkReason.BATCH_FAILED if is_ordered else ParkReason.LOAD_FAILED
        paths = [each.file.path for each in bad]
        failed = fail_batch(current.value, reason, why, in_flight.files, now_ms, paths)
        run.swap(current, dataclasses.replace(failed, in_flight=None))  # its id is DONE and loaded nothing
        return CONTINUE
    return _isolate(run, current, in_flight, bad)


def _retry_later(run: TableRun, current: Versioned[TableState], error: JobError) -> Turn:
    """Submit the same files under a new id, after a pause."""
    run.swap(current, run.count_job(table_state.retry(current.value)))
    turn, pause = run.try_again(error.message), min(60.0, 2.0 ** (run.retries - 1))
    return Turn("later", pause) if turn is CONTINUE else turn


def _isolate(
    run: TableRun, current: Versioned[TableState], in_flight: JobInFlight, bad: list[QuarantinedFile]
) -> Turn:
    """Copy bad files to quarantine, and submit the others under a new id (L5)."""
    for quarantined in bad:
        run.ports.store.copy(quarantined.file.path, quarantine_path(quarantined.file.path))
    isolated = run.count_job(table_state.isolate(current.value, bad))
    nothing = dataclasses.replace(in_flight, files=(), quarantined=(*in_flight.quarantined, *bad))
    if isolated.in_flight is None:
        isolated = table_state.count_success(isolated, nothing, run.ports.clock.now_ms())
    if run.swap(current, isolated) and isolated.in_flight is None:
        finish(run, nothing)
    return CONTINUE


def _unsound(run: TableRun, in_flight: JobInFlight) -> Unsound:
    """Files of the job that are gone or changed (L11), by a new listing of their folders."""
    files = {file.path: file for file in (*in_flight.sources, *in_flight.files)}
    return StagedContents(run.ports.store, math.inf).unsound(files.values())


def _replan(run: TableRun, current: Versioned[TableState], found: Unsound) -> Turn:
    """Drop a job that loaded nothing because files are missing or damaged. If a reset gave them up, or they are copies
    that can be made again, the next view plans without them. Otherwise park the table."""
    store = run.ports.store
    commits = state.read_commits(store)
    given_up = {path for commit in commits for path in commit.value.given_up}
    dropped = current.value
    if lost := found.without({*filter(is_copy, found.paths), *given_up}):
        files = current.value.in_flight.files if current.value.in_flight else ()
        dropped = fail_batch(dropped, lost.reason, lost.message, files, 0, sorted(lost.paths))
    run.swap(current, dataclasses.replace(dropped, in_flight=None))  # its id is DONE, without a row
    return CONTINUE


class _BlamesNoFile(Exception):
    """Files do not load into a scratch table either, for a lasting reason that is not theirs."""


def _bad_files(run: TableRun, in_flight: JobInFlight) -> list[QuarantinedFile]:
    return find_bad_files(run.ports.warehouse, in_flight.files, lambda files: run.load_job(in_flight, files))


def find_bad_files(
    warehouse: Warehouse,
    files: tuple[StagedFile, ...],
    job_of: Callable[[tuple[StagedFile, ...]], LoadJob],
) -> list[QuarantinedFile]:
    """The files that do not load, with their errors; at most one more than `MAX_BAD_FILES`.

    For each bad file, takes about two probes per halving. Raises Unavailable if the warehouse gives no verdict now,
    ConfigurationError if it refuses to probe, and _BlamesNoFile.
    """
    bad: list[QuarantinedFile] = []
    stack = [files]
    while stack and len(bad) <= MAX_BAD_FILES:
        files = stack.pop()
        error = _verdict(warehouse, job_of(files))
        if error is None:
            continue
        if len(files) == 1:
            bad.append(QuarantinedFile(files[0], f"{error.reason}: {error.message}"))
            continue
        half = len(files) // 2
        stack.extend((files[half:], files[:half]))
    return bad


def _verdict(warehouse: Warehouse, job: LoadJob) -> JobError | None:
    for _ in range(_TRIES):
        error = warehouse.probe(job)
        # If the bytes differ from the commit's, the error says nothing about the file: no quarantine (L11).
        if error is None or not (error.transient or error.reason == DAMAGED):
            if error is not None and not error.blames_files:
                raise _BlamesNoFile(f"{error.reason}: {error.message}")
            return error
    raise Unavailable(
        f"job {job.job_id} failed, and its files could not be probed one by one: {error and error.message}",
        next_step="the next load tries again",
    )
