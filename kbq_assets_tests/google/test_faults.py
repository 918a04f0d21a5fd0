"""Each kind of fault, as seen by a bare client without retries."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.servers import GcsServer

pytestmark = pytest.mark.google
HUNG_UP = (http.client.RemoteDisconnected, ConnectionResetError)


class Bucket:
    """Requests without a client library."""

    def __init__(self, server: GcsServer) -> None:
        self.server, self.name = server, server.new_bucket()

    def put(self, name: str) -> int:
        url = f"{self.server.endpoint}/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}"
        with urllib.request.urlopen(
            urllib.request.Request(url, b"text", method="POST"), timeout=120
        ) as answer:
            return int(answer.status)

    def names(self) -> list[str]:
        with urllib.request.urlopen(f"{self.server.direct_endpoint}/storage/v1/b/{self.name}/o") as answer:
            return [item["name"] for item in json.load(answer).get("items", [])]


@pytest.fixture
def bucket(gcs_server: GcsServer) -> Iterator[Bucket]:
    yield Bucket(gcs_server)
    gcs_server.faults.clear()


def test_a_status_is_answered_without_forwarding(bucket: Bucket) -> None:
    bucket.server.faults.add(Fault("objects.insert", "503", times=2))
    for _ in range(2):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            bucket.put("a")
        assert (refusal.value.code, json.load(refusal.value)["error"]["code"]) == (503, 503)
        refusal.value.close()
    assert bucket.names() == []
    assert (bucket.put("a"), bucket.names()) == (200, ["a"])


def test_a_dropped_request_is_never_applied(bucket: Bucket) -> None:
    bucket.server.faults.add(Fault("objects.insert", "drop_request"))
    with pytest.raises(HUNG_UP):
        bucket.put("a")
    assert bucket.names() == []


def test_a_dropped_reply_was_applied(bucket: Bucket) -> None:
    bucket.server.faults.add(Fault("objects.insert", "drop_reply"))
    with pytest.raises(HUNG_UP):
        bucket.put("a")
    assert bucket.names() == ["a"]


def test_a_late_request_is_applied_when_the_test_says(bucket: Bucket) -> None:
    bucket.server.faults.add(Fault("objects.insert", "late"))
    with pytest.raises(HUNG_UP):
        bucket.put("a")
    bucket.put("b")
    assert bucket.names() == ["b"]
    assert bucket.server.faults.deliver_late() == 1
    assert bucket.names() == ["a", "b"]


def test_a_delayed_request_is_answered(bucket: Bucket) -> None:
    bucket.server.faults.add(Fault("objects.insert", "delay", seconds=0.01))
    assert (bucket.put("a"), bucket.server.faults.pending()) == (200, 0)


def test_a_fault_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="explode"):
        Fault("objects.insert", "explode")


def test_faults_that_are_cleared_strike_nobody(bucket: Bucket) -> None:
    bucket.server.faults.add(Fault("", "503", times=9))
    bucket.server.faults.clear()
    assert bucket.put("a") == 200


def test_requests_are_recorded_as_they_left_the_client(bucket: Bucket) -> None:
    bucket.server.requests.clear()
    bucket.put("a")
    (request,) = bucket.server.requested("objects.insert")
    assert (request.verb, request.query["name"], request.body_size) == ("POST", "a", 4)
