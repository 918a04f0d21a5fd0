"""``kbq quarantine``: files that the warehouse rejected."""

from __future__ import annotations

import click

from kbq_assets.cli.context import (
    confirm,
    each_warehouse,
    json_option,
    one_warehouse,
    pass_operator,
    yes_option,
)
from kbq_assets.cli.render import console, echo_json, number, table
from kbq_assets.core.protocol.names import TableReference, quarantine_path
from kbq_assets.pipelines.operate.bad_records import Quarantined
from kbq_assets.pipelines.operate.operator import Operator

_table_option = click.option("--table", "of_table", metavar="DS.TABLE", help="All files of this table.")


@click.group()
def quarantine() -> None:
    """List, retry or drop files that the warehouse rejected."""


@quarantine.command("list")
@_table_option
@json_option
@each_warehouse
@pass_operator
def list_files(operator: Operator, of_table: str | None, as_json: bool) -> None:
    """List files in quarantine, with their rows and the warehouse's error."""
    found = operator.rejected.files((), _reference(of_table))
    if as_json:
        echo_json([_document(q) for q in found])
        return
    shown = table("file", "table", "#rows", "state", "error", is_whole=True)
    for q in found:
        path = quarantine_path(q.bad.file.path)
        shown.add_row(path, str(q.table), number(q.bad.file.rows), _state(q), q.bad.error)
    console().print(shown if found else "no file is in quarantine")


@quarantine.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@_table_option
@yes_option
@one_warehouse
@pass_operator
def retry(operator: Operator, files: tuple[str, ...], of_table: str | None, yes: bool) -> None:
    """Load files after all, once you have fixed the cause.

    The next load takes them, and no row is duplicated. If the warehouse rejects a file again, it stays in quarantine.
    """
    confirm([operator.rejected.retry(*_chosen(files, of_table))], yes=yes)


@quarantine.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@_table_option
@yes_option
@one_warehouse
@pass_operator
def drop(operator: Operator, files: tuple[str, ...], of_table: str | None, yes: bool) -> None:
    """Give up the rows of files, and delete the files."""
    confirm([operator.rejected.drop(*_chosen(files, of_table))], yes=yes)


def _chosen(files: tuple[str, ...], of_table: str | None) -> tuple[tuple[str, ...], TableReference | None]:
    if bool(files) == (of_table is not None):
        raise click.UsageError("give files or --table")
    return files, _reference(of_table)


def _reference(text: str | None) -> TableReference | None:
    return None if text is None else TableReference.parse(text)


def _state(q: Quarantined) -> str:
    return "waits to be loaded" if q.bad.retry else "in quarantine"


def _document(q: Quarantined) -> dict[str, object]:
    file = q.bad.file
    return {
        "path": quarantine_path(file.path),
        "table": str(q.table),
        "topic": file.name.topic_partition.topic,
        "partition": file.name.topic_partition.partition,
        "epoch": file.name.epoch,
        "first_offset": file.name.first_offset,
        "until_offset": file.until,
        "schema_id": file.name.schema_id,
        "rows": file.rows,
        "bytes": file.bytes,
        "state": _state(q),
        "error": q.bad.error,
    }
