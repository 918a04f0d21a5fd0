"""``kbq ui``: Dagster's UI and daemon on loopback, until interrupted."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

import click

from kbq_assets.cli.context import pass_platform
from kbq_assets.pipelines.platform import Platform


@click.command()
@click.option("--port", default=3000, show_default=True, help="Port of the UI, on 127.0.0.1.")
@pass_platform
def ui(platform: Platform, port: int) -> None:
    """Open Dagster's UI with its daemon: schedules and sensors work as long as it runs."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        platform.orchestrator.serve(port, _announce)
    except KeyboardInterrupt:
        click.echo("stopped")


def _announce(url: str) -> None:
    click.echo(f"Dagster is at {url} (Ctrl-C stops it and its daemon)")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End as Ctrl-C does: children are stopped in order."""
    raise KeyboardInterrupt
