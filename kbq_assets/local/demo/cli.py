"""``kbq demo``: starts a broker with real data, runs a job through Dagster's daemon, accounts for every record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console

from kbq_assets.adapters.processes.locks import exclusive
from kbq_assets.cli.context import ExitCode, pass_deployment, pass_orchestrator, reopen
from kbq_assets.cli.interrupts import end_in_order
from kbq_assets.cli.render import console
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.reconcile.cli import pass_reconciler, render_reconciliation
from kbq_assets.extras.reconcile.reconciler import Reconciler
from kbq_assets.local.stack.cli import stack_of, start
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.ports.orchestrator import Orchestrator

#: The job that extracts and loads everything.
JOB: Final = "extract_and_load"
#: Seconds to wait for another demo of the same home.
LOCK_SECONDS: Final = 1800.0


@click.command()
@pass_deployment
def demo(deployment: Deployment) -> None:
    """Run everything on this machine, and account for every record; exit with 1 if one is missing or doubled.

    A second demo produces and loads nothing twice. After a killed demo, the next one completes it.
    """
    shown, settings = console(), deployment.settings
    end_in_order()
    _require_local_broker(settings)
    with exclusive(settings.home / "run" / "demo.lock", console(stderr=True), LOCK_SECONDS):
        with _step(shown, "1 of 4: a Kafka broker and a schema registry"):
            start(settings)
        reopen()  # on the ports that they took
        is_whole = _produce_and_load(shown)
    shown.print("See it in Dagster: make ui. Run it again: nothing is added twice.")
    sys.exit(ExitCode.DONE if is_whole else ExitCode.FAILED)


@pass_reconciler
@pass_orchestrator
@pass_deployment
def _produce_and_load(
    deployment: Deployment, orchestrator: Orchestrator, reconciler: Reconciler, shown: Console
) -> bool:
    """Whether everything was loaded, and every record is accounted for."""
    with _step(shown, "2 of 4: real data"):
        _produce(deployment.settings, shown)
    with _step(shown, f"3 of 4: the job {JOB}, through Dagster's queue and daemon"):
        succeeded = run_job(orchestrator, shown)
    with _step(shown, "4 of 4: the account of every record"):
        account = reconciler.reconcile()
        shown.print(render_reconciliation(account))
    return succeeded and account.is_whole


def run_job(dagster: Orchestrator, shown: Console) -> bool:
    """Queue the job, let the daemon run it, and show its log; returns whether it succeeded."""
    # Queue the job before the daemon starts, so that its sensors see the work and add none.
    run_id = dagster.submit(JOB)
    shown.print(f"  queued as run {run_id[:8]}; waiting for the daemon")
    with dagster.working():
        for line in dagster.follow(run_id):
            style = {"WARNING": "yellow", "ERROR": "red"}.get(line.level)
            shown.print(f"  {line.message}", style=style, soft_wrap=True)
    outcome = dagster.outcome(run_id)
    shown.print(f"  run {run_id[:8]}: {outcome.status.lower()} after {outcome.seconds:.1f} s")
    return outcome.succeeded


def _produce(settings: Settings, shown: Console) -> None:
    from kbq_assets.local.demo.produce import produce_demo

    log = produce_demo(settings.kafka.bootstrap_servers, settings.registry.url, settings.home, shown)
    for topic, totals in log.totals().items():
        shown.print(f"  {topic}: {totals.produced:,} records")


def _require_local_broker(settings: Settings) -> None:
    """Raise ConfigurationError unless the broker is the demo's own: its data must not go to a broker in use."""
    stack = stack_of(settings)
    wanted = (stack.bootstrap_servers, stack.registry_url)
    if (settings.kafka.bootstrap_servers, settings.registry.url) != wanted:
        raise ConfigurationError(
            "the demo produces only to its own broker and registry",
            next_step="unset KBQ_KAFKA_BOOTSTRAP_SERVERS and KBQ_REGISTRY_URL",
        )


@contextmanager
def _step(shown: Console, title: str) -> Iterator[None]:
    shown.print(title, style="bold")
    begun = time.monotonic()
    yield
    shown.print(f"  {time.monotonic() - begun:.1f} s", style="dim")
