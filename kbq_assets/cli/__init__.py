"""``kbq``: thin commands over the pipelines.

Commands are imported when they are called, so that `kbq --help` and shell completion stay quick.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from kbq_assets.cli.context import exit_code, tell
from kbq_assets.core.errors import KbqError


class Lazy(NamedTuple):
    """Where a command is, as ``module:attribute``, and its line in `kbq --help`."""

    path: str
    help: str


COMMANDS: Final[Mapping[str, Mapping[str, Lazy]]] = {
    "Run": {
        "plan": Lazy(
            "kbq_assets.cli.plan:plan", "Show what an extraction or a load would do; change nothing."
        ),
        "extract": Lazy("kbq_assets.cli.run:extract", "Read new records into staged files and commit them."),
        "load": Lazy("kbq_assets.cli.run:load", "Load committed files into the warehouse."),
        "clean": Lazy("kbq_assets.cli.run:clean", "Delete staged files that nothing needs."),
    },
    "Look": {
        "status": Lazy(
            "kbq_assets.cli.status:status", "Show positions, lag, backlogs, errors, what is stopped."
        ),
        "check": Lazy(
            "kbq_assets.cli.check:check", "Say what is wrong and what waits; exit code 1 if anything."
        ),
        "completeness": Lazy(
            "kbq_assets.cli.completeness:completeness", "Show until when each table is complete, and why."
        ),
        "reconcile": Lazy(
            "kbq_assets.extras.reconcile.cli:reconcile", "Account for every record; exit code 1 if not."
        ),
        "errors": Lazy("kbq_assets.cli.errors:errors", "List bad records, or show one as it came."),
        "notify": Lazy(
            "kbq_assets.extras.notices.cli:notify", "Tell who is on call what is wrong, or send a test."
        ),
        "serve": Lazy(
            "kbq_assets.extras.metrics.cli:serve", "Health, status and Prometheus metrics over HTTP."
        ),
        "settings": Lazy("kbq_assets.cli.settings:settings", "List every KBQ_* variable, with its value."),
    },
    "Catalogue": {
        "catalog": Lazy(
            "kbq_assets.extras.catalog.cli:catalog", "Judge, show and apply the topic catalogue; start one."
        ),
    },
    "Operate": {
        "pii": Lazy("kbq_assets.cli.pii:pii", "Keys of personal data: make, rotate, open error rows."),
        "bootstrap": Lazy("kbq_assets.cli.operate:bootstrap", "Write the first commit of a topic."),
        "resume": Lazy("kbq_assets.cli.operate:resume", "Let a stopped partition or a parked table go on."),
        "park": Lazy("kbq_assets.cli.operate:park", "Hold a table: its files wait until it is resumed."),
        "accept-gap": Lazy(
            "kbq_assets.cli.operate:accept_gap", "Go on after records were lost to retention."
        ),
        "reset": Lazy("kbq_assets.cli.operate:reset", "Begin a topic anew, in a new epoch."),
    },
    "This machine": {
        "demo": Lazy(
            "kbq_assets.local.demo.cli:demo", "From a broker with real data to an account of every record."
        ),
        "local": Lazy(
            "kbq_assets.local.stack.cli:local", "A Kafka broker and a schema registry without Docker."
        ),
        "ui": Lazy("kbq_assets.cli.ui:ui", "Dagster's UI with its daemon."),
        "pack": Lazy(
            "kbq_assets.cli.pack:pack", "Pack what a Spark cluster's workers import, as one archive."
        ),
        "doctor": Lazy(
            "kbq_assets.extras.doctor.cli:doctor", "Check what KBQ needs, and say how to mend it."
        ),
    },
}


HELP_OPTIONS: Final = ["-h", "--help"]


class LazyGroup(click.Group):
    """Imports a command when it is called, and turns KBQ's errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of `COMMANDS`."""
        return [name for section in COMMANDS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        for section in COMMANDS.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name].path.partition(":")
                command: click.Command = getattr(import_module(module), attribute)
                _take_help_options(command)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A section for each kind of command."""
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.help) for name, command in section.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An error ends with its message, its next step and its exit code."""
        try:
            return super().invoke(ctx)
        except KbqError as error:
            tell(error, debug=ctx.params["debug"])
            sys.exit(exit_code(error))


def _take_help_options(command: click.Command) -> None:
    """Click keeps the help option of the first context that asks: it must not depend on which that was."""
    command.context_settings.setdefault("help_option_names", HELP_OPTIONS)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _take_help_options(inner)


EPILOG: Final = """
\b
Examples:
  kbq plan                              what would happen now
  kbq extract --topic shop.orders.v1    one topic, up to its end
  kbq load                              everything that is committed
  kbq status                            lag, errors, what waits for you and how to go on
  kbq reconcile --json                  the account, for a program

\b
Exit codes:
  0   done
  1   failed, or something waits for an operator: the message says what to do
  2   the command line cannot be read
  3   refused: it would lose or double data
  75  not now: broker, registry, store or warehouse does not answer; run it again

Everything is configured by KBQ_* variables; `kbq settings` lists them.
"""


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": HELP_OPTIONS})
@click.version_option(package_name="kbq-assets", prog_name="kbq")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def kbq(debug: bool) -> None:
    """Kafka topics into a warehouse, exactly once."""
