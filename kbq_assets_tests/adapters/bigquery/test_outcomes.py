"""Each response to a job's insertion, and each missing response, has one meaning. The insertion is sent once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from google.auth import exceptions as auth
from google.auth.credentials import Credentials
from google.cloud import bigquery
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from kbq_assets.adapters.bigquery import BigQueryWarehouse, open_bigquery
from kbq_assets.adapters.bigquery.outcomes import calls, insertion
from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.errors import (
    AccessRefused,
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    KbqError,
    NotFound,
    Unavailable,
    UnknownOutcome,
    WrongOptions,
    may_pass,
)
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    TABLE,
    CannedBigQuery,
    canned_bigquery,
    job_resource,
    load_job,
    loaded,
    table_resource,
)
from kbq_assets_tests.fixtures.variables import Variables
from kbq_assets_tests.google.faults import Fault

INSERT = "jobs.insert"
OUTCOMES = [
    (409, "duplicate", JobAlreadyExists),
    (403, "rateLimitExceeded", Unavailable),
    (403, "quotaExceeded", Unavailable),
    (429, "rateLimitExceeded", Unavailable),
    (429, "", Unavailable),
    (401, "authError", AccessRefused),
    (400, "invalid", JobFailed),
    (403, "accessDenied", JobFailed),
    (403, "billingNotEnabled", JobFailed),
    (404, "notFound", JobFailed),
    (413, "uploadTooLarge", JobFailed),
    (408, "timeout", UnknownOutcome),
    (500, "internalError", UnknownOutcome),
    (502, "badGateway", UnknownOutcome),
    (503, "backendError", UnknownOutcome),
    (504, "gatewayTimeout", UnknownOutcome),
]


@pytest.fixture
def server() -> Iterator[CannedBigQuery]:
    with canned_bigquery() as found:
        yield found


def insert(warehouse: BigQueryWarehouse) -> None:
    warehouse.insert_job(load_job())


def burn(warehouse: BigQueryWarehouse) -> None:
    warehouse.burn_job("kbq-1a2b-7", PROJECT, LOCATION)


class NoCredentials(Credentials):
    """Credentials that cannot be had."""

    def __init__(self, error: Exception) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._error = error

    def refresh(self, request: Any) -> None:
        raise self._error


# A job's insertion


@pytest.mark.parametrize(("status", "reason", "expected"), OUTCOMES)
def test_an_answer_to_an_insertion_means_one_thing_and_is_never_asked_for_twice(
    server: CannedBigQuery, status: int, reason: str, expected: type[KbqError]
) -> None:
    server.refuse(INSERT, status, reason)
    with pytest.raises(KbqError, match="job kbq-1a2b-7") as caught:
        insert(server.warehouse(patience_seconds=5))
    assert type(caught.value) is expected
    assert caught.value.next_step
    assert len(server.requests) == 1


@pytest.mark.parametrize(("status", "reason", "expected"), OUTCOMES)
def test_a_burned_ids_insertion_means_the_same_but_a_refusal_is_a_matter_of_the_settings(
    server: CannedBigQuery, status: int, reason: str, expected: type[KbqError]
) -> None:
    server.refuse(INSERT, status, reason)
    with pytest.raises(KbqError) as caught:
        burn(server.warehouse(patience_seconds=5))
    assert type(caught.value) is (ConfigurationError if expected is JobFailed else expected)
    assert len(server.requests) == 1


class WithCertificate(HTTPAdapter):
    """A custom adapter, which keeps its connections."""


@pytest.mark.parametrize("adapter", [HTTPAdapter, WithCertificate])
@pytest.mark.parametrize("call", [insert, burn])
@pytest.mark.parametrize("fault", ["drop_request", "drop_reply"])
def test_a_replaced_client_that_repeats_requests_sends_an_insertion_once_too(
    server: CannedBigQuery, call: Callable[[BigQueryWarehouse], None], fault: str, adapter: type[HTTPAdapter]
) -> None:
    client = server.client()
    for scheme in ("http://", "https://"):
        client._http.mount(scheme, adapter(max_retries=Retry(3, allowed_methods=None)))
    warehouse = open_bigquery(f"bigquery://{PROJECT}?location={LOCATION}", GoogleAccess("anonymous"), client)
    server.reply(INSERT, loaded("kbq-1a2b-7"))
    server.faults.add(Fault(INSERT, fault))
    with pytest.raises(UnknownOutcome):
        call(warehouse)
    assert len(server.sent(INSERT)) == 1
    assert type(client._http.get_adapter("https://")) is adapter


@pytest.mark.parametrize("call", [insert, burn])
@pytest.mark.parametrize("fault", ["drop_request", "drop_reply"])
def test_silence_after_an_insertion_is_an_unknown_outcome_and_is_not_broken_by_a_second_try(
    server: CannedBigQuery, call: Callable[[BigQueryWarehouse], None], fault: str
) -> None:
    server.reply(INSERT, loaded("kbq-1a2b-7"))
    server.faults.add(Fault(INSERT, fault))
    with pytest.raises(UnknownOutcome, match="the next run gets the job"):
        call(server.warehouse(patience_seconds=5))
    assert len(server.requests) == 1


@pytest.mark.parametrize("call", [insert, burn])
@pytest.mark.parametrize("answer", [{}, {"jobReference": {}}])
def test_an_answer_that_describes_no_job_is_an_unknown_outcome(
    server: CannedBigQuery, call: Callable[[BigQueryWarehouse], None], answer: object
) -> None:
    server.reply(INSERT, answer)
    with pytest.raises(UnknownOutcome, match="the response is not BigQuery's") as caught:
        call(server.warehouse())
    assert caught.value.next_step == "the next run gets the job"
    assert len(server.requests) == 1


def test_an_answer_that_is_not_bigquerys_is_an_unknown_outcome(server: CannedBigQuery) -> None:
    server.reply(INSERT, b"<html>Please sign in</html>")
    with pytest.raises(UnknownOutcome):
        insert(server.warehouse())


#: Responses of servers in between: cut off, or JSON of another shape.
FOREIGN = [b"", b"[]", b"null", b'"busy"', b'{"status": null, "statistics": null}', b"[" * 100_000]


@pytest.mark.parametrize("call", [insert, burn])
@pytest.mark.parametrize("body", FOREIGN, ids=lambda body: body[:10])
def test_a_response_of_another_shape_to_an_insertion_is_an_unknown_outcome(
    server: CannedBigQuery, call: Callable[[BigQueryWarehouse], None], body: bytes
) -> None:
    server.reply(INSERT, body)
    with pytest.raises(UnknownOutcome, match="not BigQuery's"):
        call(server.warehouse())


def test_an_error_of_another_shape_to_an_insertion_is_an_unknown_outcome(server: CannedBigQuery) -> None:
    server.reply(INSERT, {"error": "upstream"}, 503)
    with pytest.raises(UnknownOutcome, match="not BigQuery's"):
        insert(server.warehouse())


def test_without_a_connection_nothing_was_sent() -> None:
    client = bigquery.Client(
        PROJECT, NoCredentials(AssertionError()), client_options={"api_endpoint": "http://127.0.0.1:1"}
    )
    client._http_internal = requests.Session()  # no credentials are asked for
    warehouse = BigQueryWarehouse(client, PROJECT, LOCATION, patience_seconds=0)
    with pytest.raises(Unavailable, match=r"cannot be reached: .*Connection refused"):
        insert(warehouse)
    with pytest.raises(Unavailable, match=r"project .*: ConnectionRefusedError: .*refused\n") as reported:
        warehouse.tables()
    assert "url" not in str(reported.value).casefold()


@pytest.mark.parametrize("error", [auth.RefreshError("invalid_grant"), auth.TransportError("no route")])
def test_without_credentials_nothing_was_sent(server: CannedBigQuery, error: Exception) -> None:
    client = bigquery.Client(PROJECT, NoCredentials(error), client_options={"api_endpoint": server.endpoint})
    warehouse = BigQueryWarehouse(client, PROJECT, LOCATION, patience_seconds=0)
    for call in (insert, burn, lambda w: w.columns(TABLE)):
        with pytest.raises(Unavailable, match="KBQ_LOAD_CREDENTIALS"):
            call(warehouse)
    assert server.requests == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (requests.ConnectTimeout(), Unavailable),
        (requests.ReadTimeout(), UnknownOutcome),
        (requests.exceptions.ChunkedEncodingError(), UnknownOutcome),
        (requests.exceptions.SSLError(), UnknownOutcome),
        (requests.ConnectionError(ConnectionResetError()), UnknownOutcome),
    ],
)
def test_only_a_connection_that_never_was_is_certain(error: Exception, expected: type[KbqError]) -> None:
    with pytest.raises(KbqError) as caught, insertion("job"):
        raise error
    assert type(caught.value) is expected


def test_a_permission_that_is_missing_is_named(server: CannedBigQuery) -> None:
    server.refuse(INSERT, 403, "accessDenied", "Access Denied: Project shop-prod")
    with pytest.raises(JobFailed, match=r"grant bigquery\.jobs\.create"):
        insert(server.warehouse())


# Calls that may be repeated

JOB = loaded("j1")
CALLS: list[tuple[str, Callable[[BigQueryWarehouse], object], str]] = [
    ("jobs.get", lambda w: w.get_job("j1", PROJECT, LOCATION), "bigquery.jobs.get"),
    ("jobs.cancel", lambda w: w.cancel_job("j1", PROJECT, LOCATION), "bigquery.jobs.update"),
    ("tables.get", lambda w: w.columns(TABLE), "bigquery.tables.get"),
    ("datasets.get", lambda w: w.create_table(TABLE, [], TableOptions()), "bigquery.datasets.get"),
    ("datasets.list", lambda w: w.tables(), "bigquery.datasets.get"),
    ("tables.get", lambda w: w.probe(load_job()), "bigquery.tables.get"),
]


@pytest.mark.parametrize(("method", "call", "permission"), CALLS)
def test_a_refused_call_names_the_permission_it_needs(
    server: CannedBigQuery, method: str, call: Callable[[BigQueryWarehouse], object], permission: str
) -> None:
    server.refuse(method, 403, "accessDenied", "Access Denied")
    with pytest.raises(ConfigurationError, match=f"grant {permission}"):
        call(server.warehouse())


def _create(server: CannedBigQuery) -> None:
    dataset = {"projectId": PROJECT, "datasetId": TABLE.dataset}
    server.reply("datasets.get", {"datasetReference": dataset, "location": LOCATION})
    server.warehouse().create_table(TABLE, [], TableOptions())


def _update(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource())
    server.warehouse().update_columns(TABLE, [Column("x", "INT64")])


@pytest.mark.parametrize(("method", "define"), [("tables.insert", _create), ("tables.patch", _update)])
@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        (400, "invalid", WrongOptions),
        (413, "", WrongOptions),
        (400, "", ConfigurationError),  # a proxy's
        (403, "accessDenied", ConfigurationError),
    ],
)
def test_a_table_that_bigquery_refuses_for_good_is_told_from_one_that_this_account_may_not_change(
    server: CannedBigQuery,
    method: str,
    define: Callable[[CannedBigQuery], None],
    status: int,
    reason: str,
    expected: type[Exception],
) -> None:
    server.refuse(method, status, reason, "Too many total leaf fields: 10001")
    with pytest.raises(
        ConfigurationError, match=f"table {TABLE}: Too many total leaf fields: 10001"
    ) as caught:
        define(server)
    assert type(caught.value) is expected


@pytest.mark.parametrize(("method", "call", "permission"), CALLS)
@pytest.mark.parametrize(
    ("status", "reason"), [(503, "backendError"), (500, "internalError"), (403, "rateLimitExceeded")]
)
def test_a_busy_server_is_unavailable_in_the_end(
    server: CannedBigQuery,
    method: str,
    call: Callable[[BigQueryWarehouse], object],
    permission: str,
    status: int,
    reason: str,
) -> None:
    server.refuse(method, status, reason)
    with pytest.raises(Unavailable):
        call(server.warehouse())


@pytest.mark.parametrize(("method", "call", "permission"), CALLS)
@pytest.mark.parametrize(
    ("status", "body"),
    [(200, b""), (200, b"[]"), (200, b'"busy"'), (502, b'"upstream"'), (503, b'{"error": "upstream"}')],
)
def test_a_response_of_another_shape_is_unavailable(
    server: CannedBigQuery,
    method: str,
    call: Callable[[BigQueryWarehouse], object],
    permission: str,
    status: int,
    body: bytes,
) -> None:
    server.reply(method, body, status)
    with pytest.raises(Unavailable, match="not BigQuery's"):
        call(server.warehouse())


def test_a_file_of_authorities_that_is_not_there_is_reported(
    server: CannedBigQuery, variables: Variables
) -> None:
    variables["REQUESTS_CA_BUNDLE"] = "/nowhere/ca.pem"
    client = server.client()
    client._connection.API_BASE_URL = server.endpoint.replace("http:", "https:")
    warehouse = BigQueryWarehouse(client, PROJECT, LOCATION, patience_seconds=0)
    with pytest.raises(Unavailable, match=r"nowhere/ca\.pem"):
        warehouse.columns(TABLE)
    with pytest.raises(UnknownOutcome, match=r"nowhere/ca\.pem"):
        insert(warehouse)


@pytest.mark.parametrize("body", [b"<html>404</html>", b"{}"])
def test_another_servers_not_found_says_nothing_of_a_table(server: CannedBigQuery, body: bytes) -> None:
    server.reply("tables.get", body, 404)
    with pytest.raises(Unavailable, match="KBQ_BIGQUERY_ENDPOINT"):
        server.warehouse().columns(TABLE)


@pytest.mark.parametrize("fault", ["503", "drop_request", "drop_reply"])
def test_what_may_be_repeated_is(server: CannedBigQuery, fault: str) -> None:
    server.faults.add(Fault("jobs.get", fault, reason="backendError"))
    server.reply("jobs.get", JOB)
    status = server.warehouse(patience_seconds=120).get_job("j1", PROJECT, LOCATION)
    assert status is not None
    assert [method for method, _ in server.requests] == ["jobs.get", "jobs.get"]


def test_a_job_that_is_not_there_is_none(server: CannedBigQuery) -> None:
    server.refuse("jobs.get", 404, "notFound", "Not found: Job shop-prod:EU.j1")
    assert server.warehouse().get_job("j1", PROJECT, LOCATION) is None


def test_another_servers_not_found_says_nothing_of_a_job(server: CannedBigQuery) -> None:
    server.reply("jobs.get", b"<html>404</html>", 404)
    with pytest.raises(Unavailable, match="KBQ_BIGQUERY_ENDPOINT"):
        server.warehouse().get_job("j1", PROJECT, LOCATION)


def test_a_job_that_is_not_there_needs_no_cancelling(server: CannedBigQuery) -> None:
    server.refuse("jobs.cancel", 404, "notFound")
    server.warehouse().cancel_job("j1", PROJECT, LOCATION)
    server.refuse("jobs.cancel", 400, "invalid")
    with pytest.raises(ConfigurationError):
        server.warehouse().cancel_job("j1", PROJECT, LOCATION)


def test_a_job_is_asked_for_and_cancelled_where_it_was_submitted(server: CannedBigQuery) -> None:
    server.reply("jobs.get", JOB)
    server.reply("jobs.cancel", {"job": job_resource("j1", {"load": {}})})
    warehouse = server.warehouse()
    warehouse.get_job("j1", "old-project", "asia-east1")
    warehouse.cancel_job("j1", "old-project", "asia-east1")
    (get,), (cancel,) = server.sent("jobs.get"), server.sent("jobs.cancel")
    assert (get.path, get.query["location"]) == ("/bigquery/v2/projects/old-project/jobs/j1", "asia-east1")
    assert cancel.path == "/bigquery/v2/projects/old-project/jobs/j1/cancel"
    assert cancel.query["location"] == "asia-east1"


def test_a_query_that_fails_is_reported_with_its_table(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource({"name": "id", "type": "INTEGER"}))
    server.refuse("jobs.query", 400, "invalidQuery", "Unrecognized name: _kafka_offset")
    with pytest.raises(ConfigurationError, match=r"shop\.orders-v1: Unrecognized name"):
        server.warehouse().positions(TABLE, KafkaRange("t", 0, 0))


def test_credentials_that_are_refused_are_named() -> None:
    with pytest.raises(AccessRefused, match="KBQ_LOAD_CREDENTIALS"), calls("table t", "p"):
        raise auth.RefreshError("invalid_grant: Token has been expired or revoked.")


def test_a_token_that_does_not_come_now_may_come_later() -> None:
    for error in (auth.TransportError("no route"), auth.RefreshError("later", retryable=True)):
        with pytest.raises(Unavailable) as caught, insertion("job"):
            raise error
        assert may_pass(caught.value)


def test_a_table_that_is_gone_is_not_found() -> None:
    from google.api_core.exceptions import NotFound as Gone

    with pytest.raises(NotFound), calls("table t", "p"):
        raise Gone("gone", errors=[{"reason": "notFound"}])
