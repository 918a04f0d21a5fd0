"""Shared by all commands: KBQ's parts, exit codes, error messages, confirmation."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Concatenate, Final, Generic, ParamSpec, TypeVar

import click

from kbq_assets.core.errors import ConflictError, KbqError, Refused, TransientError

if TYPE_CHECKING:
    from kbq_assets.pipelines.deployment import Deployment
    from kbq_assets.pipelines.extraction.extractor import Extractor
    from kbq_assets.pipelines.loading.loader import Loader
    from kbq_assets.pipelines.observation.observer import Observer
    from kbq_assets.pipelines.operate.commands import Proposal
    from kbq_assets.pipelines.operate.operator import Operator
    from kbq_assets.ports.orchestrator import Orchestrator

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ExitCode(IntEnum):
    """Exit codes, for schedulers. Click uses 2 for a command line that it cannot parse."""

    DONE = 0
    FAILED = 1  # an error, or something that waits for an operator
    USAGE = 2
    REFUSED = 3  # the command would lose or duplicate data
    TRY_AGAIN = 75  # EX_TEMPFAIL: nothing is lost, the same command may succeed later


def exit_code(error: KbqError) -> ExitCode:
    """The exit code of an error."""
    if isinstance(error, Refused):
        return ExitCode.REFUSED
    if isinstance(error, TransientError | ConflictError):
        return ExitCode.TRY_AGAIN
    return ExitCode.FAILED


class Part(Generic[T]):
    """A decorator that passes a command one of KBQ's parts, by its name in `definitions.Parts`.

    Parts are built when the command runs: `--help` works whatever the environment. Of several, the lowest decorator
    gives the first argument.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, command: Callable[Concatenate[T, P], R]) -> Callable[P, R]:
        """The command without its first argument."""

        @functools.wraps(command)
        def with_part(*args: P.args, **kwargs: P.kwargs) -> R:
            return command(getattr(_parts(), self._name), *args, **kwargs)

        return with_part


def _parts() -> object:
    """The parts of this invocation, built once."""
    context = click.get_current_context()
    if _PARTS not in context.meta:
        context.meta[_PARTS] = context.obj()
    found: object = context.meta[_PARTS]
    return found


def reopen() -> None:
    """Forget this invocation's parts: the next use reads the settings again."""
    click.get_current_context().meta.pop(_PARTS, None)


_PARTS: Final = "kbq_assets.parts"
pass_deployment: Part[Deployment] = Part("deployment")
pass_extractor: Part[Extractor] = Part("extractor")
pass_loader: Part[Loader] = Part("loader")
pass_observer: Part[Observer] = Part("observer")
pass_operator: Part[Operator] = Part("operator")
pass_orchestrator: Part[Orchestrator] = Part("orchestrator")


def print_error(error: KbqError, *, debug: bool = False) -> None:
    """Print an error and its next step; with ``debug``, the traceback first."""
    if debug:
        traceback.print_exception(error)
    click.secho("error: ", fg="red", nl=False, err=True)
    click.echo(str(error), err=True)


def confirm(proposals: Sequence[Proposal], *, yes: bool) -> None:
    """Print the proposals, ask unless ``yes``, and apply them."""
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


#: Shared options.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Apply without asking.")
