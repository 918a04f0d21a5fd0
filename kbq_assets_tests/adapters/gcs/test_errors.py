"""The table in the package's docstring: the meaning of a response, and whether the write may have been applied."""

from __future__ import annotations

import json

import pytest
from google.auth import exceptions as auth
from google.auth.credentials import Credentials
from google.auth.transport import Request
from google.cloud.storage import Client

from kbq_assets.adapters.gcs import GcsObjectStore
from kbq_assets.adapters.gcs.errors import Intent, refusal
from kbq_assets.core.errors import (
    ConfigurationError,
    KbqError,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets_tests.adapters.gcs.cloud import Cloud

READ = Intent("get", "gs://b/kbq/a", "storage.objects.get")
WRITE = Intent("create", "gs://b/kbq/a", "storage.objects.create", changes=True)


def body(reason: str, message: str) -> str:
    return json.dumps({"error": {"code": 0, "message": message, "errors": [{"reason": reason}]}})


@pytest.mark.parametrize(
    ("status", "text", "read", "write"),
    [
        (412, "", PreconditionFailed, PreconditionFailed),
        (404, "No such object: b/kbq/a", NotFound, NotFound),
        (404, "The specified bucket does not exist.", ConfigurationError, ConfigurationError),
        (429, "", Unavailable, Unavailable),
        (400, "Provided CRC32C 'x' doesn't match calculated CRC32C 'y'.", Unavailable, Unavailable),
        (400, "Invalid argument", ConfigurationError, ConfigurationError),
        (401, "", ConfigurationError, ConfigurationError),
        (403, "", ConfigurationError, ConfigurationError),
        (413, "", ConfigurationError, ConfigurationError),
        (301, "", ConfigurationError, ConfigurationError),
        (408, "", Unavailable, UnknownOutcome),
        (500, "", Unavailable, UnknownOutcome),
        (503, "<html>", Unavailable, UnknownOutcome),
    ],
)
def test_an_answer_shows_whether_a_write_may_be_applied(
    status: int, text: str, read: type[KbqError], write: type[KbqError]
) -> None:
    for reported in (text, body("reason", text)):
        assert type(refusal(READ, status, reported)) is read
        assert type(refusal(WRITE, status, reported)) is write


@pytest.mark.parametrize(
    ("status", "reason", "message", "step"),
    [
        (
            403,
            "forbidden",
            "storage.googleapis.com: x@y does not have storage.objects.list access",
            "storage.objects.list",
        ),
        (403, "forbidden", "Forbidden", "storage.objects.create"),
        (403, "retentionPolicyNotMet", "Object is subject to a policy", "retention policy"),
        (403, "objectUnderActiveHold", "Object is under hold", "hold"),
        (400, "userProjectMissing", "Bucket is requester pays", "requester pays"),
        (401, "authError", "Invalid Credentials", "credentials"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, reason: str, message: str, step: str) -> None:
    error = refusal(WRITE, status, body(reason, message))
    assert "gs://b/kbq/a" in error.message
    assert message in error.message
    assert step in error.next_step


class Broken(Credentials):  # type: ignore[no-untyped-call, misc, unused-ignore]
    """Credentials that get no token."""

    def __init__(self, error: auth.GoogleAuthError) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.error = error

    def refresh(self, request: Request) -> None:
        raise self.error


@pytest.mark.google
@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (auth.RefreshError("invalid_grant: account not found"), ConfigurationError),  # type: ignore[no-untyped-call, unused-ignore]
        (auth.TransportError("no route to the token server"), Unavailable),  # type: ignore[no-untyped-call, unused-ignore]
    ],
)
def test_a_write_without_a_token_is_not_sent(
    cloud: Cloud, error: auth.GoogleAuthError, reported: type[KbqError]
) -> None:
    client = Client("p", Broken(error), client_options={"api_endpoint": cloud.proxy.endpoint})
    store = GcsObjectStore(client, cloud.bucket, pauses=(0.0,))
    with pytest.raises(reported):
        store.create("a", b"")
    assert cloud.sent() == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "9" * 5_000,
        "[" * 100_000,
        '{"error": []}',
        '{"error": {"errors": []}}',
        '{"error": "text"}',
    ],
    ids=lambda text: text[:20],
)
def test_an_error_that_is_not_worded_as_googles_is_quoted(text: str) -> None:
    error = refusal(READ, 400, text)
    assert type(error) is ConfigurationError
    assert error.message == f"get gs://b/kbq/a: 400 {text[:300]}".rstrip()
