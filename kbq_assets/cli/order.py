"""``kbq order``: shows the batches of ordered tables, and records decisions about them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import click

from kbq_assets.cli.context import (
    confirm,
    each_warehouse,
    json_option,
    one_warehouse,
    pass_deployment,
    user,
    yes_option,
)
from kbq_assets.cli.render import console, echo_json, number, table, utc_time
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import next_lines
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.observation.documents import document
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.ordering.orders import Orders, OrderStatus

_table = click.argument("name", metavar="DS.TABLE")
_reason = click.option("--reason", default="", help="The reason, for the table's audit list.")


@click.group()
def order() -> None:
    """Show and control the batches of tables with an `order`, a `gate` or a `load` other than append."""


@order.command()
@click.argument("names", metavar="[DS.TABLE]...", nargs=-1)
@click.option("--audit", is_flag=True, help="Also list the decisions about each table.")
@json_option
@each_warehouse
@pass_deployment
def status(deployment: Deployment, names: tuple[str, ...], audit: bool, as_json: bool) -> None:
    """Show the current batch, what waits behind it, and what stops it."""
    orders = Orders(deployment)
    found = orders.status(map(TableReference.parse, names))
    decisions = {each.table: orders.audit(each.table) if audit else [] for each in found}
    if as_json:
        echo_json([_document(each, decisions[each.table]) for each in found])
        return
    if not found:
        click.echo("no table has an order")
        return
    shown = table("table", "#batch", "state", "job", "#files", "#windows", "#rows", "oldest")
    for each in found:
        counts = map(number, (each.files, each.windows, each.rows))
        shown.add_row(
            str(each.table), str(each.current), each.state, each.job_id, *counts, utc_time(each.oldest_ms)
        )
    out = console()
    out.print(shown)
    for each in found:
        if each.billed:
            that_day = (
                f"{number(each.billed)} bytes for the last statement, {number(each.billed_that_day)} that day"
            )
            out.print(f"{each.table}: billed {that_day}")
        if each.switch:
            out.print(f"{each.table}: {each.switch}")
        if each.why:
            out.print(f"{each.state}: {each.table}: {each.why}", style="yellow")
        for line in next_lines(each.commands):
            out.print(line, style="yellow")
        for gate in each.order.gates:
            verdict = "green" if gate.green else f"red: {gate.message}"
            out.print(
                f"{each.table}: batch {gate.batch}: gate {gate.gate} was {verdict} at {utc_time(gate.at_ms)}"
            )
        for entry in decisions[each.table]:
            out.print(f"{each.table}: {_audit_line(entry)}")


def _decision(decide: Callable[..., Proposal]) -> Callable[..., None]:
    """A command that asks for confirmation, and records a decision about one table under the user's name."""

    @pass_deployment
    def confirmed(deployment: Deployment, /, name: str, yes: bool, **options: object) -> None:
        orders, of = Orders(deployment), TableReference.parse(name)
        confirm([decide(orders, of, by=user(), **options)], yes=yes)

    return yes_option(one_warehouse(functools.update_wrapper(confirmed, decide)))


@order.command()
@_table
@_decision
def retry(orders: Orders, of: TableReference, by: str) -> Proposal:
    """Load the failed batch again after you have fixed the cause."""
    return orders.retry(of, by)


@order.command()
@_table
@click.option("--batch", type=click.IntRange(min=1), required=True, help="The batch that failed.")
@click.option("--reason", required=True, help="The reason, for the table's audit list.")
@_decision
def skip(orders: Orders, of: TableReference, by: str, batch: int, reason: str) -> Proposal:
    """Skip the failed batch, because you applied its rows by hand or give them up."""
    return orders.skip(of, batch, reason, by)


@order.command()
@_table
@_reason
@_decision
def hold(orders: Orders, of: TableReference, by: str, reason: str) -> Proposal:
    """Hold a table: no batch starts, and files wait in order until `kbq order release`."""
    return orders.hold(of, reason, by)


@order.command()
@_table
@_reason
@_decision
def release(orders: Orders, of: TableReference, by: str, reason: str) -> Proposal:
    """Release a held table: its batches start again."""
    return orders.release(of, reason, by)


@order.command("continue")
@_table
@_reason
@_decision
def go_on(orders: Orders, of: TableReference, by: str, reason: str) -> Proposal:
    """Start the next batch: the last one counts as validated, regardless of its gates."""
    return orders.go_on(of, reason, by)


def _audit_line(entry: AuditEntry) -> str:
    by, why = f" by {entry.by}" if entry.by else "", f": {entry.reason}" if entry.reason else ""
    rows = f" ({counted(entry.rows, 'row')} of {counted(entry.files, 'file')})" if entry.files else ""
    batch = f" batch {entry.batch}" if entry.batch else ""
    return f"{utc_time(entry.at_ms)} {entry.action}{batch}{rows}{by}{why}"


def _document(status: OrderStatus, decisions: list[AuditEntry]) -> dict[str, object]:
    order = status.order
    return {
        "table": str(status.table),
        "batch": status.current,
        **document(status, "state why commands"),
        "job": status.job_id,
        **document(status, "files windows rows oldest_ms"),
        "applied": order.settled,
        "validated": order.validated,
        "bytes_billed": status.billed,
        "bytes_billed_that_day": status.billed_that_day,
        "switch": status.switch,
        "gates": [document(each, "gate batch green message at_ms") for each in order.gates],
        "failed": [file.path for file in order.failed.files] if order.failed else [],
        "audit": [{k: v for k, v in dataclasses.asdict(each).items() if k != "extra"} for each in decisions],
    }
