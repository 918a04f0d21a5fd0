"""``kbq status``: where everything stands."""

from __future__ import annotations

import click
from rich.console import Console

from kbq_assets.cli.context import json_option, pass_platform
from kbq_assets.cli.render import console, echo_json, number, stop_json, stop_lines, table
from kbq_assets.pipelines.platform import Platform
from kbq_assets.pipelines.status import PartitionStatus, Status, TableStatus


@click.command()
@json_option
@pass_platform
def status(platform: Platform, as_json: bool) -> None:
    """Show every partition's position, lag and errors, every table's backlog, and what waits for an operator.

    `lag` counts positions up to the broker's last stable offset, `pending` rows that are committed and not yet
    loaded. What is stopped or parked is shown with the commands that go on.
    """
    found = platform.status()
    if as_json:
        echo_json(status_json(found))
    else:
        _print_status(found, console())


def status_json(found: Status) -> dict[str, object]:
    """A status as a document."""
    return {
        "partitions": [_partition_json(p) for p in found.partitions],
        "new_partitions": found.new_partitions,
        "tables": [_table_json(t) for t in found.tables],
        "stops": [stop_json(stop) for stop in found.stops],
    }


def _partition_json(p: PartitionStatus) -> dict[str, object]:
    return {
        "topic": p.topic_partition.topic,
        "partition": p.topic_partition.partition,
        "epoch": p.epoch,
        "position": p.position,
        "lag": p.lag,
        "pending_windows": p.pending_windows,
        "pending_rows": p.pending_rows,
        "records": p.totals.records,
        "gaps": p.totals.gaps,
        "lost": p.totals.lost,
        "errors": p.totals.errors,
        "skipped": p.totals.skipped,
        "rows": dict(p.totals.rows),
    }


def _table_json(t: TableStatus) -> dict[str, object]:
    return {
        "table": str(t.table),
        "state": t.state,
        "loaded_rows": t.loaded_rows,
        "pending_rows": t.pending_rows,
        "pending_files": t.pending_files,
        "quarantined_files": t.quarantined_files,
        "mismatches": t.mismatches,
        "message": t.message,
    }


def _print_status(found: Status, out: Console) -> None:
    if found.partitions:
        partitions = table(
            "partition", "#epoch", "#position", "#lag", "#pending", "#records", "#errors", "#skipped", "#lost"
        )
        for p in found.partitions:
            totals = p.totals
            counts = (p.lag, p.pending_rows, totals.records, totals.errors, totals.skipped, totals.lost)
            partitions.add_row(str(p.topic_partition), str(p.epoch), str(p.position), *map(number, counts))
        out.print(partitions)
    if found.tables:
        out.print()
        out.print(_tables(found))
    out.print()
    lag, pending = sum(p.lag for p in found.partitions), sum(t.pending_rows for t in found.tables)
    out.print(
        f"lag {number(lag)} positions, {number(found.new_partitions)} new partitions;"
        f" {number(pending)} rows to load; {len(found.stops)} stopped,"
        f" {sum(t.state == 'parked' for t in found.tables)} parked"
    )
    for line in (
        *stop_lines(found.stops),
        *(f"parked: {t.table}: {t.message}" for t in found.tables if t.message),
    ):
        out.print(line, style="yellow")


def _tables(found: Status) -> object:
    tables = table("table", "state", "#loaded", "#pending", "#files", "#quarantined", "#mismatches")
    for t in found.tables:
        counts = (t.loaded_rows, t.pending_rows, t.pending_files, t.quarantined_files, t.mismatches)
        tables.add_row(str(t.table), t.state, *map(number, counts))
    return tables
