"""Loads files into a scratch table, to find out whether they are to blame (L5) or to compare their rows."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from google.cloud import bigquery

from kbq_assets.adapters.bigquery import comparison, load_jobs, schema
from kbq_assets.adapters.bigquery.outcomes import calls
from kbq_assets.adapters.bigquery.queries import PROBE_PREFIX
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.errors import JobFailed, KbqError, Unavailable, UnknownOutcome
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.warehouse import Comparable, JobError, JobStatus, LoadJob, RowComparison

#: Time limit of the probe's job. The scratch table lives longer, so that no file is blamed for a missing table.
PROBE_SECONDS: Final = 1800
SCRATCH_LIFE: Final = timedelta(hours=1)
POLL_SECONDS: Final = 2.0


def probe(session: Session, clock: Clock, job: LoadJob) -> JobError | None:
    """The error of loading a job's files into a copy of the real table's schema; None if they load."""
    real = session.find_table(job.table)
    if real is None:
        return JobError("notFound", f"table {job.table} does not exist", transient=True)
    with loaded(session, clock, job, real) as (_, error):
        return load_jobs.probe_error(error) if error else None


def compare(session: Session, clock: Clock, job: LoadJob, limit: int, which: Comparable) -> RowComparison:
    """Load a job's files into a scratch table and compare its rows with the real ones. Raises JobFailed."""
    real = session.find_table(job.table)
    if real is None:
        return RowComparison(0)
    with loaded(session, clock, job, real) as (scratch, error):
        if error is not None:
            failure = f"the files do not load into {job.table}: {error.message}"
            raise Unavailable(failure, next_step="run it again") if error.transient else JobFailed(failure)
        both = comparison.Both(scratch, real, which)
        dates = [row[0] for row in session.query(str(job.table), comparison.dates(both))]
        [[found, compared]] = session.query(str(job.table), comparison.count(both, dates))
        rows = session.query(str(job.table), comparison.differing(both, dates, limit)) if compared else []
    return RowComparison(compared, tuple(comparison.row_of(both, row) for row in rows), found - compared)


@contextlib.contextmanager
def loaded(
    session: Session, clock: Clock, job: LoadJob, real: bigquery.Table
) -> Iterator[tuple[bigquery.TableReference, JobError | None]]:
    """A scratch table like the real one, loaded with a job's files, or the error of loading them."""
    scratch = _create_scratch(session, job.table, real)
    try:
        yield scratch, _load(session, clock, job, scratch)
    finally:
        # If this fails, the table expires on its own.
        with contextlib.suppress(KbqError), calls(f"table {scratch}", "bigquery.tables.delete"):
            session.client.delete_table(scratch, not_found_ok=True, **session.repeated)


def _create_scratch(session: Session, table: TableReference, real: bigquery.Table) -> bigquery.TableReference:
    reference = session.reference(TableReference(table.dataset, f"{PROBE_PREFIX}{uuid.uuid4().hex}"))
    fields = schema.schema_fields(map(schema.shape, schema.api_fields(real.schema)))
    scratch = bigquery.Table(reference, schema=fields)
    if real.time_partitioning is not None:
        scratch.time_partitioning = bigquery.TimePartitioning(
            real.time_partitioning.type_, field=real.time_partitioning.field
        )
    if session.encryption:
        scratch.encryption_configuration = session.encryption
    scratch.expires = datetime.now(UTC) + SCRATCH_LIFE
    with calls(f"scratch table {reference}", "bigquery.tables.create"):
        session.client.create_table(scratch, exists_ok=True, **session.repeated)
    return reference


def _load(session: Session, clock: Clock, job: LoadJob, scratch: bigquery.TableReference) -> JobError | None:
    """Load the files and wait. The job's id differs from the ids of real loads, ``kbq-<uuid>-<sequence>``."""
    own = LoadJob(
        f"kbq-probe-{uuid.uuid4().hex}",
        session.project, session.location, job.table, job.source_uris, job.schema, job.labels,
    )  # fmt: skip
    try:
        session.insert_load(own, scratch, PROBE_SECONDS * 1000)
    except JobFailed as error:
        return JobError("refused", error.message, transient=False, blames_files=False)
    except UnknownOutcome as error:
        # If the job starts later, its table no longer exists.
        raise Unavailable(error.message, next_step="the next run probes again") from error
    return _wait(session, clock, own.job_id).error


def _wait(session: Session, clock: Clock, job_id: str) -> JobStatus:
    deadline = clock.monotonic() + PROBE_SECONDS
    while clock.monotonic() < deadline:
        status = session.find_job(job_id, session.project, session.location)
        if status is not None and status.state == "DONE":
            return status
        clock.sleep(POLL_SECONDS)
    # The table is deleted now. The job's time limit ends the job.
    raise Unavailable(f"job {job_id} did not end in {PROBE_SECONDS} s", next_step="the next run probes again")
