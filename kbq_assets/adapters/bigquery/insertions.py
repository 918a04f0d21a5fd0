"""Inserts jobs exactly once: the client's own retries are off, and errors follow the table of outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from google.cloud import bigquery

from kbq_assets.adapters.bigquery.outcomes import GET_JOB, insertion
from kbq_assets.core.errors import UnknownOutcome

#: Timeout of one HTTP request. BigQuery responds within seconds; a job with 10,000 URIs takes a little longer.
TIMEOUT_SECONDS: Final = 60.0
#: No retry by the client. Its type hints omit None.
_ONCE: Final[Any] = None


class JobKey(NamedTuple):
    """The identity of a job in BigQuery."""

    job_id: str
    project: str
    location: str


def insert_query(
    client: bigquery.Client, what: str, sql: str, key: JobKey, config: bigquery.QueryJobConfig
) -> None:
    """Send a query job once. Raises the errors in the table of outcomes."""
    with insertion(f"job {key.job_id}{what}"):
        job = client.query(
            sql,
            job_config=config,
            **key._asdict(),
            retry=_ONCE,
            job_retry=None,
            timeout=TIMEOUT_SECONDS,
        )
        _require(job, key)


def insert_load(
    client: bigquery.Client,
    what: str,
    uris: Iterable[str],
    target: bigquery.TableReference,
    key: JobKey,
    config: bigquery.LoadJobConfig,
) -> None:
    """Send a load job once. Raises the errors in the table of outcomes."""
    with insertion(f"job {key.job_id}{what}"):
        job = client.load_table_from_uri(
            list(uris),
            target,
            job_config=config,
            **key._asdict(),
            retry=_ONCE,
            timeout=TIMEOUT_SECONDS,
        )
        _require(job, key)


def _require(job: bigquery.LoadJob | bigquery.QueryJob, key: JobKey) -> None:
    """Raise UnknownOutcome if the response describes no job: a server in between may answer 200 with ``{}``."""
    if not job.job_id:
        raise UnknownOutcome(
            f"job {key.job_id}: the response is not BigQuery's: it describes no job", next_step=GET_JOB
        )
