"""Loads and checks as Dagster metadata. Lists are capped, and numbers stay numbers, so Dagster plots them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dagster as dg

from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.plurals import counted
from kbq_assets.core.statements.table_statements import TableStatements
from kbq_assets.defs.translator import column_schema
from kbq_assets.pipelines.loading.load import LoadReport, TableReport
from kbq_assets.pipelines.observation.status import TableStatus

#: Most files in a list, and most lines or table rows, in metadata: the UI reads events whole.
SHOWN_FILES: Final = 20
SHOWN_LINES: Final = 50
#: An older Kafka timestamp is the time of an old event, set by a producer. It is not a delay, and would distort a plot.
MAX_AGE_SECONDS: Final = 30 * 24 * 3600.0

Metadata = dict[str, dg.MetadataValue | dg.TableSchema | int | float | str]


def table_metadata(report: TableReport, status: TableStatus | None, now_ms: int) -> Metadata:
    """Metadata of one table's materialization. ``now_ms`` is the time when the rows became visible."""
    metadata: Metadata = {"rows": report.rows, "files": report.files, "bytes": report.bytes}
    if status is not None:
        metadata |= _rows(status) | _order(status)
        metadata["pending_rows"] = status.pending_rows
        metadata["late_rows"] = status.late_rows
        if status.complete_until:
            metadata["complete_until"] = dg.MetadataValue.timestamp(status.complete_until * 3600.0)
    metadata |= age("log_to_table_seconds", report.oldest_ms, now_ms)
    metadata |= {
        "quarantined_files": report.quarantined,
        "load_jobs": len(report.jobs),
        "state": report.state,
    }
    if report.message:
        metadata["message"] = report.message
    if report.columns:
        metadata["dagster/column_schema"] = column_schema(report.columns)
    return {**metadata, "jobs": ", ".join(report.jobs[-SHOWN_FILES:])}


def _rows(status: TableStatus) -> Metadata:
    """The number of rows in a table. With statements, loaded records and rows differ, so this is the number of records,
    the last batch, and what BigQuery billed."""
    applied = status.batches.statements
    if applied == TableStatements():
        return {"dagster/row_count": status.loaded_rows, "rows_in_table": status.loaded_rows}
    found: Metadata = {
        "load": applied.kind,
        "records_applied": status.loaded_rows,
        "last_batch": applied.applied,
        "bytes_billed": applied.billed,
    }
    return found | {"load_change": status.batches.switch} if status.batches.switch else found


def _order(status: TableStatus) -> Metadata:
    """The batches of an ordered table; {} without an order."""
    order = status.batches.order
    if not order.rule.by:
        return {}
    found: Metadata = {
        "order": order.rule.by,
        "settled_batch": order.settled,
        "current_batch": order.next,
        "waiting_files": status.pending_files,
    }
    if order.rule.gates:
        found |= {"validated_batch": order.validated, "open_gates": ", ".join(order.open_gates())}
    if order.why_held:
        found["held"] = order.why_held
    if order.failed is not None:
        found["failed_batch"] = f"{order.failed.number}: {order.failed.error}"
    return found


def age(name: str, then_ms: int, now_ms: int) -> Metadata:
    """Seconds since a Kafka timestamp; {} without one, or if it is older than MAX_AGE_SECONDS."""
    seconds = (now_ms - then_ms) / 1000
    return {name: round(max(0.0, seconds), 1)} if then_ms > 0 and seconds < MAX_AGE_SECONDS else {}


def load_metadata(report: LoadReport) -> Metadata:
    """Metadata of a whole load. Its names differ from those of partitions, so plots do not mix them."""
    return {
        "summary": dg.MetadataValue.md(load_summary(report)),
        "run_rows": report.rows,
        "run_files": sum(t.files for t in report.tables),
        "run_bytes": sum(t.bytes for t in report.tables),
        "changed_tables": sum(t.rows > 0 for t in report.tables),
        "run_jobs": sum(len(t.jobs) for t in report.tables),
        "parked_tables": sum(t.state == "parked" for t in report.tables),
        "run_seconds": round(report.seconds, 3),
        "run_rows_per_second": round(report.rows / report.seconds, 1) if report.seconds > 0 else 0.0,
    }


def load_headline(report: LoadReport) -> str:
    """One line about a load."""
    tables = sum(t.rows > 0 for t in report.tables)
    return f"{counted(report.rows, 'row')} into {counted(tables, 'table')} in {report.seconds:.1f} s"


def load_summary(report: LoadReport) -> str:
    """A Markdown report of a load, failed tables first."""
    changed = [t for t in report.tables if t.rows or t.state != "idle"]
    changed.sort(key=lambda t: (t.state not in ("failed", "parked"), -t.rows))
    lines = [load_headline(report)]
    rows = [(t.table, t.state, f"{t.rows:,}", f"{t.files:,}", t.message) for t in changed]
    return "\n".join(lines + markdown_table(("table", "state", "rows", "files", ""), rows))


def stop_line(stop: PartitionStop) -> str:
    """One line about a stopped partition, with the commands that resume it."""
    tp = stop.topic_partition
    name = tp.topic if tp.partition < 0 else str(tp)
    return f"{name}: {stop.reason}: {stop.message}; next: " + " or ".join(f"`{c}`" for c in stop.commands)


def markdown_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], most: int = SHOWN_LINES
) -> list[str]:
    """Lines of a Markdown table, at most ``most`` rows."""
    if not rows:
        return []
    lines = ["", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows[:most]]
    if len(rows) > most:
        lines.append(f"\n…and {len(rows) - most} more")
    return [*lines, ""]
