"""The pages. None waits for a dependency; `/healthcheck` shows that the process lives, `/status` its state."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kbq_assets.extras.metrics.service.exposition import CONTENT_TYPE, exposition
from kbq_assets.extras.metrics.service.watches import DISTRIBUTION, Watches


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
