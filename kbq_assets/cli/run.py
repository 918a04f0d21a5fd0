"""``kbq extract``, ``kbq load``, ``kbq clean``: one bounded run each."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console

from kbq_assets.cli.context import (
    ExitCode,
    each_warehouse,
    json_option,
    pass_extractor,
    pass_loader,
    pass_operator,
)
from kbq_assets.cli.interrupts import clean_up_first
from kbq_assets.cli.render import (
    console,
    echo_json,
    failure_lines,
    name_missing_topics,
    number,
    progress_bar,
    stop_lines,
    table,
)
from kbq_assets.cli.resident import Lines, keep_extracting
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.waits import next_lines
from kbq_assets.pipelines.backup.report import BackupReport
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.loading.load import LoadReport, TableReport
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.observation.documents import document, stop_json
from kbq_assets.pipelines.operate.operator import Operator
from kbq_assets.worker.engines import spare_forker

if TYPE_CHECKING:
    from kbq_assets.core.protocol.counts import Counts
    from kbq_assets.pipelines.extraction.ports import ExtractionReport, PartitionReport, Progress


@click.command()
@click.option("--topic", "topics", multiple=True, help="Extract only these topics; may be repeated.")
@click.option("--resident", is_flag=True, help="Keep Spark running and extract repeatedly, until SIGTERM.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="With --resident: time from the start of one cycle to the next.  [default: 60]",
)
@click.option(
    "--cycles", type=click.IntRange(min=1), metavar="N", help="With --resident: end after this many cycles."
)
@json_option
@pass_extractor
def extract(
    extractor: Extractor,
    topics: tuple[str, ...],
    resident: bool,
    every: float | None,
    cycles: int | None,
    as_json: bool,
) -> None:
    """Read new records of the source list's topics into staged files and commit them.

    The work runs as tasks, on Spark or in processes (KBQ_SPARK_MASTER). If a run dies, the next one continues after the
    last committed window. Exit code 1 if a partition waits for an operator, 75 if a system did not answer.

    With --resident, one Spark application, or one set of processes, runs repeated cycles. SIGTERM ends it gracefully:
    running tasks have 20 s to end. Exit code 75 if the application is gone: start the command again.
    """
    if resident:
        lines = Lines(extraction_report_json if as_json else None)
        keep_extracting(extractor, topics, every or 60.0, cycles or 0, lines)
        return
    if every or cycles:
        raise click.UsageError("--every and --cycles need --resident")
    with clean_up_first(), spare_forker(extractor.deployment.settings):
        only = extractor.chosen(topics)
        with positions_bar() as on_progress:
            report = extractor.extract(only=only, on_progress=on_progress)
    if as_json:
        echo_json(extraction_report_json(report))
    else:
        name_missing_topics(extractor.deployment)
        _print_extraction(report, console())
    sys.exit(_extraction_code(report))


@click.command()
@click.option(
    "--table", "tables", multiple=True, metavar="DS.TABLE", help="Load only these tables; may be repeated."
)
@json_option
@each_warehouse
@pass_loader
def load(loader: Loader, tables: tuple[str, ...], as_json: bool) -> None:
    """Load committed files into the warehouse, one job at a time per table.

    A job id never loads twice, so you can run this command twice, or in two places: nothing is duplicated. Exit code 1
    if a table is parked, blocked by a check, or failed; 75 if only a system did not answer.
    """
    only = loader.chosen(tables)
    with _tables_shown() as on_table:
        report = loader.load(only=only, on_table=on_table)
    if as_json:
        echo_json(load_report_json(report))
    else:
        _print_load(report, console())
    sys.exit(_load_code(report))


@click.command()
@json_option
@pass_operator
def clean(operator: Operator, as_json: bool) -> None:
    """Delete orphans of dead runs, superseded done files, and temporary files.

    Safe while extractions and loads run: it keeps everything that a commit, backlog or job may need.
    """
    report = operator.clean()
    if as_json:
        echo_json(document(report, "orphans done_files temporary failures"))
    else:
        click.echo(
            f"deleted {counted(report.orphans, 'orphan')}, {counted(report.done_files, 'done file')},"
            f" {counted(report.temporary, 'temporary file')}"
        )
    for failure in report.failures:
        click.echo(f"not deleted: {failure}", err=True)
    sys.exit(ExitCode.TRY_AGAIN if report.failures else ExitCode.DONE)


def extraction_report_json(report: ExtractionReport) -> dict[str, object]:
    totals = report.totals
    return {
        **document(totals, "records staged errors skipped gaps event_time_fallbacks dropped_values"),
        "seconds": round(report.seconds, 3),
        "unfinished": report.unfinished,
        "waiting": len(report.plan.waiting),
        "throttled_positions": sum(t.positions for t in report.plan.throttled),
        "costs": [used.document for used in report.costs],
        "partitions": [_partition_json(p) for p in report.partitions],
        "stops": [stop_json(stop) for stop in report.stops],
        "failures": {str(tp): message for tp, message in report.failures.items()},
        "advisory_failures": dict(report.advisory_failures),
        "backup": {
            "records": report.backup.records,
            "stops": [stop_json(stop) for stop in report.backup.stops],
            "failures": {str(tp): message for tp, message in report.backup.failures.items()},
        },
        "evolved": [dataclasses.asdict(each) for each in report.evolved],
    }


def _partition_json(p: PartitionReport) -> dict[str, object]:
    read = {"from": p.first, "until": p.until, "records": p.counts.records}
    return document(p, "topic_partition", **read, windows=p.windows, files=len(p.files))


def load_report_json(report: LoadReport) -> dict[str, object]:
    fields = "table state rows files jobs quarantined message"
    return {
        "rows": report.rows,
        "seconds": round(report.seconds, 3),
        "tables": [document(t, fields) for t in report.tables],
        "refused": dict(report.refused),
        "unavailable": dict(report.unavailable),
    }


def _extraction_code(report: ExtractionReport) -> ExitCode:
    if report.stops or report.refused or report.backup.stops or report.backup.refused:
        return ExitCode.FAILED
    return ExitCode.TRY_AGAIN if report.failures or report.backup.failures else ExitCode.DONE


def _load_code(report: LoadReport) -> ExitCode:
    if report.refused:
        return ExitCode.FAILED
    troubled = [t for t in report.tables if t.state in ("blocked", "parked", "failed")]
    if not all(t.transient for t in troubled):
        return ExitCode.FAILED
    return ExitCode.TRY_AGAIN if troubled or report.unavailable else ExitCode.DONE


def _oddities(totals: Counts) -> Iterator[str]:
    if totals.event_time_fallbacks:
        yield f"{counted(totals.event_time_fallbacks, 'row')} without a business time (Kafka time used)"
    if totals.dropped_values:
        yield f"dropped {counted(totals.dropped_values, 'value')} without a decision in pii"


def _print_extraction(report: ExtractionReport, out: Console) -> None:
    if report.partitions:
        shown = table("extracted", "#from", "#until", "#records", "#errors", "#skipped", "#windows", "#files")
        for p in report.partitions:
            counts = (p.counts.records, p.counts.errors, p.counts.skipped, p.windows, len(p.files))
            shown.add_row(str(p.topic_partition), str(p.first), str(p.until), *map(number, counts))
        out.print(shown)
    totals = report.totals
    out.print(
        f"extracted {counted(totals.records, 'record')} in {report.seconds:.1f} s: {counted(totals.staged, 'row')},"
        f" {counted(totals.errors, 'error row')}, {number(totals.skipped)} skipped"
    )
    for line in _oddities(totals):
        out.print(line)
    if report.unfinished:
        out.print(f"time limit reached; {counted(report.unfinished, 'range')} left for the next run")
    if report.plan.waiting:
        out.print(
            f"{counted(len(report.plan.waiting), 'partition waits', 'partitions wait')} for more records"
        )
    if report.plan.throttled:
        left = sum(t.positions for t in report.plan.throttled)
        out.print(f"{counted(left, 'position')} left for later runs because of limits")
    for message in report.advisory_failures.values():
        out.print(f"advisory group not updated: {message}", style="yellow")
    for each in report.evolved:
        out.print(f"schema: {each}")
    for line in (*failure_lines(report), *stop_lines(report.stops), *_backup_lines(report.backup)):
        out.print(line, style="yellow")


def _backup_lines(report: BackupReport) -> Iterator[str]:
    if report.windows:
        yield f"backed up {counted(report.records, 'record')}"
    for line in (*failure_lines(report), *stop_lines(report.stops)):
        yield f"backup {line}"


def _print_load(report: LoadReport, out: Console) -> None:
    busy = [t for t in report.tables if t.rows or t.state != "idle"]
    if busy:
        shown = table("loaded", "state", "#rows", "#files", "#jobs", "#quarantined")
        for t in busy:
            shown.add_row(
                str(t.table),
                "loaded" if t.state == "idle" else t.state,
                *map(number, (t.rows, t.files, len(t.jobs), t.quarantined)),
            )
        out.print(shown)
    tables = sum(t.rows > 0 for t in report.tables)
    out.print(
        f"loaded {counted(report.rows, 'row')} into {counted(tables, 'table')} in {report.seconds:.1f} s"
    )
    for path, why in report.refused.items():
        out.print(f"failed: {path}: {why}", style="yellow")
    for path, why in report.unavailable.items():
        out.print(f"interrupted: {path}: {why}", style="yellow")
    for t in report.tables:
        if t.message:
            out.print(f"{t.state}: {t.table}: {t.message}", style="yellow")
        for line in next_lines(t.commands):
            out.print(line, style="yellow")


@contextmanager
def positions_bar() -> Iterator[Callable[[Progress], None]]:
    """A progress bar of published positions, on a terminal."""
    with progress_bar("starting") as show:
        yield lambda p: show(
            description=counted(p.records, "record"), total=p.positions, completed=p.published
        )


@contextmanager
def _tables_shown() -> Iterator[Callable[[TableReport], None]]:
    """Show the last loaded table, on a terminal."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda report: None
        return
    with err.status("loading") as shown:
        yield lambda report: shown.update(f"loading: {report.table}: {counted(report.rows, 'row')}")
