"""A threaded HTTP proxy on loopback: it records requests, injects faults, and lets a judge answer for the server."""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from kbq_assets_tests.google.faults import Fault, Faults, Request

_OF_THE_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_PIECE = 1 << 20
#: A server closes connections that were idle for a few seconds, perhaps just when the next request is on its way.
_IDLE_SECONDS = 1.0
#: The server gave no answer, or not all of it.
LOST = (OSError, http.client.BadStatusLine, http.client.IncompleteRead)


@dataclass(frozen=True)
class Reply:
    """An answer and its body, which can be read once."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: Iterable[bytes] = ()
    length: int = 0

    @staticmethod
    def of_json(status: int, document: Any) -> Reply:
        """A JSON answer."""
        data = json.dumps(document).encode()
        return Reply(status, (("Content-Type", "application/json; charset=UTF-8"),), (data,), len(data))

    def json(self) -> Any:
        """The document of a JSON answer."""
        data = b"".join(self.body)
        return json.loads(data) if data else None


@dataclass(frozen=True)
class Exchange:
    """A request with its body, on its way to the server."""

    request: Request
    target: str
    body: bytes


class Judge(Protocol):
    """Answers requests: on its own, or by what the server says."""

    def method(self, verb: str, path: str, query: Mapping[str, str]) -> str:
        """The API's name of a request, "" for one that has none."""

    def answer(self, exchange: Exchange, fault: Fault | None = None) -> Reply:
        """The answer the client gets. Raises one of `LOST` when the server gives none.

        ``fault`` is one that is not the proxy's to commit, such as a job's failure.
        """

    def refusal(self, status: int, reason: str) -> Reply:
        """The API's form of an error."""

    def hang_up(self) -> None:
        """This thread's client is gone."""


class Upstream:
    """The server behind the proxy: one connection per thread; a request whose connection breaks is never sent again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._local = threading.local()

    def forward(self, exchange: Exchange) -> Reply:
        """The server's response, streamed if it is long. Raises one of `LOST` if there is none."""
        request = exchange.request
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _OF_THE_CONNECTION}
        response = self._send(request.verb, exchange.target, exchange.body, headers)
        kept = tuple(h for h in response.getheaders() if h[0].lower() not in _OF_THE_CONNECTION)
        length = int(response.headers.get("Content-Length") or 0)
        if length > _PIECE and request.verb != "HEAD":
            return Reply(response.status, kept, self._pieces(response), length)
        data = response.read()
        return Reply(response.status, kept, (data,), length if request.verb == "HEAD" else len(data))

    def call(self, verb: str, target: str, document: Any = None) -> tuple[int, Any]:
        """A JSON request of the proxy's own: the status and the document."""
        body = b"" if document is None else json.dumps(document).encode()
        response = self._send(verb, target, body, {"Content-Type": "application/json"})
        data = response.read()
        return response.status, json.loads(data) if data else None

    def read(self, target: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""
        response = self._send("GET", target, b"", {})
        data = response.read()
        return data if response.status == 200 else None

    def hang_up(self) -> None:
        """Close this thread's connection."""
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()

    def _send(
        self, verb: str, target: str, body: bytes, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        self._local.connection = connection = self._connection()
        connection.request(verb, target, body, {**headers, "Content-Length": str(len(body))})
        response = connection.getresponse()
        self._local.used = time.monotonic()
        return response

    def _connection(self) -> http.client.HTTPConnection:
        """This thread's own; a fresh one where the server has closed it, or may be about to."""
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None and kept.sock is not None:
            idle = time.monotonic() - self._local.used
            if idle < _IDLE_SECONDS and not select.select([kept.sock], [], [], 0)[0]:
                return kept
            kept.close()
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while piece := response.read(_PIECE):
                yield piece
        finally:
            if not response.isclosed():
                # The client went away; what it did not read may not be taken for the next answer.
                self._local.connection.close()


class Proxy:
    """Serves a judge. ``requests`` are all requests in the order of their arrival."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.faults = judge, Faults()
        self.requests: list[Request] = []
        #: Told of every request on its arrival, before any fault strikes it and before it is answered.
        self.watchers: list[Callable[[Request], None]] = []
        self.down = False  # every request is hung up on: the server is dead
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Example: ``http://127.0.0.1:40001``."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()
        self._thread.join()

    def answer(self, exchange: Exchange) -> Reply | None:
        """The reply to a request, None to hang up: it was dropped, or the server is dead."""
        self.requests.append(exchange.request)
        for watch in tuple(self.watchers):
            watch(exchange.request)
        if self.down:
            return None
        fault = self.faults.take(exchange.request)
        try:
            return self.judge.answer(exchange) if fault is None else self._struck(fault, exchange)
        except LOST:
            return None

    def _struck(self, fault: Fault, exchange: Exchange) -> Reply | None:
        if fault.kind.isdigit():
            return self.judge.refusal(int(fault.kind), fault.reason)
        if fault.kind == "late":
            self._deliver_later(fault, exchange)
            return None
        if fault.kind == "drop_request":
            return None
        if fault.kind == "delay":
            threading.Event().wait(fault.seconds)
        reply = self.judge.answer(exchange, fault)
        if fault.kind != "drop_reply":
            return reply
        _read(reply)
        return None

    def _deliver_later(self, fault: Fault, exchange: Exchange) -> None:
        def deliver() -> None:
            if self.down:
                return
            with contextlib.suppress(*LOST):
                _read(self.judge.answer(exchange))
            self.judge.hang_up()

        if fault.seconds:
            timer = threading.Timer(fault.seconds, deliver)
            timer.daemon = True
            timer.start()
        else:
            self.faults.hold(deliver)


def _read(reply: Reply) -> None:
    """Read an answer that is then dropped, to be sure that the server gave it."""
    for _ in reply.body:
        pass


class _Server(ThreadingHTTPServer):
    proxy: Proxy
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._clients: set[socket.socket] = set()
        self._change = threading.Condition()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """A client's connection, from its first request to its end."""
        with self._change:
            self._clients.add(request)
        try:
            super().finish_request(request, client_address)
        finally:
            self.proxy.judge.hang_up()
            with self._change:
                self._clients.discard(request)
                self._change.notify_all()

    def hang_up(self) -> None:
        """End all connections, and wait for their threads to let go of the server's."""
        with self._change:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            self._change.wait_for(lambda: not self._clients, timeout=120)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, as killed ones do, is no news."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Without it, headers and body wait for each other's acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        body = self._body()
        request = Request(
            method=proxy.judge.method(self.command, url.path, query),
            verb=self.command,
            path=url.path,
            query=query,
            json=_document(self.headers.get("Content-Type", ""), body),
            headers=dict(self.headers.items()),
            body_size=len(body),
        )
        reply = proxy.answer(Exchange(request, self.path, body))
        if reply is None:
            self.close_connection = True
            return
        self._reply(reply)

    def _reply(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(reply.length))
        self.end_headers()
        if self.command != "HEAD":
            for piece in reply.body:
                self.wfile.write(piece)
        self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Tests read ``requests``."""


def _document(content_type: str, body: bytes) -> Any:
    if not body or not content_type.startswith("application/json"):
        return None
    with contextlib.suppress(ValueError):
        return json.loads(body)
    return None
