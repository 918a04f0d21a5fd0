"""``kbq serve``: health, status and metrics over HTTP."""

from __future__ import annotations

import click

from kbq_assets.cli.context import pass_platform
from kbq_assets.cli.interrupts import end_in_order
from kbq_assets.pipelines.platform import Platform


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8080,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one.",
)
@pass_platform
def serve(platform: Platform, host: str, port: int) -> None:
    """Serve /healthcheck, /status, /version and /metrics until interrupted.

    Nobody is asked who they are: on another address than loopback, put a proxy in front that asks. State and broker
    are read every KBQ_SERVE_SECONDS in the background; what is away is shown as it was, with its age.
    """
    end_in_order()
    try:
        platform.serve(host, port, _announce)
    except KeyboardInterrupt:
        click.echo("stopped")


def _announce(url: str) -> None:
    click.echo(f"serving at {url}; Ctrl-C stops it")
