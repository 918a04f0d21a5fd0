"""A server on a real socket that receives POST requests and responds as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

from kbq_assets_tests.fakes.serving import QuietHandler, serving


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

    class Handler(QuietHandler):
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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = HookServer(f"http://127.0.0.1:{server.server_port}")
    with serving(server):
        yield served
