"""``kbq demo``: broker, real data, Dagster's queue and daemon, warehouse, reconciliation; from one command."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from kbq_assets.adapters.local_stack.locks import exclusive
from kbq_assets.cli.context import pass_platform
from kbq_assets.cli.local import stack_of
from kbq_assets.core.errors import KbqError
from kbq_assets.pipelines.platform import Platform
from kbq_assets.pipelines.reconcile import Reconciliation

#: The job that extracts and loads everything.
JOB = "extract_and_load"
#: Another demo of the same home is waited for this long, in seconds.
LOCK_SECONDS = 1800.0


@click.command()
@pass_platform
def demo(platform: Platform) -> None:
    """Bring everything up, produce real data, run the job through Dagster and account for every record."""
    console = Console()
    home = platform.settings.home
    with exclusive(home / "run" / "demo.lock", Console(stderr=True), LOCK_SECONDS):
        with _step(console, "1/4", "a Kafka broker and a schema registry"):
            stack_of(platform.settings).up()
        with _step(console, "2/4", "real data"):
            produce_demo(platform, console)
        with _step(console, "3/4", f"{JOB}, through Dagster's queue and daemon"):
            succeeded = run_job(platform, console)
        with _step(console, "4/4", "every record accounted for"):
            account = platform.reconcile()
            show_account(account, console)
    console.print("\n`make ui` shows this state in Dagster; `make demo` again adds nothing twice.")
    sys.exit(0 if succeeded and account.accounted else 1)


def produce_demo(platform: Platform, console: Console) -> None:
    """Produce what is not yet produced."""
    raise NotImplementedError


def show_account(account: Reconciliation, console: Console) -> None:
    """The reconciliation as a table, and the verdict."""
    raise NotImplementedError


def run_job(platform: Platform, console: Console) -> bool:
    """Queue the job, have the daemon run it, show its log; whether it succeeded."""
    dagster = platform.orchestrator
    # Queued before the daemon starts: its sensors then see that work is under way and add none.
    run_id = dagster.submit(JOB)
    with dagster.working():
        for line in dagster.follow(run_id):
            style = {"WARNING": "yellow", "ERROR": "red"}.get(line.level, "dim")
            console.print(f"  {line.message}", style=style, markup=False, highlight=False)
    outcome = dagster.outcome(run_id)
    console.print(f"  run {run_id[:8]}: {outcome.status.lower()} in {outcome.seconds:.1f} s")
    return outcome.succeeded


@contextmanager
def _step(console: Console, number: str, title: str) -> Iterator[None]:
    console.print(f"[bold cyan]{number}[/] [bold]{title}")
    begun = time.monotonic()
    try:
        yield
    except KbqError as error:
        console.print(f"[bold red]{number} failed:[/] ", end="")
        console.print(str(error), markup=False, highlight=False)
        sys.exit(1)
    console.print(f"  [dim]{time.monotonic() - begun:.1f} s[/]")
