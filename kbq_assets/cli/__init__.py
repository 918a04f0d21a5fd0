"""``kbq``: thin commands over the pipelines.

A command is imported when it is called, so `kbq --help` and shell completion are fast.
"""

from __future__ import annotations

import atexit
import difflib
import errno
import gc
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

import click

from kbq_assets.cli.context import ARGUMENTS, ExitCode, choose_warehouse, exit_code, print_error
from kbq_assets.cli.logs import log_json_lines
from kbq_assets.cli.streams import open_closed_streams as open_closed_streams
from kbq_assets.core.config.parts import LOG_FORMATS
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets.core.optional_packages import missing_package

LOGGER: Final = logging.getLogger("kbq")


class Lazy(NamedTuple):
    """A command's location as ``module:attribute``, and its line in `kbq --help`."""

    path: str
    help: str


#: Sections of `kbq --help`, each with its commands by name.
Commands: TypeAlias = Mapping[str, Mapping[str, Lazy]]

#: The spine's commands. `definitions.py` adds those of the extras.
COMMANDS: Final[Commands] = {
    "Run": {
        "plan": Lazy(
            "kbq_assets.cli.plan:plan", "Show what an extraction or a load would do; change nothing."
        ),
        "extract": Lazy("kbq_assets.cli.run:extract", "Read new records into staged files and commit them."),
        "load": Lazy("kbq_assets.cli.run:load", "Load committed files into the warehouse."),
        "compact": Lazy("kbq_assets.cli.compact:compact", "Rewrite a lake's small files into large ones."),
        "expire": Lazy("kbq_assets.cli.compact:expire", "Drop a lake's rows, snapshots and files by age."),
        "clean": Lazy("kbq_assets.cli.run:clean", "Delete staged files that nothing needs."),
        "ui": Lazy("kbq_assets.cli.ui:ui", "Run Dagster's UI and its daemon."),
        "pack": Lazy(
            "kbq_assets.cli.pack:pack", "Pack everything that Spark workers import into one archive."
        ),
    },
    "Observe": {
        "status": Lazy(
            "kbq_assets.cli.status:status", "Show positions, lag, backlogs, errors, and everything stopped."
        ),
        "check": Lazy(
            "kbq_assets.cli.check:check", "Show failed checks and what waits for them; exit code 1 if any."
        ),
        "completeness": Lazy(
            "kbq_assets.cli.completeness:completeness", "Show how far each table is complete, and why."
        ),
        "errors": Lazy("kbq_assets.cli.errors:errors", "List, show and replay bad records."),
        "settings": Lazy("kbq_assets.cli.settings:settings", "List every KBQ_* variable, with its value."),
    },
    "Operate": {
        "resume": Lazy("kbq_assets.cli.operate:resume", "Resume a stopped partition or a parked table."),
        "reset": Lazy("kbq_assets.cli.operate:reset", "Start a topic over, in a new epoch."),
        "park": Lazy("kbq_assets.cli.operate:park", "Park a table: its files wait until it is resumed."),
        "adopt": Lazy("kbq_assets.cli.operate:adopt", "Take over a table from another staging area."),
        "accept-gap": Lazy(
            "kbq_assets.cli.operate:accept_gap", "Give up records that are lost or cannot be read."
        ),
        "restage": Lazy("kbq_assets.cli.operate:restage", "Read the range of a lost or damaged file again."),
        "quarantine": Lazy(
            "kbq_assets.cli.quarantine:quarantine", "List, retry or drop files that the warehouse rejected."
        ),
        "order": Lazy("kbq_assets.cli.order:order", "Show and control the batches of ordered tables."),
        "replay": Lazy("kbq_assets.cli.replay:replay", "Read a range again, compare, and replace its rows."),
        "backup": Lazy("kbq_assets.cli.backup:backup", "Show, verify and resume verbatim copies of topics."),
        "erase": Lazy("kbq_assets.cli.erase:erase", "Erase the records of a person (GDPR, Article 17)."),
        "pii": Lazy(
            "kbq_assets.cli.pii:pii", "Make and rotate keys for personal data; open sealed error rows."
        ),
        "bootstrap": Lazy("kbq_assets.cli.operate:bootstrap", "Write the first commit of a topic."),
        "warehouse": Lazy("kbq_assets.cli.warehouse:warehouse", "Remove one of several warehouses."),
    },
}


def merged(*parts: Commands) -> dict[str, dict[str, Lazy]]:
    sections: dict[str, dict[str, Lazy]] = {}
    for commands in parts:
        for title, section in commands.items():
            sections.setdefault(title, {}).update(section)
    return sections


