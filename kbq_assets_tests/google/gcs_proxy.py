"""Cloud Storage's side of the proxy: preconditions and permissions that fake-gcs-server does not look at."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.reverse_proxy import Exchange, Reply, Upstream

_BUCKET = r"/storage/v1/b/[^/]+"
_METHODS = tuple(
    (verb, re.compile(path), name)
    for verb, path, name in (
        ("GET", r"/storage/v1/b", "buckets.list"),
        ("POST", r"/storage/v1/b", "buckets.insert"),
        ("GET", _BUCKET, "buckets.get"),
        ("PATCH", _BUCKET, "buckets.patch"),
        ("DELETE", _BUCKET, "buckets.delete"),
        ("GET", _BUCKET + r"/iam", "buckets.getIamPolicy"),
        ("PUT", _BUCKET + r"/iam", "buckets.setIamPolicy"),
        ("GET", _BUCKET + r"/iam/testPermissions", "buckets.testIamPermissions"),
        ("GET", _BUCKET + r"/o", "objects.list"),
        ("GET", _BUCKET + r"/o/[^/]+", "objects.get"),
        ("GET", r"/download" + _BUCKET + r"/o/[^/]+", "objects.download"),
        ("PATCH", _BUCKET + r"/o/[^/]+", "objects.patch"),
        ("DELETE", _BUCKET + r"/o/[^/]+", "objects.delete"),
        ("POST", _BUCKET + r"/o/[^/]+/rewriteTo/b/[^/]+/o/[^/]+", "objects.rewrite"),
        ("POST", _BUCKET + r"/o/[^/]+/copyTo/b/[^/]+/o/[^/]+", "objects.copy"),
        ("POST", _BUCKET + r"/o/[^/]+/compose", "objects.compose"),
        ("POST", r"(?:/resumable)?/upload" + _BUCKET + r"/o", "objects.insert"),
        ("PUT", r"(?:/resumable)?/upload/.*", "objects.upload_chunk"),
        ("DELETE", r"(?:/resumable)?/upload/.*", "objects.upload_cancel"),
    )
)
_REASONS = {
    401: "authError",
    403: "forbidden",
    404: "notFound",
    408: "uploadBrokenConnection",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    502: "backendError",
    503: "backendError",
    504: "gatewayTimeout",
}


def refused(status: int, reason: str, message: str) -> Reply:
    """Cloud Storage's form of an error."""
    error = {"reason": reason, "message": message, "domain": "global"}
    return Reply.of_json(status, {"error": {"code": status, "message": message, "errors": [error]}})


class GcsJudge:
    """Answers Cloud Storage's requests."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def method(self, verb: str, path: str, query: Mapping[str, str]) -> str:
        """Example: ``objects.insert``; downloads, which the API calls objects.get too, are ``objects.download``."""
        name = next((name for v, pattern, name in _METHODS if v == verb and pattern.fullmatch(path)), "")
        return "objects.download" if name == "objects.get" and query.get("alt") == "media" else name

    def refusal(self, status: int, reason: str) -> Reply:
        """An injected error."""
        return refused(status, reason or _REASONS[status], "injected by the test")

    def answer(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        """For now what the server says."""
        return self._upstream.forward(exchange)

    def hang_up(self) -> None:
        """Let go of the server."""
        self._upstream.hang_up()
