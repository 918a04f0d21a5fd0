"""BigQuery's side of the proxy: what local-bigquery forgives is judged here as BigQuery would."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbq_assets_tests.google.reverse_proxy import Exchange, Reply, Upstream

_PREFIX = r"(?:/upload)?/bigquery/v2/projects/[^/]+"
_TABLE = r"/datasets/[^/]+/tables"
_METHODS = tuple(
    (verb, re.compile(_PREFIX + path), name)
    for verb, path, name in (
        ("POST", r"/jobs", "jobs.insert"),
        ("GET", r"/jobs", "jobs.list"),
        ("GET", r"/jobs/[^/]+", "jobs.get"),
        ("POST", r"/jobs/[^/]+/cancel", "jobs.cancel"),
        ("POST", r"/queries", "jobs.query"),
        ("GET", r"/queries/[^/]+", "jobs.getQueryResults"),
        ("GET", r"/datasets", "datasets.list"),
        ("POST", r"/datasets", "datasets.insert"),
        ("GET", r"/datasets/[^/]+", "datasets.get"),
        ("PATCH", r"/datasets/[^/]+", "datasets.patch"),
        ("PUT", r"/datasets/[^/]+", "datasets.update"),
        ("DELETE", r"/datasets/[^/]+", "datasets.delete"),
        ("GET", _TABLE, "tables.list"),
        ("POST", _TABLE, "tables.insert"),
        ("GET", _TABLE + r"/[^/]+", "tables.get"),
        ("PATCH", _TABLE + r"/[^/]+", "tables.patch"),
        ("PUT", _TABLE + r"/[^/]+", "tables.update"),
        ("DELETE", _TABLE + r"/[^/]+", "tables.delete"),
        ("GET", _TABLE + r"/[^/]+/data", "tabledata.list"),
        ("POST", _TABLE + r"/[^/]+:testIamPermissions", "tables.testIamPermissions"),
    )
)
_REASONS = {
    400: "invalid",
    401: "authError",
    403: "accessDenied",
    404: "notFound",
    409: "duplicate",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    502: "badGateway",
    503: "backendError",
    504: "gatewayTimeout",
}


def refused(status: int, reason: str, message: str) -> Reply:
    """BigQuery's form of an error."""
    error = {"reason": reason, "message": message, "domain": "global"}
    return Reply.of_json(status, {"error": {"code": status, "message": message, "errors": [error]}})


class BigQueryJudge:
    """Answers BigQuery's requests."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def method(self, verb: str, path: str, query: Mapping[str, str]) -> str:
        """Example: ``jobs.insert``."""
        return next((name for v, pattern, name in _METHODS if v == verb and pattern.fullmatch(path)), "")

    def refusal(self, status: int, reason: str) -> Reply:
        """An injected error."""
        return refused(status, reason or _REASONS[status], "injected by the test")

    def answer(self, exchange: Exchange) -> Reply:
        """For now what the server says."""
        return self._upstream.forward(exchange)

    def hang_up(self) -> None:
        """Let go of the server."""
        self._upstream.hang_up()
