"""``kbq completeness``: how far each table is complete, and what delays it."""

from __future__ import annotations

import click
from rich.console import Console

from kbq_assets.cli.context import each_warehouse, json_option, pass_observer
from kbq_assets.cli.render import console, echo_json, number, table
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.completeness import HOUR_MS, HourRow, hour_rows, hour_text, moment
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.loading.completeness import TableCompleteness
from kbq_assets.pipelines.observation.observer import Observer


@click.command()
@click.argument("name", metavar="[TABLE]", required=False)
@click.option(
    "--hours",
    "most",
    type=click.IntRange(min=1),
    default=24,
    show_default=True,
    help="Latest hours of TABLE to show.",
)
@json_option
@each_warehouse
@pass_observer
def completeness(observer: Observer, name: str | None, most: int, as_json: bool) -> None:
    """Show how far each table is complete, in business time (UTC), or the hours of one table.

    An hour is complete when every source partition of the table is past it by the topic's `complete_after_seconds`,
    and everything staged for it is loaded. Rows that arrive later count as late. Changes nothing.
    """
    found = observer.hours()
    if name is not None:
        wanted = TableReference.parse(name)
        found = tuple(standing for standing in found if standing.table == wanted)
        if not found:
            raise ConfigurationError(f"nothing is staged or loaded for {wanted}", next_step="kbq status")
    if as_json:
        echo_json({"tables": [standing_json(standing, most if name else 0) for standing in found]})
        return
    _print(found, console())
    for standing in found if name else ():
        _print_hours(standing, most, console())


def standing_json(standing: TableCompleteness, most: int) -> dict[str, object]:
    document: dict[str, object] = {
        "table": str(standing.table),
        "complete_until": hour_text(standing.hours.until) or None,
        "held_back_by": standing.verdict.held_by or None,
        "why": standing.verdict.why,
        "late_rows": standing.hours.late_rows,
    }
    if most:
        document["hours"] = [_hour_json(row) for row in _latest(standing, most)]
        document["older"] = {"rows": standing.hours.older_rows, "late_rows": standing.hours.older_late}
    return document


def _hour_json(row: HourRow) -> dict[str, object]:
    completed = moment(row.completed_ms) if row.completed_ms is not None else None
    found = {"hour": moment_of(row), "complete": row.complete, "completed_at": completed}
    return {**found, "rows": row.rows, "late_rows": row.late}


def moment_of(row: HourRow) -> str:
    return moment(row.hour * HOUR_MS)


def _latest(standing: TableCompleteness, most: int) -> list[HourRow]:
    return list(hour_rows(standing.table, standing.hours))[-most:]


def _print(found: tuple[TableCompleteness, ...], out: Console) -> None:
    shown = table("table", "complete until", "#late rows", "held back by")
    for standing in found:
        until, late = hour_text(standing.hours.until), number(standing.hours.late_rows)
        shown.add_row(str(standing.table), until or "unknown", late, standing.verdict.why)
    out.print(shown)


def _print_hours(standing: TableCompleteness, most: int, out: Console) -> None:
    shown = table("hour", "complete", "#rows", "#late rows")
    for row in _latest(standing, most):
        completed = f"since {moment(row.completed_ms)}" if row.completed_ms is not None else "no"
        shown.add_row(moment_of(row), completed, number(row.rows), number(row.late))
    out.print()
    out.print(shown)
    older = standing.hours
    if older.older_rows:
        out.print(
            f"older, or without a known hour: {counted(older.older_rows, 'row')}, {number(older.older_late)} late"
        )
