"""A stand-in for features that the local servers lack: access lists of datasets, and policies of tables and buckets.

Like Google, it refuses requests of old versions for policies with conditions, and conditions without uniform access."""

from __future__ import annotations

import json
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kbq_assets_tests.fakes.serving import QuietHandler

DATASET, TABLE, BUCKET = (
    "/projects/p/datasets/shop",
    "/projects/p/datasets/shop/tables/orders",
    "/storage/v1/b/b",
)


class PolicyServer(ThreadingHTTPServer):
    """``rivals`` others change a policy after it was read; ``lost`` answers to changes are lost."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.documents: dict[str, dict[str, Any]] = {
            DATASET: {"etag": "1", "access": [], "labels": {"a": "b"}},
            TABLE: {"etag": "1", "version": 1},
            BUCKET: {"etag": "1", "version": 1, "bindings": []},
        }
        self.uniform = True
        self.rivals = 0
        self.lost = 0
        self.changes = 0

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(QuietHandler):
    server: PolicyServer

    def do_GET(self) -> None:
        path, query = self._asked()
        if path == BUCKET:
            access = {"uniformBucketLevelAccess": {"enabled": self.server.uniform}}
            self.respond(200, {"name": "b", "iamConfiguration": access})
        else:
            self._show(
                path.removesuffix("/iam"),
                query.get("accessPolicyVersion", query.get("optionsRequestedPolicyVersion")),
            )

    def do_POST(self) -> None:
        path, _ = self._asked()
        body = self._body()
        place, _, method = path.partition(":")
        if method == "getIamPolicy":
            self._show(place, body["options"]["requestedPolicyVersion"])
        else:
            self._change(place, body["policy"].pop("etag"), body["policy"], 409)

    def do_PATCH(self) -> None:
        path, _ = self._asked()
        self._change(path, self.headers["If-Match"], self._body(), 412)

    def do_PUT(self) -> None:
        path, _ = self._asked()
        body = self._body()
        self._change(path.removesuffix("/iam"), body.pop("etag"), body, 412)

    def _show(self, place: str, version: object) -> None:
        found = self.server.documents.get(place)
        if found is None:
            self.respond(404, _error(404, "notFound"))
        elif str(version) != "3":
            self.respond(400, _error(400, "invalid"))
        else:
            shown = dict(found)
            # Before the answer: a client that has it may change the policy at once, on another connection.
            if self.server.rivals:
                self.server.rivals -= 1
                found["etag"] += "'"
            self.respond(200, shown)

    def _change(self, place: str, etag: str, changes: dict[str, Any], stale: int) -> None:
        found = self.server.documents.get(place)
        if found is None:
            self.respond(404, _error(404, "notFound"))
            return
        if etag != found["etag"]:
            self.respond(stale, _error(stale, "conditionNotMet"))
            return
        self.server.changes += 1
        found.update(changes, etag=etag + "+")
        if self.server.lost:
            self.server.lost -= 1
            self.respond(503, _error(503, "backendError"))
        else:
            self.respond(200, found)

    def _asked(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        return url.path.removeprefix("/bigquery/v2"), {k: v for k, [v] in parse_qs(url.query).items()}

    def _body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found


def _error(status: int, reason: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": reason, "errors": [{"reason": reason, "message": reason}]}}
