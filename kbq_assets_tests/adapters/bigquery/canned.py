"""BigQuery's API with canned responses, for the real client."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import BigQueryWarehouse
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.google.bigquery_methods import METHODS
from kbq_assets_tests.google.bigquery_proxy import refused
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.reverse_proxy import Exchange, Proxy, Reply

PROJECT = "shop-prod"
LOCATION = "EU"
TABLE = TableReference("shop", "orders-v1")
URIS = ("gs://staging/a.avro", "gs://staging/b.avro")


class CannedBigQuery:
    """Replies per method, in order; the last one is repeated. A method without one is refused with a 400."""

    def __init__(self) -> None:
        self._replies: defaultdict[str, list[tuple[int, Any]]] = defaultdict(list)
        self._last: dict[str, tuple[int, Any]] = {}
        self._proxy = Proxy(self)
        self.endpoint, self.faults = self._proxy.endpoint, self._proxy.faults

    def reply(self, method: str, document: Any, status: int = 200) -> None:
        """Answer with a document; bytes are sent as they are."""
        self._replies[method].append((status, document))

    def refuse(self, method: str, status: int, reason: str = "invalid", message: str = "no") -> None:
        """Answer with BigQuery's form of an error."""
        error = {"reason": reason, "message": message, "domain": "global"}
        self.reply(method, {"error": {"code": status, "message": message, "errors": [error]}}, status)

    @property
    def requests(self) -> list[tuple[str, Any]]:
        """Method and body of every request so far."""
        return [(request.method, request.json) for request in self._proxy.requests]

    def sent(self, method: str) -> list[Request]:
        """The requests of one method."""
        return [request for request in self._proxy.requests if request.method == method]

    def client(self) -> bigquery.Client:
        """The real client."""
        return bigquery.Client(
            PROJECT, AnonymousCredentials(), client_options={"api_endpoint": self.endpoint}
        )

    def warehouse(self, patience_seconds: float = 0.0) -> BigQueryWarehouse:
        """The warehouse. It tries what may be repeated once, unless it has patience."""
        return BigQueryWarehouse(
            self.client(), PROJECT, LOCATION, clock=FakeClock(), patience_seconds=patience_seconds
        )

    def close(self) -> None:
        """Stop."""
        self._proxy.close()

    # As the proxy's judge

    def method(self, verb: str, path: str, query: Mapping[str, str]) -> str:
        return next((name for v, pattern, name in METHODS if v == verb and pattern.fullmatch(path)), "")

    def answer(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        method = exchange.request.method
        if self._replies[method]:
            self._last[method] = self._replies[method].pop(0)
        if method not in self._last:
            return refused(400, "invalid", f"no reply for {method}")
        status, document = self._last[method]
        if isinstance(document, bytes):
            return Reply(status, (("Content-Type", "text/html"),), (document,), len(document))
        return Reply.of_json(status, document)

    def refusal(self, status: int, reason: str) -> Reply:
        return refused(status, reason, "injected by the test")

    def hang_up(self) -> None:
        pass


@contextlib.contextmanager
def canned_bigquery() -> Iterator[CannedBigQuery]:
    """A server for the block."""
    with contextlib.closing(CannedBigQuery()) as server:
        yield server


def load_job(job_id: str = "kbq-1a2b-7", **labels: str) -> LoadJob:
    """A load of two files."""
    return LoadJob(job_id, PROJECT, LOCATION, TABLE, URIS, "{}", labels)


def job_resource(job_id: str, configuration: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A job as the API returns it. ``more``: status, statistics."""
    return {
        "jobReference": {"projectId": PROJECT, "jobId": job_id, "location": LOCATION},
        "configuration": dict(configuration),
        "status": {"state": "DONE"},
        **more,
    }


def loaded(job_id: str, **more: Any) -> dict[str, Any]:
    """A load job of `URIS` as the API returns it."""
    return job_resource(job_id, {"jobType": "LOAD", "load": {"sourceUris": list(URIS)}}, **more)


def table_resource(*fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """`TABLE` as the API returns it."""
    return {
        "tableReference": {"projectId": PROJECT, "datasetId": TABLE.dataset, "tableId": TABLE.table},
        "etag": "e1",
        "schema": {"fields": list(fields)},
        **more,
    }