HELP_OPTIONS: Final = ["-h", "--help"]
#: Errors of the system that are no defect of KBQ, with the next step.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REFUSED: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "give this user the permission, or choose another folder"),
    errno.EROFS: "choose a folder that can be written",
}
#: Python's defaults are 700, 10 and 10.
_COLLECT_AFTER: Final = (50_000, 20, 20)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Run the garbage collector rarely: a run makes millions of objects, but hardly any reference cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def end_quickly() -> None:
    """Let this process end without a search for garbage. Python would search through the objects of all modules several
    times, which takes a tenth of a second after an extraction."""
    atexit.register(_spare_from_collection)


def _spare_from_collection() -> None:
    if "duckdb" not in sys.modules:  # what is not collected, its bindings report as leaks
        gc.freeze()


class LazyGroup(click.Group):
    """Imports a command when it is called, and turns KBQ's errors into messages and exit codes."""

    sections: Commands = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section in self.sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for section in self.sections.values():
            if cmd_name in section:
                module, _, attribute = section[cmd_name].path.partition(":")
                command: click.Command = getattr(import_module(module), attribute)
                _take_help_options(command)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with a suggestion."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.help) for name, command in section.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the command line's arguments, for messages that repeat them."""
        ctx.meta[ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. On an error, print its message and next step, and exit with its code."""
        as_json = ctx.params["log_format"] == "json"
        if as_json:
            log_json_lines()
        try:
            with rare_collections():
                return super().invoke(ctx)
        except (KbqError, ModuleNotFoundError, OSError) as raised:
            error = _named(raised)
            if error is None:
                raise
            if error is not raised:
                error.__cause__ = raised  # for --debug
            if as_json:
                LOGGER.error("%s", error, exc_info=ctx.params["debug"])
            else:
                print_error(error, debug=ctx.params["debug"])
            sys.exit(exit_code(error))
        except KeyboardInterrupt:
            click.echo("interrupted: nothing is lost; run it again, or see kbq status", err=True)
            sys.exit(ExitCode.FAILED)


def _named(raised: KbqError | ModuleNotFoundError | OSError) -> KbqError | None:
    """The error to show instead of a traceback; None for one that nobody expected."""
    if isinstance(raised, KbqError):
        return raised
    return missing_package(raised) if isinstance(raised, ModuleNotFoundError) else _refused_by_system(raised)


def _refused_by_system(error: OSError) -> KbqError | None:
    """The error of a file or folder of this machine that cannot be used as it is; None for any other error."""
    message = ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    if error.errno in _FULL:
        return Unavailable(message, next_step="free some space, and run it again")
    if error.errno in _REFUSED and error.filename:
        return ConfigurationError(message, next_step=_REFUSED[error.errno])
    return None


def _take_help_options(command: click.Command) -> None:
    """Set the help options on every command: otherwise Click keeps those of the first context that needs them."""
    command.context_settings.setdefault("help_option_names", HELP_OPTIONS)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _take_help_options(inner)


EPILOG: Final = """
\b
Examples:
  kbq init                              settings and a catalog in this folder
  kbq plan                              what an extraction and a load would do now
  kbq extract --topic shop.orders.v1    one topic, up to its end
  kbq load                              everything that is committed
  kbq status                            lag, errors, what is stopped and how to resume it
  kbq reconcile --json                  an account of every record, as JSON

\b
Exit codes:
  0   done
  1   failed, or something waits for an operator: the message names the next step
  2   usage error: the command line cannot be parsed
  3   refused: it would lose or duplicate data
  75  try again: the broker, the registry, the store or the warehouse does not answer

Settings are KBQ_* variables, in the environment or in kbq.toml; `kbq settings` lists them.
"""


def command_line(sections: Commands) -> click.Group:
    """The `kbq` command with the given subcommands."""

    @click.group("kbq", cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": HELP_OPTIONS})
    @click.version_option(package_name="kbq-assets", prog_name="kbq")
    @click.option(
        "--warehouse", metavar="NAME", help="One of several warehouses, by its name in KBQ_WAREHOUSE."
    )
    @click.option("--debug", is_flag=True, help="Show the traceback of an error.")
    @click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default=LOG_FORMATS[0],
        envvar="KBQ_LOG_FORMAT",
        help="Log lines on stderr: text, or JSON for Cloud Logging.",
    )
    def kbq(warehouse: str | None, debug: bool, log_format: str) -> None:
        """Load Kafka topics into a warehouse, exactly once."""
        if warehouse:
            choose_warehouse(warehouse)

    assert isinstance(kbq, LazyGroup)
    kbq.sections = sections
    return kbq
