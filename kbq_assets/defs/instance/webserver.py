"""Dagster's webserver for this machine only: `python -m kbq_assets.defs.instance.webserver`, with Dagster's arguments.

A web page can make its host name resolve to 127.0.0.1, and then read and operate a local server through the browser
(DNS rebinding). Its requests still name that host, so this server accepts only this machine's names and the host in
`KBQ_UI_URL`. Dagster has no option for this (ADR 14).
"""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import urlsplit

from dagster_webserver import app, cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

HOSTS: Final = ("127.0.0.1", "localhost")


class LocalWebserver(DagsterWebserver):  # type: ignore[type-arg]
    """Answers 400 to requests whose Host header names another machine."""

    def build_middleware(self) -> list[Middleware]:
        """The host check first, then Dagster's middleware."""
        public = urlsplit(os.environ.get("KBQ_UI_URL", "")).hostname
        hosts = [*HOSTS, public] if public else [*HOSTS]
        guard = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
        return [guard, *super().build_middleware()]


def main() -> None:
    """Serve until interrupted."""
    setattr(app, "DagsterWebserver", LocalWebserver)  # noqa: B010 - the command makes its application from this name
    command: Any = cli.main
    command()


if __name__ == "__main__":
    main()
