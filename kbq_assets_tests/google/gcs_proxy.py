"""Cloud Storage's side of the proxy, which enforces rules that fake-gcs-server ignores.

Preconditions hold on delete, copy, rewrite and patch too. A bucket's settings and IAM policy are what a test has set by
the real client; permissions can be taken away.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.permissions import NEEDS, denied_message
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
    410: "gone",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
}
_OBJECT = re.compile(r"(/storage/v1)(/b/[^/]+/o/[^/]+)(?:/(?:rewriteTo|copyTo)(/b/[^/]+/o/[^/]+))?")
_OF_THE_TARGET = {"generation": "ifGenerationMatch", "metageneration": "ifMetagenerationMatch"}
_OF_THE_SOURCE = {"generation": "ifSourceGenerationMatch", "metageneration": "ifSourceMetagenerationMatch"}


def refused(status: int, reason: str, message: str) -> Reply:
    """Cloud Storage's form of an error."""
    error = {"reason": reason, "message": message, "domain": "global"}
    return Reply.of_json(status, {"error": {"code": status, "message": message, "errors": [error]}})


#: fake-gcs-server does not say what is not there.
_NO_BUCKET = refused(404, "notFound", "The specified bucket does not exist.")


class GcsJudge:
    """Answers Cloud Storage's requests. ``denied`` are permissions that callers lack."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        # While generations are compared, there must be no writer.
        self._writes = threading.RLock()
        self._settings: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self._policies: dict[str, Any] = {}
        self.denied: set[str] = set()
        self._answers = {
            "buckets.get": self._bucket,
            "buckets.patch": self._patch_bucket,
            "buckets.getIamPolicy": self._policy,
            "buckets.setIamPolicy": self._set_policy,
            "buckets.testIamPermissions": self._test_permissions,
            "objects.list": self._list,
            "objects.delete": self._conditional,
            "objects.patch": self._conditional,
            "objects.rewrite": self._conditional,
            "objects.copy": self._conditional,
            "objects.insert": self._write,
            "objects.compose": self._write,
            "objects.upload_chunk": self._write,
        }

    def method(self, verb: str, path: str, query: Mapping[str, str]) -> str:
        """Example: ``objects.insert``; downloads, which the API calls objects.get too, are ``objects.download``."""
        name = next((name for v, pattern, name in _METHODS if v == verb and pattern.fullmatch(path)), "")
        return "objects.download" if name == "objects.get" and query.get("alt") == "media" else name

    def refusal(self, status: int, reason: str) -> Reply:
        """An injected error."""
        return refused(status, reason or _REASONS.get(status, "backendError"), "injected by the test")

    def hang_up(self) -> None:
        """Let go of the server."""
        self._upstream.hang_up()

    def answer(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        """Cloud Storage's answer."""
        request = exchange.request
        needed = NEEDS.get(request.method, "")
        if needed in self.denied:
            message = (
                f"tests@kbq.invalid does not have {needed} access. {denied_message(needed, request.path)}"
            )
            return refused(403, "forbidden", message)
        return self._answers.get(request.method, self._upstream.forward)(exchange)

    def _write(self, exchange: Exchange) -> Reply:
        with self._writes:
            return self._upstream.forward(exchange)

    def _conditional(self, exchange: Exchange) -> Reply:
        parts = _OBJECT.match(exchange.request.path)
        assert parts is not None
        root, source, target = parts.groups()
        with self._writes:
            holds = self._holds(root + (target or source), exchange.request.query, _OF_THE_TARGET)
            if not (holds and self._holds(root + source, exchange.request.query, _OF_THE_SOURCE)):
                message = "At least one of the pre-conditions you specified did not hold."
                return refused(412, "conditionNotMet", message)
            return self._upstream.forward(exchange)

    def _holds(self, path: str, query: Mapping[str, str], conditions: Mapping[str, str]) -> bool:
        wanted = {field: query[name] for field, name in conditions.items() if name in query}
        if not wanted:
            return True
        status, found = self._upstream.call("GET", path)
        # What is not there has generation 0.
        return all(str(found[field] if status == 200 else 0) == value for field, value in wanted.items())

    def _bucket(self, exchange: Exchange) -> Reply:
        status, bucket = self._upstream.call("GET", exchange.request.path)
        if status == 404:
            return _NO_BUCKET
        return Reply.of_json(status, {**bucket, **self._settings[_bucket_of(exchange)]})

    def _list(self, exchange: Exchange) -> Reply:
        reply = self._upstream.forward(exchange)
        return _NO_BUCKET if reply.status == 404 else reply

    def _patch_bucket(self, exchange: Exchange) -> Reply:
        self._settings[_bucket_of(exchange)].update(exchange.request.json)
        return self._bucket(exchange)

    def _policy(self, exchange: Exchange) -> Reply:
        empty = {"kind": "storage#policy", "version": 1, "etag": "CAE=", "bindings": []}
        return Reply.of_json(200, self._policies.get(_bucket_of(exchange), empty))

    def _set_policy(self, exchange: Exchange) -> Reply:
        self._policies[_bucket_of(exchange)] = exchange.request.json
        return self._policy(exchange)

    def _test_permissions(self, exchange: Exchange) -> Reply:
        asked = parse_qs(urlsplit(exchange.target).query).get("permissions", [])
        granted = [name for name in asked if name not in self.denied]
        return Reply.of_json(200, {"kind": "storage#testIamPermissionsResponse", "permissions": granted})


def _bucket_of(exchange: Exchange) -> str:
    return exchange.request.path.split("/")[4]
