"""``kbq notify``: reports problems and news."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import click

from kbq_assets.cli.context import ExitCode, Part, json_option
from kbq_assets.cli.render import echo_json
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.extras.notices.model import Condition
from kbq_assets.extras.notices.observe import observe
from kbq_assets.extras.notices.send import Delivery, NoticePorts, send_changes, send_now, trial_message

pass_notices: Part[NoticePorts] = Part("notices")


@click.command()
@click.option("--test", is_flag=True, help="Send a test message to every notifier.")
@click.option("--dry-run", is_flag=True, help="Show problems and news; send nothing.")
@json_option
@pass_notices
def notify(ports: NoticePorts, test: bool, dry_run: bool, as_json: bool) -> None:
    """Send new and ended problems, and news, to the notifiers in KBQ_NOTIFY, since their last message.

    Dagster's daemon does this every minute. Without it, run this command after `kbq load`. Exit code 75 if a notifier
    did not accept its message; the next run sends it again.

    \b
      kbq notify --test
      kbq notify --dry-run
    """
    if test and dry_run:
        raise click.UsageError("use --test or --dry-run, not both")
    if dry_run:
        return _show(observe(ports.observed, ports.store.now_ms()).conditions, as_json)
    if not ports.notifiers:
        raise ConfigurationError("there are no notifiers", next_step="set KBQ_NOTIFY, see `kbq settings`")
    now_ms = ports.store.now_ms()
    deliveries = send_now(ports.notifiers, trial_message(now_ms)) if test else send_changes(ports)
    _print(deliveries, as_json)
    sys.exit(ExitCode.TRY_AGAIN if any(d.failure for d in deliveries) else ExitCode.DONE)


def _show(conditions: Sequence[Condition], as_json: bool) -> None:
    if as_json:
        return echo_json([dataclasses.asdict(condition) for condition in conditions])
    for condition in conditions:
        click.echo("\n".join(condition.lines))
    if not conditions:
        click.echo("no problems, no news")


def _print(deliveries: Sequence[Delivery], as_json: bool) -> None:
    if as_json:
        return echo_json(
            [
                {"notifier": d.notifier, "sent": d.sent or None, "failure": d.failure or None}
                for d in deliveries
            ]
        )
    for delivery in deliveries:
        if delivery.failure:
            click.echo(f"{delivery.notifier}: not sent: {delivery.failure}", err=True)
        else:
            click.echo(f"{delivery.notifier}: {delivery.sent or 'nothing new'}")
