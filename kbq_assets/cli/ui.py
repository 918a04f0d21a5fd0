"""``kbq ui``: Dagster's UI and daemon on loopback, until interrupted."""

from __future__ import annotations

import click

from kbq_assets.cli.context import pass_platform
from kbq_assets.cli.interrupts import end_in_order
from kbq_assets.pipelines.platform import Platform


@click.command()
@click.option(
    "--port", default=3000, show_default=True, type=click.IntRange(1, 65535), help="Port, on 127.0.0.1."
)
@click.option("--stop", is_flag=True, help="Stop a UI that runs, and what a killed one or demo left behind.")
@pass_platform
def ui(platform: Platform, port: int, stop: bool) -> None:
    """Open Dagster's UI, with the daemon whose schedules and sensors move new records, until interrupted."""
    if stop:
        platform.orchestrator.stop()
        return
    end_in_order()
    try:
        platform.orchestrator.serve(port, _announce)
    except KeyboardInterrupt:
        click.echo("stopped")


def _announce(url: str) -> None:
    click.echo(f"Dagster is at {url}; Ctrl-C stops it, and its daemon")
