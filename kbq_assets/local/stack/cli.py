"""``kbq local``: the broker and the registry on this machine."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from kbq_assets.cli.context import pass_deployment
from kbq_assets.cli.render import console, echo_json, table
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.plurals import counted
from kbq_assets.local.stack import LocalStack, ServiceState, ServiceStatus, on_free_ports
from kbq_assets.pipelines.deployment import Deployment


def stack_of(settings: Settings, ivy_settings: Path | None = None) -> LocalStack:
    """The local stack of ``settings``."""
    ports = settings.local
    return LocalStack(
        settings.home,
        ports.kafka_port,
        ports.controller_port,
        ports.registry_port,
        ivy_settings=ivy_settings,
    )


@click.group()
def local() -> None:
    """A real Kafka broker and schema registry on this machine, without Docker.

    Its files are below KBQ_HOME (.kbq). It remembers its ports there, and every command uses them. To choose them:
    KBQ_LOCAL_KAFKA_PORT, KBQ_LOCAL_CONTROLLER_PORT, KBQ_LOCAL_REGISTRY_PORT.
    """


@local.command()
@click.option(
    "--ivy-settings",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Your own Ivy settings, to use a mirror (default: ~/.ivy2/ivysettings.xml if it exists).",
)
@pass_deployment
def up(deployment: Deployment, ivy_settings: Path | None) -> None:
    """Install and start both services if needed, and wait until they serve."""
    start(deployment.settings, ivy_settings)


def start(settings: Settings, ivy_settings: Path | None = None) -> LocalStack:
    """The running local stack. Its ports are those that variables set, otherwise the remembered ones, otherwise free
    ones. They are checked before anything is installed. Raises the errors of `LocalStack.up`."""
    stack = on_free_ports(stack_of(settings, ivy_settings), settings.local.fixed)
    stack.up()
    return stack


@local.command()
@pass_deployment
def down(deployment: Deployment) -> None:
    """Stop the services that `up` started. Their data stays."""
    stack_of(deployment.settings).down()


@local.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_deployment
def status(deployment: Deployment, as_json: bool) -> None:
    """Show the status of both services; exit with 1 unless both are healthy."""
    services = stack_of(deployment.settings).status()
    if as_json:
        echo_json([_as_json(service) for service in services])
    else:
        _show(services)
    sys.exit(0 if all(service.healthy for service in services) else 1)


@local.command()
@click.option(
    "--records", default=1000, show_default=True, type=click.IntRange(1, 1_000_000), help="Records per topic."
)
@pass_deployment
def sample(deployment: Deployment, records: int) -> None:
    """Produce two topics to try KBQ with: shop.orders (Avro) and shop.clicks (JSON)."""
    from kbq_assets.local.stack.sample import produce_sample

    stack, settings = stack_of(deployment.settings), deployment.settings
    if settings.kafka.bootstrap_servers != stack.bootstrap_servers:
        raise ConfigurationError(
            "samples go to the local broker only",
            next_step="unset KBQ_KAFKA_BOOTSTRAP_SERVERS, then kbq local up",
        )
    if any(service.state is not ServiceState.RUNNING for service in stack.status()):
        raise ConfigurationError("the local stack does not run", next_step="kbq local up")
    for topic in produce_sample(settings, records):
        click.echo(f"produced {counted(records, 'record')} to {topic}")


def _as_json(service: ServiceStatus) -> dict[str, object]:
    return dataclasses.asdict(service) | {"log": str(service.log), "healthy": service.healthy}


def _show(services: Sequence[ServiceStatus]) -> None:
    shown = table("service", "state", "serves", "#pid", "since", "address")
    for service in services:
        pid, since = str(service.pid or ""), _local_time(service.since)
        shown.add_row(service.service, service.state, _serves(service), pid, since, service.address)
    console().print(shown)
    for service in services:
        if service.state is not ServiceState.STOPPED and not service.healthy:
            click.echo(f"see {service.log}")


def _serves(service: ServiceStatus) -> str:
    return "yes" if service.healthy else service.problem or "no"


def _local_time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
