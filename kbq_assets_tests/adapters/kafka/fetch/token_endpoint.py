"""An identity provider on this machine. Its tokens are unsigned, as test brokers accept them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from kbq_assets_tests.fakes.serving import QuietHandler, serving


def unsigned_token(lifetime: float = 3600.0, **claims: Any) -> str:
    """A JWT without a signature (RFC 7515, appendix A.5)."""
    now = time.time()
    body = {"sub": "kbq", "iat": now, "exp": now + lifetime, **claims}
    parts = ({"alg": "none"}, body)
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        + "."
    )


@dataclass
class TokenEndpointServer:
    """Answers each request with ``status`` and ``document``, by default a new token for the right secret."""

    client_id: str = "kbq"
    client_secret: str = "open-sesame"
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""
    forms: list[dict[str, list[str]]] = field(default_factory=list)

    def answer(self, authorization: str, form: bytes) -> tuple[int, bytes]:
        self.forms.append(parse_qs(form.decode()))
        known = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        if self.status != 200 or self.body:
            return self.status, self.body
        if authorization != f"Basic {known}":
            return 401, b'{"error": "invalid_client"}'
        return 200, json.dumps({"access_token": unsigned_token(), "token_type": "bearer"}).encode()


@contextmanager
def token_endpoint() -> Iterator[TokenEndpointServer]:
    """A running endpoint."""
    state = TokenEndpointServer()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"]))
            status, body = state.answer(self.headers.get("Authorization", ""), form)
            self.send_response(status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/token"
    with serving(server):
        yield state
