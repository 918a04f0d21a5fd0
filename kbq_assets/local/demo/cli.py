"""``kbq demo``: starts a broker with real data, runs a job through Dagster's daemon, and reconciles every record."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console

from kbq_assets.adapters.processes.locks import exclusive
from kbq_assets.cli.context import (
    ExitCode,
    choose_warehouse,
    pass_deployment,
    pass_orchestrator,
    reopen,
    reopen_with,
)
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
#: Seconds to wait for another demo in the same home folder.
LOCK_SECONDS: Final = 1800.0


@click.command()
@click.option("--lake", "with_lake", is_flag=True, help="Load an Iceberg lake too, and compact it.")
@pass_deployment
def demo(deployment: Deployment, with_lake: bool) -> None:
    """Run everything on this machine, and account for every record; exit with 1 if one is missing or duplicated.

    A second demo produces and loads nothing twice. If a demo is killed, the next one completes it.

    With --lake, one extraction feeds DuckDB and an Iceberg lake, without Dagster. ClickHouse then reads the lake.
    """
    shown, settings = console(), deployment.settings
    end_in_order()
    _require_local_broker(settings)
    _require_catalog(settings)
    with exclusive(settings.home / "run" / "demo.lock", console(stderr=True), LOCK_SECONDS):
        steps = 6 if with_lake else 4
        with _step(shown, f"1 of {steps}: a Kafka broker and a schema registry"):
            start(settings)
        reopen()  # with the ports that the services use
        if with_lake:
            is_whole = _produce_and_load_both(shown)
            folder = settings.home / "lake"
            shown.print(f"The tables are below {folder}; docs/iceberg.md explains them.")
            shown.print("Run it again: nothing is added twice.")
            sys.exit(ExitCode.DONE if is_whole else ExitCode.FAILED)
        is_whole = _produce_and_load(shown)
    shown.print(f"The tables are in {settings.warehouse_url}.")
    shown.print("See them in Dagster: make ui. Run it again: nothing is added twice.")
    sys.exit(ExitCode.DONE if is_whole else ExitCode.FAILED)


@pass_reconciler
@pass_orchestrator
@pass_deployment
def _produce_and_load(
    deployment: Deployment, orchestrator: Orchestrator, reconciler: Reconciler, shown: Console
) -> bool:
    """Produce, load and reconcile. Returns whether every record is accounted for."""
    with _step(shown, "2 of 4: real data"):
        _produce(deployment.settings, shown)
    with _step(shown, f"3 of 4: the job {JOB}, through Dagster's queue and daemon"):
        succeeded = run_job(orchestrator, shown)
    with _step(shown, "4 of 4: the account of every record"):
        account = reconciler.reconcile()
        shown.print(render_reconciliation(account))
    return succeeded and account.is_whole


@pass_deployment
def _produce_and_load_both(deployment: Deployment, shown: Console) -> bool:
    """Load both warehouses. Returns whether both have every record once, and ClickHouse reads the same rows."""
    from kbq_assets.local.demo import lake

    settings = deployment.settings
    with _step(shown, "2 of 6: real data"):
        _produce(settings, shown)
        lake.copy_catalog(settings.catalog.source_topics, settings.home / "lake" / "catalog")
    reopen_with(lake.lake_settings)
    with _step(shown, "3 of 6: one extraction for DuckDB and the lake, in portions"):
        if not lake.load_both(shown):
            return False
    with _step(shown, "4 of 6: compaction joins the lake's small files, month by month"):
        done = [lake.compact(shown)]
    with _step(shown, "5 of 6: ClickHouse reads the lake"):
        done.append(lake.read_elsewhere(settings.home / "lake", shown))
    with _step(shown, "6 of 6: the account of every record, in both"):
        done += [_account(name, shown) for name in lake.WAREHOUSES]
    return all(done)


def _account(warehouse: str, shown: Console) -> bool:
    """Account for every record in one warehouse. Returns whether each is there exactly once."""
    choose_warehouse(warehouse)

    @pass_reconciler
    def run(reconciler: Reconciler) -> bool:
        found = reconciler.reconcile()
        shown.print(f"warehouse {warehouse}")
        shown.print(render_reconciliation(found))
        return found.is_whole

    return run()


def run_job(dagster: Orchestrator, shown: Console) -> bool:
    """Queue the job, let the daemon run it, and show its log. Returns whether it succeeded."""
    # Queue the job before the daemon starts, so that its sensors see the queued job and launch no other runs.
    run_id = dagster.submit(JOB)
    shown.print(f"  queued as run {run_id[:8]}; waiting for the daemon")
    with dagster.working():
        for line in dagster.follow(run_id):
            style = {"WARNING": "yellow", "ERROR": "red"}.get(line.level)
            shown.print(f"  {line.message}", style=style)
    outcome = dagster.outcome(run_id)
    shown.print(f"  run {run_id[:8]}: {outcome.status.lower()} after {outcome.seconds:.1f} s")
    return outcome.succeeded


def _produce(settings: Settings, shown: Console) -> None:
    from kbq_assets.local.demo.produce import produce_demo

    produce_demo(settings.kafka.bootstrap_servers, settings.registry.url, settings.home, shown)


def _require_local_broker(settings: Settings) -> None:
    """Raise ConfigurationError unless the broker is the demo's own: demo data must not reach a broker in use."""
    stack = stack_of(settings)
    wanted = (stack.bootstrap_servers, stack.registry_url)
    if (settings.kafka.bootstrap_servers, settings.registry.url) != wanted:
        raise ConfigurationError(
            "the demo produces only to its own broker and registry",
            next_step="unset KBQ_KAFKA_BOOTSTRAP_SERVERS and KBQ_REGISTRY_URL",
        )


def _require_catalog(settings: Settings) -> None:
    """Raise ConfigurationError if there is no catalog, because then no topic of the demo is extracted."""
    if not settings.catalog.source_topics.exists():
        raise ConfigurationError(
            f"the demo's catalog {settings.catalog.source_topics} does not exist",
            next_step="run it in a checkout of KBQ, or set KBQ_SOURCE_TOPICS to the folder examples/catalog of one",
        )


@contextmanager
def _step(shown: Console, title: str) -> Iterator[None]:
    shown.print(title, style="bold")
    begun = time.monotonic()
    yield
    shown.print(f"  {time.monotonic() - begun:.1f} s", style="dim")
