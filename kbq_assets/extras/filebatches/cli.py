"""``kbq files``: applies batches of files from a bucket or folder, and records decisions about them."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from kbq_assets.cli.context import (
    ExitCode,
    confirm,
    each_warehouse,
    json_option,
    one_warehouse,
    pass_deployment,
    user,
    yes_option,
)
from kbq_assets.cli.render import console, echo_json, number, table, utc_time
from kbq_assets.core.config.locations import Folder, parse_staging
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.plurals import counted
from kbq_assets.extras.filebatches.observe import commands_of
from kbq_assets.extras.filebatches.open import open_file_batches
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.filebatches.runner import FileBatches, FilesReport, PrefixReport
from kbq_assets.pipelines.operate.commands import Proposal

_prefix = click.argument("prefix", metavar="TABLE_PREFIX")
_prefixes = click.argument("prefixes", metavar="[TABLE_PREFIX]...", nargs=-1)
_batch = click.option("--batch", required=True, help="The batch's directory, as kbq files status shows it.")


@click.group()
def files() -> None:
    """Apply batches of files (`KBQ_FILES`). A directory with a success object is a batch."""


def _opened(deployment: Deployment) -> FileBatches:
    """The batches of `KBQ_FILES`. Raises ConfigurationError for a folder that does not exist: a misspelled name, or a
    disk that is not mounted, would look like no batches."""
    batches = open_file_batches(deployment)
    place = parse_staging(deployment.settings.extras.files.location)
    if isinstance(place, Folder) and not place.path.is_dir():
        raise ConfigurationError(
            f"KBQ_FILES: the folder {place.path} does not exist",
            next_step="correct KBQ_FILES, or create it",
        )
    return batches


@files.command()
@_prefixes
@click.option("--decisions", is_flag=True, help="Also list the decisions of operators.")
@json_option
@each_warehouse
@pass_deployment
def status(deployment: Deployment, prefixes: tuple[str, ...], decisions: bool, as_json: bool) -> None:
    """Show each table's unapplied batches, and why they wait. Exit code 1 if one waits for an operator."""
    batches = _opened(deployment)
    report = batches.status(prefixes)
    if as_json:
        echo_json(_document(report))
    else:
        _print(report)
        for each in report.tables if decisions else ():
            if each.last is None and not each.batches:
                continue
            for entry in batches.decisions(each.prefix):
                click.echo(
                    f"{each.prefix}: {utc_time(entry.at_ms)} {entry.action} {entry.batch} by {entry.by}: {entry.reason}"
                )
    sys.exit(ExitCode.FAILED if report.needs_person else ExitCode.DONE)


@files.command()
@_prefixes
@json_option
@each_warehouse
@pass_deployment
def run(deployment: Deployment, prefixes: tuple[str, ...], as_json: bool) -> None:
    """Apply every batch that is ready. Exit code 1 if one waits for an operator, 75 if work is left for the next
    run."""
    report = _opened(deployment).run(prefixes)
    echo_json(_document(report)) if as_json else _print(report)
    if report.needs_person:
        sys.exit(ExitCode.FAILED)
    sys.exit(ExitCode.TRY_AGAIN if report.unfinished else ExitCode.DONE)


@files.command()
@_prefix
@_batch
@click.option("--reason", default="", help="The reason, for the table's list of decisions.")
@yes_option
@one_warehouse
@pass_deployment
def retry(deployment: Deployment, prefix: str, batch: str, reason: str, yes: bool) -> None:
    """Apply a failed or blocked batch after all, with its current files."""
    files_of = open_file_batches(deployment)
    _confirm("retry", batch, yes, lambda: files_of.retry(prefix, batch, reason, user()))


@files.command()
@_prefix
@_batch
@click.option("--reason", required=True, help="The reason, for the table's list of decisions.")
@yes_option
@one_warehouse
@pass_deployment
def skip(deployment: Deployment, prefix: str, batch: str, reason: str, yes: bool) -> None:
    """Skip a batch, because you applied its rows by hand or give them up."""
    files_of = open_file_batches(deployment)
    _confirm("skip", batch, yes, lambda: files_of.skip(prefix, batch, reason, user()))


@files.command()
@_prefix
@click.option(
    "--from", "first", required=True, help="The first batch: its path, or the beginning of the path."
)
@click.option("--reason", required=True, help="The reason, for the table's list of decisions.")
@yes_option
@one_warehouse
@pass_deployment
def again(deployment: Deployment, prefix: str, first: str, reason: str, yes: bool) -> None:
    """Apply settled batches again, from a given one on, in the order of their paths.

    Rows that the batches appended before stay in the table. Delete them first, or load into partitions that are
    replaced.
    """
    files_of = open_file_batches(deployment)
    batches = files_of.settled_from(prefix, first)
    chosen = counted(len(batches), "batch", "batches")
    lines = (
        f"the next run applies {chosen} again, from {min(batches)} to {max(batches)}",
        "rows that they appended before stay in the table: delete them first",
    )
    title = f"apply batches of {prefix} again"
    confirm([Proposal(title, lines, lambda: files_of.again(prefix, batches, reason, user()))], yes=yes)


def _confirm(action: str, batch: str, yes: bool, apply: Any) -> None:
    lines = {
        "retry": "the next run applies it under a new job id",
        "skip": "it counts as settled; no later run applies it, unless it is uploaded again",
    }
    confirm([Proposal(f"{action} {batch}", (lines[action],), apply)], yes=yes)


def _print(report: FilesReport) -> None:
    shown = table("table", "#applied now", "#rows", "#waiting", "last batch")
    for each in report.tables:
        last = f"{each.last.path} {'skipped' if each.last.skipped else 'applied'}" if each.last else ""
        shown.add_row(each.prefix, *map(number, (each.applied, each.rows, len(each.batches))), last)
    out = console()
    if not report.tables and not report.homeless:
        click.echo("no batches were found")
        return
    out.print(shown)
    for each in report.tables:
        _print_table(each)
    for path, why in report.homeless.items():
        out.print(f"{path or 'the root'}: {why}", style="yellow", markup=False)


def _print_table(each: PrefixReport) -> None:
    out = console()
    if each.error:
        out.print(f"{each.prefix}: {each.error}", style="yellow", markup=False)
    if each.note:
        out.print(f"{each.prefix}: {each.note}", style="yellow", markup=False)
    for batch in each.batches:
        style = "yellow" if batch in each.stopped else None
        out.print(
            f"{batch.state}: {batch.path}{': ' if batch.why else ''}{batch.why}", style=style, markup=False
        )
    for word, command in zip(("next:", "or:  "), commands_of(each), strict=False):
        click.echo(f"{word} {command}")


def _document(report: FilesReport) -> dict[str, Any]:
    return {
        "tables": [dataclasses.asdict(each) for each in report.tables],
        "homeless": report.homeless,
    }
