"""What all commands share: the platform, exit codes, how errors are told, confirmation."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from kbq_assets.core.errors import ConflictError, KbqError, Refused, TransientError

if TYPE_CHECKING:
    from kbq_assets.pipelines.operate.commands import Proposal
    from kbq_assets.pipelines.platform import Platform

P = ParamSpec("P")
R = TypeVar("R")


class ExitCode(IntEnum):
    """What a command's exit code tells a scheduler. 2 is Click's, for a command line that cannot be read."""

    DONE = 0
    FAILED = 1  # an error, or something that waits for an operator
    USAGE = 2
    REFUSED = 3  # the command would lose or double data
    TRY_AGAIN = 75  # EX_TEMPFAIL: nothing is lost, the same command may succeed later


def exit_code(error: KbqError) -> ExitCode:
    """The exit code of an error."""
    if isinstance(error, Refused):
        return ExitCode.REFUSED
    if isinstance(error, TransientError | ConflictError):
        return ExitCode.TRY_AGAIN
    return ExitCode.FAILED


def pass_platform(command: Callable[Concatenate[Platform, P], R]) -> Callable[P, R]:
    """Give a command the platform, opened when the command runs: `--help` works whatever the environment."""

    @click.pass_obj
    @functools.wraps(command)
    def with_platform(open_platform: Callable[[], Platform], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return command(open_platform(), *args, **kwargs)

    return with_platform


def tell(error: KbqError, *, debug: bool = False) -> None:
    """Print an error and what to do next; with ``debug`` the traceback before it."""
    if debug:
        traceback.print_exception(error)
    click.secho("error: ", fg="red", nl=False, err=True)
    click.echo(str(error), err=True)


def confirm(proposals: Sequence[Proposal], *, yes: bool) -> None:
    """Print what would be done, ask, do it. ``yes``: without asking."""
    for proposal in proposals:
        click.echo(proposal.title)
        for line in proposal.lines:
            click.echo(f"  {line}")
    if not yes and not _agreed():
        click.echo("nothing was changed")
        sys.exit(ExitCode.FAILED)
    for proposal in proposals:
        proposal.apply()
        click.echo(f"done: {proposal.title}")


def _agreed() -> bool:
    try:
        return click.confirm("Do it?", default=False)
    except click.Abort:  # no terminal to ask, or Ctrl-C
        click.echo()
        return False


def selected_topics(platform: Platform, topics: Iterable[str]) -> frozenset[str] | None:
    """``--topic`` options, None when there are none. Raises ConfigurationError for what would select nothing."""
    from kbq_assets.core.errors import ConfigurationError
    from kbq_assets.core.topics.source_list import select_topics

    wanted = frozenset(topics)
    if not wanted:
        return None
    unknown = wanted - select_topics(platform.sources(), platform.offsets.topics()).keys()
    if unknown:
        raise ConfigurationError(
            f"not extracted: {', '.join(sorted(unknown))}",
            next_step=f"a topic must be on the broker and in {platform.settings.source_topics}",
        )
    return wanted


#: Shared options.
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
yes_option = click.option("--yes", is_flag=True, help="Do it without asking.")
