"""A schema registry on a real socket of this machine, whose responses a test controls."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kbq_assets_tests.fakes.serving import QuietHandler, serving


@dataclass(frozen=True)
class Answer:
    """What is sent back: after ``delay_seconds``, each byte of the body, or of a header, ``drip_seconds``
    after the last.

    ``length``: what the header claims, if not the truth.
    """

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0
    drips_head: bool = False
    length: int | None = None

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Answer:
        """JSON."""
        return cls(status, json.dumps(value).encode())

    @classmethod
    def error(cls, status: int, code: int) -> Answer:
        """An error as Confluent's registry words it."""
        return cls.of({"error_code": code, "message": "a confidential message"}, status)


@dataclass
class RegistryServer:
    """A running server. ``answers`` by path; ``override`` answers everything, if it is set."""

    url: str
    answers: dict[str, Answer]
    override: Answer | None = None
    paths: list[str] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)

    def answer(self, path: str, authorization: str) -> Answer:
        self.paths.append(path)
        self.authorizations.append(authorization)
        unknown = Answer.error(404, 40403 if path.startswith("/schemas/ids/") else 40401)
        return self.override or self.answers.get(path, unknown)


@contextmanager
def registry_server(
    answers: dict[str, Answer] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[RegistryServer]:
    """Serve until left."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            _send(self, served.answer(self.path, self.headers.get("Authorization", "")))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    served = RegistryServer(f"{scheme}://127.0.0.1:{server.server_port}", answers or {})
    with serving(server):
        yield served


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the tests."""


def _send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    time.sleep(answer.delay_seconds)
    handler.send_response(answer.status)
    if answer.drips_head:
        handler.flush_headers()
        _write(handler.wfile.write, replace(answer, body=b"X-Long: " + bytes(3000).replace(b"\0", b"x")))
    for name, value in answer.headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
    handler.end_headers()
    _write(handler.wfile.write, answer)


def _write(write: Callable[[bytes], object], answer: Answer) -> None:
    if not answer.drip_seconds:
        write(answer.body)
        return
    for byte in answer.body:
        write(bytes([byte]))
        time.sleep(answer.drip_seconds)
