"""Cloud Storage as its documentation has it, where fake-gcs-server differs: upload sessions that can be asked and lost,
preconditions of downloads, pages of a bounded size. ``tamper`` changes answers for a test.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.gcs_proxy import GcsJudge, refused
from kbq_assets_tests.google.reverse_proxy import Exchange, Reply, Upstream

PAGE = 150
_UNIT = 256 * 1024
_OBJECT = re.compile(r"/b/([^/]+)/o/([^/]+)")
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


@dataclass
class Session:
    """An upload: what it has so far, and the answer to its last bytes."""

    target: str
    name: str
    data: bytes = b""
    answer: tuple[int, bytes] | None = None


class DocumentedJudge(GcsJudge):
    """Answers as Cloud Storage would. ``keeps``: how many bytes the next chunk leaves behind, if not all."""

    def __init__(self, port: int) -> None:
        super().__init__(Upstream(port))
        self.sessions: dict[str, Session] = {}
        self.keeps: list[int] = []
        self.tamper: Callable[[Request, Reply], Reply] = lambda _, reply: reply

    def answer(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        return self.tamper(exchange.request, self._answer(exchange))

    def _answer(self, exchange: Exchange) -> Reply:
        request, query = exchange.request, exchange.request.query
        match request.method:
            case "objects.insert" if query.get("uploadType") == "resumable":
                return self._start(exchange)
            case "objects.upload_chunk":
                return self._chunk(self.sessions.get(query["upload_id"]), exchange)
            case "objects.upload_cancel":
                return Reply(499 if self.sessions.pop(query["upload_id"], None) else 404)
            case "objects.download":
                if self._differs(query, *_OBJECT.findall(request.path)[0]):
                    return _unmet()
            case "objects.list":
                exchange = replace(exchange, target=f"{exchange.target}&maxResults={PAGE}")
        return super().answer(exchange)

    def _start(self, exchange: Exchange) -> Reply:
        request = exchange.request
        bucket, name = request.path.split("/")[-2], request.json["name"]
        if self._differs(request.query, bucket, quote(name, safe="")):
            return _unmet()
        upload_id = secrets.token_hex(8)
        self.sessions[upload_id] = Session(request.path, name)
        url = f"http://{request.headers['Host']}{request.path}?uploadType=resumable&upload_id={upload_id}"
        return Reply(200, (("Location", url),))

    def _chunk(self, session: Session | None, exchange: Exchange) -> Reply:
        if session is None:
            return refused(404, "notFound", "no such upload")
        if session.answer is not None:
            return _json(*session.answer)
        span = _RANGE.fullmatch(exchange.request.headers["Content-Range"])
        assert span is not None, exchange.request.headers
        if span[1] is not None:
            assert int(span[2]) - int(span[1]) + 1 == len(exchange.body)
            assert span[3] != "*" or len(exchange.body) % _UNIT == 0
            assert int(span[1]) == len(session.data), "a gap, or bytes sent twice"
            session.data += exchange.body[: self.keeps.pop(0)] if self.keeps else exchange.body
        if span[3] != "*" and int(span[3]) == len(session.data):
            session.answer = self._insert(session)
            return _json(*session.answer)
        kept = (("Range", f"bytes=0-{len(session.data) - 1}"),) if session.data else ()
        return Reply(308, kept)

    def _insert(self, session: Session) -> tuple[int, bytes]:
        """Store a complete upload if its precondition still holds."""
        head = b"--x\r\nContent-Type: application/json\r\n\r\n" + json.dumps({"name": session.name}).encode()
        body = (
            head + b"\r\n--x\r\nContent-Type: application/octet-stream\r\n\r\n" + session.data + b"\r\n--x--"
        )
        headers = {"Content-Type": "multipart/related; boundary=x"}
        request = Request("objects.insert", "POST", session.target, headers=headers)
        target = f"{session.target}?uploadType=multipart&ifGenerationMatch=0"
        reply = self._upstream.forward(Exchange(request, target, body))
        return reply.status, b"".join(reply.body)

    def _differs(self, query: Mapping[str, str], bucket: str, name: str) -> bool:
        wanted = query.get("ifGenerationMatch")
        return wanted is not None and int(wanted) != self._generation(bucket, name)

    def _generation(self, bucket: str, name: str) -> int:
        """The generation of an object; 0 if it does not exist."""
        status, found = self._upstream.call("GET", f"/storage/v1/b/{bucket}/o/{name}")
        return int(found["generation"]) if status == 200 else 0


def _unmet() -> Reply:
    return refused(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


def _json(status: int, document: bytes) -> Reply:
    return Reply(status, (("Content-Type", "application/json"),), (document,), len(document))
