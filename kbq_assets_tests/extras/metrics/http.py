"""The metrics service on its own port, over a platform of fakes, which polls only on request."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from kbq_assets.definitions import Parts
from kbq_assets.extras.metrics.service.server import build_app
from kbq_assets.extras.metrics.service.watches import Watches


@dataclass(frozen=True)
class Site:
    """A running service."""

    url: str
    watches: Watches

    def get(self, path: str) -> tuple[int, str, str]:
        """Status, content type and body of a page."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=300) as response:
                return response.status, response.headers["content-type"], response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, "", ""

    def json(self, path: str) -> Any:
        """A page that is a document."""
        return json.loads(self.get(path)[2])


@contextmanager
def site(parts: Parts) -> Iterator[Site]:
    """Serve until the end of the block."""
    watches = Watches(parts.deployment, parts.observer.arrivals)
    app = build_app(watches)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{listening.getsockname()[1]}", watches)
        finally:
            server.should_exit = True
            thread.join(300)
