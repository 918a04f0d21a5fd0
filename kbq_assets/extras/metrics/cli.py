"""``kbq serve``: health, status and metrics over HTTP."""

from __future__ import annotations

import click

from kbq_assets.cli.context import one_warehouse, pass_observer
from kbq_assets.cli.interrupts import end_in_order
from kbq_assets.pipelines.observation.observer import Observer


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 chooses a free one.",
)
@one_warehouse
@pass_observer
def serve(observer: Observer, host: str, port: int) -> None:
    """Serve /healthcheck, /status, /version and /metrics until interrupted.

    There is no authentication: if the address is not loopback, put an authenticating proxy in front. State and broker
    are read in the background every KBQ_SERVE_SECONDS. If one does not answer, its last values are shown with their
    age.
    """
    from kbq_assets.extras.metrics.service import server

    end_in_order()
    try:
        server.serve(observer, host, port, _announce)
    except KeyboardInterrupt:
        click.echo("stopped")


def _announce(url: str) -> None:
    click.echo(f"serving at {url}; Ctrl-C stops it")
