"""Shared by all commands: KBQ's parts, exit codes, error messages, confirmation."""

from __future__ import annotations

import functools
import getpass
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import click

from kbq_assets.core.errors import ConflictError, KbqError, Refused, may_pass

if TYPE_CHECKING:
    from kbq_assets.core.config.locations import NamedWarehouse
    from kbq_assets.core.config.settings import Settings
    from kbq_assets.pipelines.compaction.compactor import Compactor
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
    if isinstance(error, Refused):
        return ExitCode.REFUSED
    if may_pass(error) or isinstance(error, ConflictError):
        return ExitCode.TRY_AGAIN
    return ExitCode.FAILED


class Part(Generic[T]):
    """A decorator that passes a command one of KBQ's parts, by its name in `definitions.Parts`.

    Parts are built when the command runs, so `--help` works in any environment. If there are several decorators, the
    lowest one passes the first argument.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, command: Callable[Concatenate[T, P], R]) -> Callable[P, R]:
        """The command without its first argument."""

        @functools.wraps(command)
        def with_part(*args: P.args, **kwargs: P.kwargs) -> R:
            return command(opened(self._name), *args, **kwargs)

        return with_part


def _parts() -> Any:
    """The parts of this invocation for its warehouse, built once."""
    meta = click.get_current_context().meta
    opened: dict[str, Any] = meta.setdefault(_PARTS, {})
    if "" not in opened:
        opened[""] = click.get_current_context().obj()
    name = meta.get(_WAREHOUSE, "")
    if name not in opened:
        opened[name] = opened[""].for_warehouse(name)
    return opened[name]


def reopen() -> None:
    """Drop this invocation's parts. The next use reads the settings again."""
    click.get_current_context().meta.pop(_PARTS, None)


def reopen_with(change: Callable[[Settings], Settings]) -> None:
    """Read the settings again, and apply a change to them for the rest of this invocation."""
    context = click.get_current_context()
    parts = context.obj()
    context.meta[_PARTS] = {"": parts.over(change(parts.adapters.settings))}


def current_extractor() -> Extractor:
    reopen()
    extractor: Extractor = _parts().extractor
    return extractor


def opened(name: str) -> Any:
    """A part for this invocation's warehouse, as `Part` passes it."""
    return getattr(_parts(), name)


def choose_warehouse(name: str) -> None:
    click.get_current_context().meta[_WAREHOUSE] = name


def chosen_warehouse() -> str:
    """The warehouse that `kbq --warehouse` names; "" if it names none."""
    return str(click.get_current_context().meta.get(_WAREHOUSE, ""))


def _undecided() -> tuple[str, ...]:
    """The names of several warehouses, if none was chosen."""
    if click.get_current_context().meta.get(_WAREHOUSE):
        return ()
    found: Sequence[NamedWarehouse] = _parts().deployment.settings.warehouses
    return tuple(each.name for each in found) if len(found) > 1 else ()


def one_warehouse(command: Callable[P, R]) -> Callable[P, R]:
    """A command for the tables of one warehouse. If there are several, `kbq --warehouse` must choose one."""

    @functools.wraps(command)
    def of_one(*args: P.args, **kwargs: P.kwargs) -> R:
        check_one_warehouse()
        return command(*args, **kwargs)

    return of_one


def check_one_warehouse(among: Sequence[str] = ()) -> None:
    """Raises UsageError if several warehouses (of ``among``, by default all) are possible and none was chosen."""
    if names := _undecided():
        if len(among) == 1:
            choose_warehouse(among[0])
            return
        names = tuple(among) or names
        given = shlex.join(click.get_current_context().meta.get(ARGUMENTS, ()))
        raise click.UsageError(
            "\n".join(["which warehouse?", *(f"  next: kbq --warehouse {name} {given}" for name in names)])
        )


def each_warehouse(command: Callable[P, R]) -> Callable[P, R | None]:
    """A command that runs for every warehouse unless `kbq --warehouse` chooses one. A warehouse's error does not stop
    the others; the worst exit code is returned. With --json, the output is one document by warehouse."""

    @functools.wraps(command)
    def of_each(*args: P.args, **kwargs: P.kwargs) -> R | None:
        names = _undecided()
        if not names:
            return command(*args, **kwargs)
        meta = click.get_current_context().meta
        codes, documents = [], {}
        for index, name in enumerate(names):
            meta[_WAREHOUSE], meta[DOCUMENT], meta[_FURTHER] = name, [], index > 0
            if not kwargs.get("as_json"):
                click.echo(f"warehouse {name}")
            codes.append(_code_of(lambda: command(*args, **kwargs)))
            documents[name] = next(iter(meta.pop(DOCUMENT)), None)
        meta.pop(_WAREHOUSE)
        if kwargs.get("as_json"):
            click.echo(json.dumps({"warehouses": documents}, indent=2, ensure_ascii=False))
        sys.exit(min(codes, key=_SEVERITY.index))

    return of_each


def is_further_warehouse() -> bool:
    """Whether the command runs for a warehouse after the first, so shared state has already been shown."""
    return bool(click.get_current_context().meta.get(_FURTHER))


def _code_of(run: Callable[[], object]) -> int:
    try:
        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except KbqError as error:
        print_error(error)
        return exit_code(error)
    return ExitCode.DONE


_SEVERITY: Final = (ExitCode.USAGE, ExitCode.REFUSED, ExitCode.FAILED, ExitCode.TRY_AGAIN, ExitCode.DONE)
_WAREHOUSE: Final = "kbq_assets.warehouse"
_FURTHER: Final = "kbq_assets.further_warehouse"
#: The context's key of the arguments after `kbq`.
ARGUMENTS: Final = "kbq_assets.arguments"
#: The context's key of a list that collects a command's document; without it, the document is printed.
DOCUMENT: Final = "kbq_assets.document"


_PARTS: Final = "kbq_assets.parts"
pass_deployment: Part[Deployment] = Part("deployment")
pass_extractor: Part[Extractor] = Part("extractor")
pass_loader: Part[Loader] = Part("loader")
pass_compactor: Part[Compactor] = Part("compactor")
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


def user() -> str:
    """The user's name; "" if there is none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def _agreed() -> bool:
    try:
        return click.confirm("Do it?", default=False)
    except click.Abort:  # no terminal, or Ctrl-C
        click.echo()
        return False


#: Shared options.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", is_flag=True, help="Apply without asking.")
