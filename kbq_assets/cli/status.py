"""``kbq status``: shows positions, lag, backlogs, and everything stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from rich.console import Console
from rich.table import Table

from kbq_assets.cli.context import (
    ExitCode,
    each_warehouse,
    is_further_warehouse,
    json_option,
    pass_observer,
)
from kbq_assets.cli.render import backups_headline, console, echo_json, number, stop_lines, table
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.loading.completeness import hour_text
from kbq_assets.core.plurals import counted
from kbq_assets.pipelines.observation.documents import status_json
from kbq_assets.pipelines.observation.observer import Observer
from kbq_assets.pipelines.observation.status import Status


@click.command()
@json_option
@each_warehouse
@pass_observer
def status(observer: Observer, as_json: bool) -> None:
    """Show every partition's position, lag and errors, every table's backlog, and what waits for an operator.

    `lag` counts positions up to the broker's last stable offset; `pending` counts rows that are committed but not yet
    loaded. Each stop and each parked table is shown with the commands that resume it. The exit code is 0 even if
    something waits; use `kbq check` for exit code 1. If the broker does not answer, the exit code is 75, the output
    shows only what is stored in the staging area, and JSON has the reason as `broker_error`. If the store does not give
    a commit or a table's state, the exit code is 75 too, and the output names it and shows the rest.
    """
    try:
        found = observer.status(survives_silence=True)
    except Unavailable as error:
        stored = observer.stored_status()
        if as_json:
            echo_json(status_json(stored, error.message))
        else:
            _print_status(stored, console(), has_broker=False)
        raise error
    if as_json:
        echo_json(status_json(found))
    else:
        _print_status(found, console())
    if found.unavailable:
        sys.exit(ExitCode.TRY_AGAIN)


def _print_status(found: Status, out: Console, *, has_broker: bool = True) -> None:
    """Print a status. For a warehouse after the first, print only its tables: the warehouses share the rest."""
    is_further = is_further_warehouse()
    if found.partitions and not is_further:
        out.print(_partitions(found, has_broker=has_broker))
        out.print()
    if found.tables:
        out.print(_tables(found))
        out.print()
    out.print("; ".join(_headlines(found, has_broker=has_broker, is_further=is_further)))
    if found.backups.topics and not is_further:
        out.print(f"backups: {backups_headline(found.backups)}")
    for line in (
        *(() if is_further else _of_all_warehouses(found)),
        *(f"{t.state}: {t.table}: {t.message}" for t in found.tables if t.message),
        *(f"unknown: {path}: {why}" for path, why in found.unavailable.items()),
    ):
        out.print(line, style="yellow")
    for t in found.tables:
        if t.batches.switch:
            out.print(f"change: {t.table}: {t.batches.switch}")
    for each in () if is_further else found.evolved:
        out.print(f"schema: {each}")


def _of_all_warehouses(found: Status) -> Iterator[str]:
    yield from stop_lines(found.stops)
    yield from (line.removeprefix("stopped: ") for line in stop_lines(found.interrupted))
    yield from (f"backup {line}" for line in stop_lines(found.backups.stops))
    yield from (f"unfinished: {line}" for line in found.replays)
    yield from (f"batches of files: {each.result.line}" for each in found.arrivals.problems)
    yield from (f"unknown: {name}: {why}" for name, why in found.arrivals.unknown_checks.items())


def _headlines(found: Status, *, has_broker: bool, is_further: bool) -> Iterator[str]:
    states = [t.state for t in found.tables]
    waiting = f"{states.count('parked')} parked, {states.count('blocked')} blocked"
    pending = f"{counted(sum(t.pending_rows for t in found.tables), 'row')} to load"
    if is_further:
        yield from (pending, waiting)
        return
    lag = sum(p.lag for p in found.partitions)
    of_broker = f"lag {counted(lag, 'position')}, {counted(found.new_partitions, 'new partition')}"
    yield from (of_broker if has_broker else "lags and new stops unknown", pending)
    yield f"{len(found.stops)} stopped, {waiting}"


def _partitions(found: Status, *, has_broker: bool) -> Table:
    partitions = table(
        "partition", "#epoch", "#position", "#lag", "#pending", "#records", "#errors", "#skipped", "#lost"
    )
    for p in found.partitions:
        totals = p.totals
        lag = p.lag if has_broker else None
        counts = (lag, p.pending_rows, totals.records, totals.errors, totals.skipped, totals.lost)
        partitions.add_row(str(p.topic_partition), str(p.epoch), str(p.position), *map(number, counts))
    return partitions


def _tables(found: Status) -> Table:
    tables = table(
        "table",
        "state",
        "#loaded",
        "#pending",
        "#files",
        "#quarantined",
        "#mismatches",
        "complete until",
        "#late",
    )
    for t in found.tables:
        counts = (t.loaded_rows, t.pending_rows, t.pending_files, t.quarantined_files, t.mismatches)
        complete = hour_text(t.complete_until)
        tables.add_row(str(t.table), t.state, *map(number, counts), complete, number(t.late_rows))
    return tables
