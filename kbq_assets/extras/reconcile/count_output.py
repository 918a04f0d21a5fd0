"""The output of `kbq reconcile --counts`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kbq_assets.cli.render import number, progress_bar, table
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.reconcile.count_comparison import PartitionCount, TableCount
from kbq_assets.extras.reconcile.counts import BLIND, BLIND_SINCE, CountReport
from kbq_assets.pipelines.observation.documents import document

#: Maximum number of findings and notes to show; `--json` has all.
SHOWN: Final = 50
_TOTALS: Final = "committed loaded pending quarantined skipped erased lost unread"


def counts_json(report: CountReport) -> dict[str, object]:
    """A report as a document. ``since`` is null if all rows were counted."""
    return {
        "accounted": report.accounted,
        "since": None if report.since is None else report.since.isoformat(),
        "totals": {name: sum(getattr(p, name) for p in report.partitions) for name in _TOTALS.split()},
        "tables": [_table_json(count) for count in report.tables],
        "partitions": [_partition_json(count) for count in report.partitions],
        "findings": list(report.findings),
        "next": report.next_steps,
        "notes": list(report.all_notes),
        "not_seen": list(_not_seen(report)),
    }


def _table_json(count: TableCount) -> dict[str, object]:
    counted = document(count, "rows distinct loaded in_flight duplicates first last findings")
    return {**document(count, "table"), **document(count.range, "topic partition epoch"), **counted}


def _partition_json(count: PartitionCount) -> dict[str, object]:
    return document(count, f"topic_partition epoch position {_TOTALS} findings")


def render_counts(report: CountReport) -> RenderableType:
    """A report as text: a line per table, the partitions' sums, notes, findings, the verdict."""
    parts: list[RenderableType] = [_tables(report), Text(_sums(report))]
    parts += [Text(line, style="yellow") for line in _capped(report.all_notes)]
    parts += [Text(line, style="red") for line in _capped(report.findings)]
    parts += [Text(f"  next: {step}") for step in _capped(tuple(report.next_steps))]
    parts += [Text(f"not seen: {line}") for line in _not_seen(report)]
    counted = "all counts agree: " if report.since is None else f"counts since {report.since} agree: "
    verdict = Text(counted, style="bold")
    verdict.append("yes" if report.accounted else "no", style="green" if report.accounted else "red")
    return Group(*parts, verdict)


def _tables(report: CountReport) -> Table:
    shown = table("table", "#partitions", "#rows", "#offsets", "#loaded", "#in flight", "agrees", tight=True)
    for name in sorted({count.table for count in report.tables}):
        counts = [count for count in report.tables if count.table == name]
        partitions = len({(c.range.topic, c.range.partition) for c in counts})
        sums = (
            sum(getattr(c, field) for c in counts) for field in ("rows", "distinct", "loaded", "in_flight")
        )
        agrees = not any(c.findings for c in counts)
        mark = Text("yes", style="green") if agrees else Text("no", style="red")
        shown.add_row(str(name), *map(number, (partitions, *sums)), mark)
    return shown


def _sums(report: CountReport) -> str:
    total = {name: sum(getattr(p, name) for p in report.partitions) for name in _TOTALS.split()}
    n = {name: number(value) for name, value in total.items()}
    return (
        f"{counted(len(report.partitions), 'partition')}, {counted(total['committed'], 'row')} committed:"
        f" {n['loaded']} loaded, {n['pending']} to load, {n['quarantined']} quarantined;"
        f" {counted(total['skipped'], 'record')} skipped, {n['erased']} erased,"
        f" {counted(total['lost'], 'position')} lost, {n['unread']} unread"
    )


def _not_seen(report: CountReport) -> tuple[str, ...]:
    return (BLIND,) if report.since is None else (BLIND, BLIND_SINCE)


def _capped(lines: tuple[str, ...]) -> list[str]:
    more = [f"and {number(len(lines) - SHOWN)} more; --json has all"] if len(lines) > SHOWN else []
    return [*lines[:SHOWN], *more]


@contextmanager
def tables_counted() -> Iterator[Callable[[TableReference, int], None]]:
    """Show the number of tables counted so far, on a terminal."""
    with progress_bar("counting") as show:
        yield lambda name, tables: show(description=f"counted {name}", total=tables, advance=1)
