"""A job's request, and the meaning of its status."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.cloud import bigquery

from kbq_assets.ports.warehouse import JobError, JobStatus, LoadJob

#: A job that runs longer ends with a transient error.
JOB_TIMEOUT_MS: Final = 6 * 3600 * 1000
#: A no-op query that uses up a job id. The label distinguishes it from other queries.
BURN_SQL: Final = "SELECT 1"
BURNED: Final[Mapping[str, str]] = {"kbq": "burned"}
#: The label of a statement's job: the digest of its text.
STATEMENT: Final = "kbq_statement"
#: The label of an erasure's job: the digest of its tables.
ERASURE: Final = "kbq_erase"
#: The label of a replay's replacement job. The first lines of its text name the sources, one per line.
REPLAY: Final = "kbq_replay"
SOURCE: Final = "-- source: "

#: Reasons in https://cloud.google.com/bigquery/docs/error-messages after which the same files may load under a new id.
#: ``stopped`` means that a job was canceled or reached its time limit. All other reasons, including unknown ones, are
#: permanent: files are probed and retried a few times, and then the table is parked, which an operator sees. An endless
#: retry would silently use up the day's quota.
TRANSIENT: Final = frozenset(
    {
        "backendError",
        "badGateway",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "quotaExceeded",
        "rateLimitExceeded",
        "stopped",
        "tableUnavailable",
        "timeout",
    }
)
#: Parts of the error messages of statements that conflicted with another one; their reason is ``invalidQuery``:
#: https://cloud.google.com/bigquery/docs/transactions#transaction_concurrency
_CONFLICTS: Final = ("due to concurrent update", "Transaction is aborted")
#: Reasons that blame the file if it fails alone. Other reasons concern the project, the table or permissions, and must
#: not send a file to quarantine.
_BLAMES_THE_FILE: Final = frozenset({"invalid", "resourcesExceeded"})
#: Types of statements that change rows.
_DML: Final = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
#: Maximum number of errors to keep per job. BigQuery sends up to a few hundred.
_SHOWN_ERRORS: Final = 3


def load_configuration(job: LoadJob, timeout_ms: int = JOB_TIMEOUT_MS) -> bigquery.LoadJobConfig:
    """A load job's configuration, except its id, files and table.

    CREATE_NEVER: KBQ creates the table beforehand, with its partitioning, labels and modes. If jobs could create it, a
    dropped table would silently come back without its rows. There are no schema update options either: KBQ plans and
    makes changes before the load, and an unplanned change must make the load fail.
    """
    config = bigquery.LoadJobConfig()
    config.source_format = bigquery.SourceFormat.AVRO
    write = bigquery.WriteDisposition
    config.write_disposition = write.WRITE_TRUNCATE if job.replace else write.WRITE_APPEND
    config.create_disposition = bigquery.CreateDisposition.CREATE_NEVER
    config.use_avro_logical_types = True
    config.decimal_target_types = [
        bigquery.DecimalTargetType.NUMERIC,
        bigquery.DecimalTargetType.BIGNUMERIC,
        bigquery.DecimalTargetType.STRING,
    ]
    config.labels = dict(job.labels)
    config.job_timeout_ms = timeout_ms
    return config


def status_of(job_id: str, job: Any) -> JobStatus:
    load, query = isinstance(job, bigquery.LoadJob), isinstance(job, bigquery.QueryJob)
    return JobStatus(
        job_id=job_id,
        state=job.state or "PENDING",
        source_uris=_source_uris(job),
        output_rows=int(job.output_rows or 0) if load else 0,
        error=job_error(job.error_result, job.errors) if job.error_result else None,
        created_ms=round(job.created.timestamp() * 1000) if job.created else 0,
        statement=job.labels.get(STATEMENT, "") if query else "",
        bytes_billed=int(job.total_bytes_billed or 0) if query else 0,
        changed_rows=_changed_rows(job) if query else -1,
    )


def is_script_of_files(job: Any) -> bool:
    """Whether a job is a script for a batch of files that succeeded and ran child statements."""
    return bool(
        isinstance(job, bigquery.QueryJob)
        and job.labels.get("kbq") == "files"
        and (job.state, job.error_result) == ("DONE", None)
        and job.num_child_jobs
    )


def changes_rows(job: Any) -> bool:
    """Whether a job is a single statement that may change rows."""
    return isinstance(job, bigquery.QueryJob) and job.statement_type in _DML


def _changed_rows(job: bigquery.QueryJob) -> int:
    """The number of rows that a statement changed; -1 for a script, whose own count is meaningless."""
    return int(job.num_dml_affected_rows or 0) if changes_rows(job) and job.state == "DONE" else -1


def _source_uris(job: Any) -> tuple[str, ...]:
    """A load's files; empty for a burned id. Other kinds of jobs get a name that no file has, so they count as foreign
    (L3)."""
    if isinstance(job, bigquery.LoadJob):
        return tuple(job.source_uris or ("(no files)",))
    if isinstance(job, bigquery.QueryJob) and BURNED.items() <= job.labels.items():
        return ()
    if isinstance(job, bigquery.QueryJob) and ERASURE in job.labels:
        return (f"erase:{job.labels[ERASURE]}",)
    if isinstance(job, bigquery.QueryJob) and REPLAY in job.labels:
        lines = itertools.takewhile(lambda line: line.startswith(SOURCE), job.query.splitlines())
        return tuple(line.removeprefix(SOURCE) for line in lines) or ("(no tables)",)
    return (f"({job.job_type} job)",)


def job_error(result: Mapping[str, Any], errors: Sequence[Mapping[str, Any]] | None = None) -> JobError:
    """A job's error, combined with the first few errors of its list, which may name the file."""
    reason = str(result.get("reason", ""))
    texts = [_error_text(result)]
    for error in (errors or ())[:_SHOWN_ERRORS]:
        if (text := _error_text(error)) not in texts:
            texts.append(text)
    message = "; ".join(texts)
    return JobError(reason, message, reason in TRANSIENT or any(text in message for text in _CONFLICTS))


def probe_error(error: JobError) -> JobError:
    """The error of a probe, which says whether it blames the files."""
    return dataclasses.replace(error, blames_files=error.reason in _BLAMES_THE_FILE)


def _error_text(error: Mapping[str, Any]) -> str:
    message, location = str(error.get("message", "no message")), str(error.get("location", ""))
    return message if not location or location in message else f"{message} ({location})"
