"""The process: a socket, the watches, uvicorn; SIGTERM or Ctrl-C stops them in order."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.metrics.service.app import build_app
from kbq_assets.extras.metrics.service.watches import Watches
from kbq_assets.pipelines.observation.observer import Observer

#: Seconds to wait for requests under way at the end; none takes a second.
_LAST_REQUESTS_SECONDS = 5


def serve(observer: Observer, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until a signal. Raises ConfigurationError."""
    watches = Watches(observer.deployment, observer.arrivals)
    config = uvicorn.Config(
        build_app(watches),
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=_LAST_REQUESTS_SECONDS,
    )
    with _bound(host, port) as listening:
        watches.start()
        announce(_url(listening))
        try:
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            watches.stop()


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            next_step="choose another --host or --port",
        ) from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
