"""``kbq reconcile``: accounts for every record."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import NoReturn

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kbq_assets.cli.context import ExitCode, Part, each_warehouse, json_option
from kbq_assets.cli.render import console, echo_json, number, table
from kbq_assets.core.errors import NotFound
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.extras.reconcile.account import PartitionAccount
from kbq_assets.extras.reconcile.count_output import counts_json, render_counts, tables_counted
from kbq_assets.extras.reconcile.counts import CountSelection
from kbq_assets.extras.reconcile.reconciler import Reconciler
from kbq_assets.extras.reconcile.records import Reconciliation
from kbq_assets.extras.reconcile.values import CHOICES, SAMPLE, SHOWN, ValueReport
from kbq_assets.pipelines.observation.documents import document, stop_json

pass_reconciler: Part[Reconciler] = Part("reconciler")


@click.command()
@click.option("--topic", "topics", multiple=True, help="Only these topics; may be repeated.")
@click.option(
    "--counts", is_flag=True, help="Compare counts of rows; read no record. For tables of any size."
)
@click.option(
    "--table", "tables", multiple=True, metavar="DS.TABLE", help="With --counts: only these tables."
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="DATE",
    help="With --counts: only rows with this event date or a later one.",
)
@click.option(
    "--values",
    type=click.Choice(CHOICES),
    default=SAMPLE,
    show_default=True,
    help="Rows whose values are compared with the broker's records.",
)
@json_option
@each_warehouse
@pass_reconciler
def reconcile(
    reconciler: Reconciler,
    topics: tuple[str, ...],
    counts: bool,
    tables: tuple[str, ...],
    since: datetime | None,
    values: str,
    as_json: bool,
) -> None:
    """Compare the broker, the warehouse and the producers' log, record by record. Exit code 1 if they differ.

    Each run reads the broker's offsets and the warehouse's rows again. The commit's own counters are compared, but
    never trusted. The output has the offsets of missing and duplicated records, and the next commands. The exit code is
    also 1 if a partition is stopped, but not for unread records.

    With --counts, one query per table counts rows and offsets instead, and the counts are compared with the rows loaded
    and committed. The output states what counts cannot show.
    """
    if not counts and (tables or since):
        raise click.UsageError("--table and --since need --counts")
    if counts:
        _reconcile_counts(reconciler, topics, tables, since, as_json=as_json)
    result = reconciler.reconcile(frozenset(topics) or None, values)
    if unknown := set(topics) - set(result.topics):
        raise NotFound(
            f"nothing was extracted from {', '.join(sorted(unknown))}",
            next_step="kbq status lists the topics",
        )
    if as_json:
        echo_json(reconciliation_json(result))
    else:
        console().print(render_reconciliation(result))
    sys.exit(ExitCode.DONE if result.is_whole else ExitCode.FAILED)


def _reconcile_counts(
    reconciler: Reconciler,
    topics: tuple[str, ...],
    tables: tuple[str, ...],
    since: datetime | None,
    *,
    as_json: bool,
) -> NoReturn:
    selection = CountSelection(
        since=since.date() if since else None,
        topics=frozenset(topics) or None,
        tables=frozenset(map(TableReference.parse, tables)) or None,
    )
    with tables_counted() as on_table:
        report = reconciler.counts(selection, on_table=on_table)
    if as_json:
        echo_json(counts_json(report))
    else:
        console().print(render_counts(report))
    sys.exit(ExitCode.DONE if report.accounted else ExitCode.FAILED)


def reconciliation_json(result: Reconciliation) -> dict[str, object]:
    """An account as a document. ``produced`` is the producers' count if there is one, otherwise the broker's."""
    return {
        "accounted": result.accounted,
        "verdict": result.verdict,
        "unread": result.unread,
        "stops": [stop_json(stop) for stop in result.stops],
        "problems": list(result.problems),
        "notes": list(result.notes),
        "next": result.next_steps,
        "values": {"compared": result.values.compared, **_value_lists(result)},
        "totals": result.totals(),
        "topics": {topic: result.totals(topic) for topic in result.topics},
        "upserts": [
            document(account, "table rows superseded deleted findings") for account in result.upserts
        ],
        "partitions": [_account_json(account) for account in result.partitions],
    }


def render_reconciliation(result: Reconciliation) -> RenderableType:
    """An account as text: a line per partition, totals, pending rows, findings, the verdict."""
    notes = [Text(f"{_name(a)}: {other}") for a in result.partitions if (other := _other(a))]
    notes += [Text(note, style="yellow") for note in result.notes]
    notes += [Text(str(account)) for account in result.upserts if not account.is_unknown]
    if result.values != ValueReport():
        compared = counted(
            result.values.compared, "row compared with its record", "rows compared with their records"
        )
        notes.append(Text(f"values: {compared}, {counted(len(result.values.findings), 'differs', 'differ')}"))
    notes += [Text(f"values not compared: {why}", style="yellow") for why in result.values.problems]
    notes += [Text(f"columns not compared: {why}") for why in result.values.excluded]
    findings = [Text(finding, style="red") for finding in result.findings]
    stops = [Text(f"{_place(stop)}: {stop.reason}: {stop.message}", style="yellow") for stop in result.stops]
    steps = [Text(f"  next: {step}") for step in result.next_steps]
    return Group(_accounts(result), *notes, *findings, *stops, *steps, _verdict(result))


def _value_lists(result: Reconciliation) -> dict[str, list[str]]:
    values = result.values
    return {
        "differing": list(values.findings),
        "not_compared": list(values.problems),
        "not_compared_topics": list(values.uncompared),
        "not_compared_columns": list(values.excluded),
    }


def _place(stop: PartitionStop) -> str:
    tp = stop.topic_partition
    return f"stopped: {tp.topic if tp.partition < 0 else tp}"


def _verdict(result: Reconciliation) -> Text:
    verdict = Text("every record accounted for: ", style="bold")
    style = {"yes": "green", "no": "red"}.get(result.verdict, "yellow")
    verdict.append(result.verdict, style=style)
    if result.unread:
        verdict.append(f"; {counted(result.unread, 'record')} not read yet")
    if result.stops:
        verdict.append(f"; {number(len(result.stops))} stopped")
    if topics := result.values.uncompared:
        more = f" and {number(len(topics) - SHOWN)} more" if len(topics) > SHOWN else ""
        verdict.append(f"; values not compared: {', '.join(topics[:SHOWN])}{more}")
    return verdict


def _accounts(result: Reconciliation) -> Table:
    titles = ("#offsets", "#gaps", "#produced", "#staged", "#loaded", "#errors", "#skipped", "whole")
    shown = table("partition", *titles, tight=True)
    for account in result.partitions:
        counts = (
            account.read + account.gaps + account.retired,
            account.gaps,
            _produced(account),
            account.pending + account.rows + account.quarantined,
            account.rows,
            account.errors,
            account.skipped,
        )
        mark = Text("yes", style="green") if account.accounted else Text("no", style="red")
        shown.add_row(_name(account), *map(number, counts), mark)
    gaps = sum(account.gaps for account in result.partitions)
    offsets = sum(account.read + account.gaps + account.retired for account in result.partitions)
    shown.add_row("total", *map(number, (offsets, gaps, *_in_order(result.totals()))), style="bold")
    return shown


def _in_order(totals: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(totals[name] for name in ("produced", "staged", "loaded", "errors", "skipped"))


def _name(account: PartitionAccount) -> str:
    return (
        f"{account.topic_partition} epoch {account.epoch}"
        if account.epoch > 1
        else str(account.topic_partition)
    )


def _produced(account: PartitionAccount) -> int:
    return account.read + account.retired if account.produced is None else account.produced


def _other(account: PartitionAccount) -> str:
    """Columns that are rarely filled."""
    counts = {
        "to load": account.pending,
        "quarantined": account.quarantined,
        "erased": account.erased,
        "lost": account.lost,
        "unread": account.unread,
    }
    return ", ".join(f"{number(count)} {name}" for name, count in counts.items() if count)


def _account_json(account: PartitionAccount) -> dict[str, object]:
    return {
        **document(account, "topic_partition epoch position"),
        "produced": _produced(account),
        **document(account, "read gaps retired pending"),
        "staged": account.pending + account.rows + account.quarantined,
        "loaded": account.rows,
        **document(account, "errors skipped erased quarantined lost unread accounted findings"),
    }
