"""``kbq compact`` and ``kbq expire``: rewrite a lake's small files, and delete what is too old."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import click

from kbq_assets.cli.context import ExitCode, each_warehouse, json_option, pass_compactor
from kbq_assets.cli.render import console, echo_json, number, size, table
from kbq_assets.core.compaction.expiry import ExpiryPlan
from kbq_assets.core.compaction.model import CompactionPlan
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.compaction.expiry import ExpiryReport
from kbq_assets.pipelines.compaction.table import CompactionReport
from kbq_assets.pipelines.observation.documents import document

T = TypeVar("T")
_NO_LAKE: Final = "no lake: nothing to {}"
_tables = click.argument("tables", metavar="[DS.TABLE]...", nargs=-1)


@click.command()
@_tables
@click.option("--plan", "only_plan", is_flag=True, help="Show what would be done; change nothing.")
@json_option
@each_warehouse
@pass_compactor
def compact(compactor: Compactor, tables: tuple[str, ...], only_plan: bool, as_json: bool) -> None:
    """Rewrite small files of an Iceberg warehouse's tables into large ones.

    No row is lost or duplicated, loads and readers continue, and you can stop the command at any time. More than
    256 MB are rewritten in Spark tasks. Exit code 1 if a partition or table failed, 75 if a system did not answer.
    """
    if only_plan:
        _run(compactor, tables, as_json, compactor.plan, _plan_document, _show_plans)
    else:
        reports = _run(compactor, tables, as_json, compactor.compact, _document, _show)
        sys.exit(_code(reports))


@click.command()
@_tables
@click.option(
    "--plan", "only_plan", is_flag=True, help="Show the rows that would be dropped; change nothing."
)
@json_option
@each_warehouse
@pass_compactor
def expire(compactor: Compactor, tables: tuple[str, ...], only_plan: bool, as_json: bool) -> None:
    """Drop rows of an Iceberg warehouse that are older than their topics' `partition_expiry_days`.

    Drops whole days, in one commit per table. Then drops old snapshots, and files that no snapshot needs. Exit code 1
    if a table failed, 75 if a system did not answer.
    """
    if only_plan:
        _run(compactor, tables, as_json, compactor.plan_expiry, _expiry_document, _show_expiries)
    else:
        reports = _run(compactor, tables, as_json, compactor.expire, _expired_document, _show_expired)
        sys.exit(_code(reports))


def _run(
    compactor: Compactor,
    tables: tuple[str, ...],
    as_json: bool,
    step: Callable[[TableReference], T],
    document_of: Callable[[T], object],
    show: Callable[[Sequence[T]], None],
) -> Sequence[T]:
    """Run a step for each table and print the results. If there are several warehouses, those that are not lakes are
    skipped."""
    if not compactor.is_lake and len(compactor.deployment.settings.warehouses) > 1:
        echo_json([]) if as_json else click.echo(_NO_LAKE.format(click.get_current_context().info_name))
        return ()
    found = [step(each) for each in compactor.chosen(tables)]
    echo_json([document_of(each) for each in found]) if as_json else show(found)
    return found


def _show_expiries(plans: Sequence[ExpiryPlan]) -> None:
    shown = table("table", "#days kept", "#files to drop", "#rows", "#bytes")
    for plan in plans:
        days = number(plan.days) if plan.days else "all"
        shown.add_row(str(plan.table), days, number(len(plan.paths)), number(plan.rows), size(plan.bytes))
    console().print(shown)


def _expiry_document(plan: ExpiryPlan) -> dict[str, object]:
    return document(plan, "table days", files=len(plan.paths), rows=plan.rows, bytes=plan.bytes)


def _show_expired(reports: Sequence[ExpiryReport]) -> None:
    for each in reports:
        click.echo(
            f"{each.table}: dropped {counted(each.rows, 'row')} in {counted(each.files, 'file')},"
            f" {counted(each.tidied.snapshots, 'snapshot')}, {counted(each.tidied.orphans, 'orphan')}"
        )
        if each.message:
            click.echo(f"stopped early: {each.table}: {each.message}")


def _expired_document(report: ExpiryReport) -> dict[str, object]:
    tidied = document(report.tidied, "snapshots orphans")
    return document(report, "table rows files", **tidied, message=report.message)


def _show_plans(plans: Sequence[CompactionPlan]) -> None:
    shown = table(
        "table", "#files", "#files after", "#reads saved", "#whole days", "#bytes", "#rewritten", "left alone"
    )
    for plan in plans:
        counts = map(number, (plan.files, plan.files_after, plan.reads_saved, plan.joined_days))
        shown.add_row(str(plan.table), *counts, size(plan.bytes), size(plan.rewritten_bytes), plan.left_alone)
    out = console()
    out.print(shown)
    saved = sum(plan.reads_saved for plan in plans)
    out.print(
        f"a query of all tables opens {counted(saved, 'fewer file')}" if saved else "nothing to compact"
    )


def _plan_document(plan: CompactionPlan) -> dict[str, object]:
    return {
        "table": str(plan.table),
        "files_before": plan.files,
        **document(plan, "files_after reads_saved"),
        "whole_days": plan.joined_days,
        "bytes_before": plan.bytes,
        "bytes_rewritten": plan.rewritten_bytes,
        "left_alone": plan.left_alone,
        "groups": [
            {
                "partition": g.partition,
                "files": len(g.paths),
                **document(g, "bytes rows"),
                "whole_day": g.coarse,
            }
            for g in plan.groups
        ],
    }


def _show(reports: Sequence[CompactionReport]) -> None:
    shown = table("compacted", "#files", "#files after", "#bytes", "#bytes after", "#commits")
    for each in reports:
        files = map(number, (each.files_before, each.files_after))
        sizes = map(size, (each.bytes_before, each.bytes_after))
        shown.add_row(str(each.table), *files, *sizes, number(each.commits))
    out = console()
    out.print(shown)
    for each in reports:
        for partition, why in each.failures.items():
            out.print(f"failed: {each.table}: {partition}: {why}", style="yellow")
        if each.message:
            out.print(f"stopped early: {each.table}: {each.message}", style="yellow")


def _document(report: CompactionReport) -> dict[str, object]:
    return document(
        report, "table files_before files_after bytes_before bytes_after commits failures message"
    )


def _code(reports: Sequence[CompactionReport | ExpiryReport]) -> ExitCode:
    failures = (each.failures for each in reports if isinstance(each, CompactionReport))
    if any(failures) or any(each.message and not each.transient for each in reports):
        return ExitCode.FAILED
    return ExitCode.TRY_AGAIN if any(each.message for each in reports) else ExitCode.DONE
