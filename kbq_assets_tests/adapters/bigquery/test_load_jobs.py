"""A job's resource becomes a status: whose job it is, what it loaded, and whether its error is transient."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import load_jobs
from kbq_assets.ports.warehouse import JobError, JobStatus
from kbq_assets_tests.adapters.bigquery.canned import PROJECT, URIS, job_resource, loaded


def status_of(resource: dict[str, Any]) -> JobStatus:
    client = bigquery.Client.__new__(bigquery.Client)
    client.project = PROJECT
    return load_jobs.status_of("j1", client.job_from_resource(resource))


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_under_way_has_its_files_and_its_time(state: str) -> None:
    resource = loaded("j1", status={"state": state}, statistics={"creationTime": "1700000000123"})
    assert status_of(resource) == JobStatus("j1", state, URIS, 0, None, 1_700_000_000_123)


def test_a_job_that_is_done_has_its_rows() -> None:
    statistics = {"creationTime": "1700000000123", "load": {"outputRows": "9007199254740993"}}
    status = status_of(loaded("j1", statistics=statistics))
    assert status == JobStatus("j1", "DONE", URIS, 9_007_199_254_740_993, None, 1_700_000_000_123)


def test_a_burned_id_has_no_files() -> None:
    query = {"query": {"query": "SELECT 1", "useLegacySql": False}, "labels": {"kbq": "burned", "more": "x"}}
    assert status_of(job_resource("j1", query)) == JobStatus("j1", "DONE", ())


@pytest.mark.parametrize(
    "configuration",
    [
        {"query": {"query": "SELECT 1"}},
        {"query": {"query": "SELECT 1"}, "labels": {"kbq": "read"}},
        {"load": {"sourceUris": []}, "labels": {"kbq": "burned"}},
        {"load": {}},
        {"extract": {"destinationUris": ["gs://b/a"]}},
        {"copy": {"sourceTable": {}}},
        {"new": {}},
    ],
    ids=str,
)
def test_somebody_elses_job_has_files_that_are_none_of_ours(configuration: dict[str, Any]) -> None:
    (uri,) = status_of(job_resource("j1", configuration)).source_uris
    assert uri.startswith("(")


#: https://cloud.google.com/bigquery/docs/error-messages
TRANSIENT = [
    "backendError",
    "internalError",
    "jobBackendError",
    "jobInternalError",
    "jobRateLimitExceeded",
    "quotaExceeded",
    "rateLimitExceeded",
    "stopped",
    "tableUnavailable",
    "timeout",
]
PERMANENT = [
    "accessDenied",
    "billingNotEnabled",
    "blocked",
    "duplicate",
    "invalid",
    "invalidQuery",
    "notFound",
    "notImplemented",
    "resourceInUse",
    "resourcesExceeded",
    "responseTooLarge",
    "aReasonOfTomorrow",
    "",
]


@pytest.mark.parametrize(
    ("reason", "transient"), [*((r, True) for r in TRANSIENT), *((r, False) for r in PERMANENT)]
)
def test_a_reason_is_transient_when_the_same_files_may_load_later(reason: str, transient: bool) -> None:
    resource = loaded("j1", status={"state": "DONE", "errorResult": {"reason": reason, "message": "no"}})
    assert status_of(resource).error == JobError(reason, "no", transient)


def test_a_statement_that_lost_against_another_one_may_succeed_later() -> None:
    text = "Transaction is aborted due to concurrent update against table d.t"
    assert load_jobs.job_error({"reason": "invalidQuery", "message": text}).transient
    assert not load_jobs.job_error({"reason": "invalidQuery", "message": "no such column"}).transient


def test_an_error_names_the_file_wherever_bigquery_says_it() -> None:
    result = {"reason": "invalid", "message": "Error while reading data", "location": URIS[1]}
    more = [
        result,
        {"reason": "invalid", "message": f"EOF reached File: {URIS[1]}", "location": URIS[1]},
        {"reason": "invalid", "message": "third"},
        {"reason": "invalid", "message": "a hundred more"},
    ]
    error = load_jobs.job_error(result, more)
    assert error.message == f"Error while reading data ({URIS[1]}); EOF reached File: {URIS[1]}; third"


def test_an_error_without_details_is_an_error() -> None:
    assert load_jobs.job_error({}) == JobError("", "no message", transient=False)
