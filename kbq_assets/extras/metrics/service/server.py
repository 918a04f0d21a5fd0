"""The server process: a socket, the watches and uvicorn. SIGTERM or Ctrl-C stops them in order.

No page waits for a dependency. `/healthcheck` shows that the process is alive, `/status` shows KBQ's state, and
`/metrics` is for Prometheus.
"""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.metrics.families import COUNTER, Family
from kbq_assets.extras.metrics.service.watches import DISTRIBUTION, Watches
from kbq_assets.pipelines.observation.observer import Observer

#: Seconds to wait for running requests at the end. None takes a second.
_LAST_REQUESTS_SECONDS = 5
#: The older format, because OpenMetrics requires `_total` on counters, and those of Kafka BigQuery Express have none.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TOTAL: Final = "_total"


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


def build_app(watches: Watches) -> Starlette:

    def show_status(request: Request) -> Response:
        return JSONResponse(watches.document())

    def show_metrics(request: Request) -> Response:
        return Response(exposition(watches.families()), media_type=CONTENT_TYPE)

    routes: Sequence[Route] = [
        Route("/", _hello),
        Route("/healthcheck", _healthcheck),
        Route("/version", _version),
        Route("/status", show_status),
        Route("/metrics", show_metrics),
    ]
    return Starlette(routes=routes)


def _hello(request: Request) -> Response:
    return PlainTextResponse("kbq, ready for service\n")


def _healthcheck(request: Request) -> Response:
    return PlainTextResponse("")


def _version(request: Request) -> Response:
    return JSONResponse(
        {"name": DISTRIBUTION, "version": version(DISTRIBUTION), "python": platform.python_version()}
    )


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            # In the client library, a counter's name has no `_total`, but the names of its samples do.
            metric = Metric(family.name.removesuffix(_TOTAL), family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(family.name + sample.suffix, dict(sample.labels), sample.value)
            yield metric


def exposition(families: Iterable[Family]) -> bytes:
    families = list(families)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    text = generate_latest(registry)
    for family in families:
        if family.kind == COUNTER and not family.name.endswith(_TOTAL):
            for line in ("HELP", "TYPE"):
                declared = f"# {line} {family.name}"
                text = text.replace(f"{declared}{_TOTAL} ".encode(), f"{declared} ".encode())
    return text
