"""``kbq notify``: tell who is on call what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from kbq_assets.cli.context import ExitCode, Part, json_option
from kbq_assets.cli.render import echo_json
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.notices.model import Condition
from kbq_assets.extras.notices.pipeline import Delivery, NoticePorts, look, tell, tell_test

pass_notices: Part[NoticePorts] = Part("notices")


@click.command()
@click.option("--test", is_flag=True, help="Send a test to every notifier, whatever is wrong.")
@click.option("--dry-run", is_flag=True, help="Show what is wrong or new, and tell nobody.")
@json_option
@pass_notices
def notify(ports: NoticePorts, test: bool, dry_run: bool, as_json: bool) -> None:
    """Tell the notifiers of KBQ_NOTIFY what is wrong or new, has grown, lasts or has ended since they were told last.

    Dagster's daemon does this every minute; without it, run this after `kbq load`. Exit code 75 when a notifier did
    not take its notices: it is told again the next time.

    \b
      kbq notify --test
      kbq notify --dry-run
    """
    if test and dry_run:
        raise click.UsageError("--test sends, --dry-run does not")
    if dry_run:
        return _show(look(ports, ports.store.now_ms()).conditions, as_json)
    if not ports.notifiers:
        raise ConfigurationError("nobody is told", next_step="set KBQ_NOTIFY, see `kbq settings`")
    deliveries = tell_test(ports) if test else tell(ports)
    _print(deliveries, as_json)
    sys.exit(ExitCode.TRY_AGAIN if any(d.failure for d in deliveries) else ExitCode.DONE)


def _show(conditions: Sequence[Condition], as_json: bool) -> None:
    if as_json:
        echo_json([_condition_json(condition) for condition in conditions])
        return
    for condition in conditions:
        click.echo(f"{condition.severity}: {condition.kind}: {condition.subject}: {condition.text}")
        for command in condition.commands:
            click.echo(f"  next: {command}")
    if not conditions:
        click.echo("nothing is wrong, nothing is new")


def _condition_json(condition: Condition) -> dict[str, object]:
    return {
        "kind": condition.kind,
        "subject": condition.subject,
        "severity": condition.severity,
        "text": condition.text,
        "commands": list(condition.commands),
    }


def _print(deliveries: Sequence[Delivery], as_json: bool) -> None:
    if as_json:
        echo_json(
            [{"notifier": d.notifier, "sent": list(d.sent), "failure": d.failure or None} for d in deliveries]
        )
        return
    for delivery in deliveries:
        for title in delivery.sent:
            click.echo(f"{delivery.notifier}: {title}")
        if not (delivery.sent or delivery.failure):
            click.echo(f"{delivery.notifier}: nothing new")
        if delivery.failure:
            click.echo(f"{delivery.notifier}: not told: {delivery.failure}", err=True)
