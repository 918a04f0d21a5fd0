"""A server on a real socket that receives POST requests and responds as a test says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Posted:
    """A request as it came, its headers' names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HookServer:
    """A running server. It gives ``answers`` in order, and repeats the last one. Each is a status and headers.

    Status 0 closes the connection without an answer.
    """

    url: str
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=lambda: [(200, {})])
    posted: list[Posted] = field(default_factory=list)

    def take(self, posted: Posted) -> tuple[int, dict[str, str]]:
        self.posted.append(posted)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def hook_server() -> Iterator[HookServer]:
    """Serve until left."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = served.take(
                Posted(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            )
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": "2"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = HookServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
