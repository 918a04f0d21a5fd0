"""``kbq ui``: runs Dagster's UI and daemon on loopback, until interrupted."""

from __future__ import annotations

from typing import Final

import click

from kbq_assets.cli.context import pass_observer, pass_orchestrator
from kbq_assets.cli.interrupts import end_in_order
from kbq_assets.core.errors import KbqError
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.ports.orchestrator import Orchestrator

#: An empty UI does not show how to get data.
NOTHING_YET: Final = (
    "Nothing is extracted here yet. To try it, run kbq demo in another terminal and open the assets. For your own "
    "Kafka, set KBQ_SOURCE_TOPICS and KBQ_KAFKA_BOOTSTRAP_SERVERS, and run kbq doctor"
)


@click.command()
@click.option(
    "--port", default=3000, show_default=True, type=click.IntRange(1, 65535), help="Port, on 127.0.0.1."
)
@click.option(
    "--stop", is_flag=True, help="Stop a running UI, and processes that a killed UI or demo left behind."
)
@click.option("--read-only", is_flag=True, help="Disable all buttons, and start no daemon.")
@pass_observer
@pass_orchestrator
def ui(orchestrator: Orchestrator, observer: Observer, port: int, stop: bool, read_only: bool) -> None:
    """Run Dagster's UI and its daemon until interrupted. The daemon's sensors extract and load new records."""
    if stop:
        orchestrator.stop()
        return
    end_in_order()

    def announce(url: str) -> None:
        how = ", read-only; Ctrl-C stops it" if read_only else "; Ctrl-C stops it, and its daemon"
        click.echo(f"Dagster is at {url}{how}")
        if _is_empty(observer):
            click.echo(NOTHING_YET)

    try:
        orchestrator.serve(port, announce, read_only=read_only)
    except KeyboardInterrupt:
        click.echo("stopped")


def _is_empty(observer: Observer) -> bool:
    """Whether no file was ever staged. False if the store does not answer, because the UI runs anyway."""
    try:
        return not observer.tables()
    except KbqError:
        return False
