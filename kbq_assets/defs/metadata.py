"""Reports as Dagster metadata. Pure functions; lists are capped; numbers stay numbers, to be plotted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import dagster as dg

from kbq_assets.core.commits import StagedFile
from kbq_assets.core.cost import Cost
from kbq_assets.core.offsets import TopicPartition
from kbq_assets.core.planning import PartitionStop
from kbq_assets.defs.translator import StagedKey
from kbq_assets.pipelines.counting import TableCount
from kbq_assets.pipelines.extract import ExtractionReport, PartitionReport
from kbq_assets.pipelines.load import LoadReport, TableReport
from kbq_assets.pipelines.reconcile_counts import CountReport
from kbq_assets.pipelines.status import TableStatus

#: Rows of a table in metadata: each event is read whole by the UI.
SHOWN_FILES: Final = 20
SHOWN_LINES: Final = 50

Metadata = dict[str, dg.MetadataValue | int | float | str]


@dataclass(frozen=True)
class StagedSlice:
    """What one extraction staged of one topic-partition for one table. ``lag``: positions it left unread."""

    key: StagedKey
    partition: PartitionReport
    files: tuple[StagedFile, ...]
    lag: int
    seconds: float

    @property
    def rows(self) -> int:
        """Rows staged."""
        return sum(f.rows for f in self.files)


def staged_slices(report: ExtractionReport) -> list[StagedSlice]:
    """What an extraction changed, per partition of `staged_files`."""
    ends = report.plan.ends
    slices = []
    for partition in report.partitions:
        tp = partition.topic_partition
        lag = max(0, ends.get(tp, partition.until) - partition.until)
        for table in sorted({f.table for f in partition.files}):
            files = tuple(f for f in partition.files if f.table == table)
            slices.append(StagedSlice(StagedKey(tp, table), partition, files, lag, report.seconds))
    return slices


def staged_metadata(piece: StagedSlice) -> Metadata:
    """Metadata of one staged partition's materialisation."""
    files, counts = piece.files, piece.partition.counts
    return {
        "rows": piece.rows,
        "bytes": sum(f.bytes for f in files),
        "bytes_before_compression": sum(f.raw_bytes for f in files),
        "files": len(files),
        "first_offset": min(f.name.first_offset for f in files),
        "last_offset": max(f.until for f in files) - 1,
        "lag_records": piece.lag,
        "error_rows": counts.errors,
        "skipped_records": counts.skipped,
        "seconds": round(piece.seconds, 3),
        "records_per_second": round(counts.records / piece.seconds, 1) if piece.seconds > 0 else 0.0,
        "schemas": ", ".join(sorted({f"{f.name.schema_id} ({f.fingerprint[:12]})" for f in files})),
        "staged_files": dg.MetadataValue.table([_file_record(f) for f in files[-SHOWN_FILES:]]),
    }


def _file_record(file: StagedFile) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "path": file.path,
            "rows": file.rows,
            "bytes": file.bytes,
            "first_offset": file.name.first_offset,
            "last_offset": file.until - 1,
            "schema_id": file.name.schema_id,
        }
    )


def table_metadata(report: TableReport, status: TableStatus | None) -> Metadata:
    """Metadata of one table's materialisation."""
    metadata: Metadata = {
        "rows": report.rows,
        "files": report.files,
        "quarantined_files": report.quarantined,
        "state": report.state,
        "jobs": ", ".join(report.jobs[-SHOWN_FILES:]),
    }
    if report.message:
        metadata["message"] = report.message
    if status is not None:
        metadata["dagster/row_count"] = status.loaded_rows
        metadata["pending_rows"] = status.pending_rows
    return metadata


def extraction_metadata(report: ExtractionReport) -> Metadata:
    """Metadata of one extraction as a whole."""
    totals = report.totals
    costs: Metadata = {}
    if report.costs:  # Dagster refuses a table without rows
        dearest = sorted(report.costs, key=lambda cost: -(cost.cost or 0.0))[:SHOWN_LINES]
        costs["costs"] = dg.MetadataValue.table([_cost_record(cost) for cost in dearest])
    return {
        **costs,
        "summary": dg.MetadataValue.md(extraction_summary(report)),
        "waiting_partitions": len(report.plan.waiting),
        "throttled_positions": sum(throttled.positions for throttled in report.plan.throttled),
        "core_seconds": round(sum(cost.usage.core_seconds for cost in report.costs), 3),
        "records": totals.records,
        "rows": totals.staged,
        "error_rows": totals.errors,
        "skipped_records": totals.skipped,
        "value_bytes": totals.bytes,
        "files": sum(len(p.files) for p in report.partitions),
        "stopped_partitions": len(report.stops),
        "failed_partitions": len(report.failures),
        "seconds": round(report.seconds, 3),
        "records_per_second": round(totals.records / report.seconds, 1) if report.seconds > 0 else 0.0,
    }


def _cost_record(cost: Cost) -> dg.TableRecord:
    usage = cost.usage
    return dg.TableRecord(
        {
            "topic": usage.topic,
            "owner": usage.owner,
            "cost_center": usage.cost_center,
            "records": usage.records,
            "bytes": usage.bytes,
            "tasks": usage.tasks,
            "task_seconds": round(usage.seconds, 3),
            "core_seconds": round(usage.core_seconds, 3),
            "cost": "" if cost.cost is None else round(cost.cost, 6),
        }
    )


def extraction_headline(report: ExtractionReport) -> str:
    """An extraction in one line."""
    totals = report.totals
    return (
        f"{totals.records:,} records of {len(report.partitions)} partitions in {report.seconds:.1f} s: "
        f"{totals.staged:,} rows, {totals.errors:,} error rows, {totals.skipped:,} skipped"
    )


def extraction_summary(report: ExtractionReport) -> str:
    """An extraction in Markdown."""
    lines = [extraction_headline(report)]
    rows = [
        (p.topic_partition, f"[{p.first:,}, {p.until:,})", f"{p.counts.records:,}", f"{p.counts.errors:,}")
        for p in report.partitions
    ]
    lines += _table(("partition", "positions", "records", "errors"), rows)
    lines += [f"- ⚠ {tp}: {message}" for tp, message in report.failures.items()]
    lines += [f"- ⛔ {stop_line(stop)}" for stop in report.stops]
    return "\n".join(lines)


def load_metadata(report: LoadReport) -> Metadata:
    """Metadata of one load as a whole."""
    return {
        "summary": dg.MetadataValue.md(load_summary(report)),
        "rows": report.rows,
        "files": sum(t.files for t in report.tables),
        "jobs": sum(len(t.jobs) for t in report.tables),
        "parked_tables": sum(t.state == "parked" for t in report.tables),
        "seconds": round(report.seconds, 3),
        "rows_per_second": round(report.rows / report.seconds, 1) if report.seconds > 0 else 0.0,
    }


def load_headline(report: LoadReport) -> str:
    """A load in one line."""
    tables = sum(t.rows > 0 for t in report.tables)
    return f"{report.rows:,} rows into {tables} tables in {report.seconds:.1f} s"


def load_summary(report: LoadReport) -> str:
    """A load in Markdown."""
    changed = [t for t in report.tables if t.rows or t.state != "idle"]
    lines = [load_headline(report)]
    rows = [(t.table, t.state, f"{t.rows:,}", f"{t.files:,}", t.message) for t in changed]
    return "\n".join(lines + _table(("table", "state", "rows", "files", ""), rows))


def stop_line(stop: PartitionStop) -> str:
    """A stopped partition, and the commands that go on."""
    tp = stop.topic_partition
    name = tp.topic if tp.partition < 0 else str(tp)
    return f"{name}: {stop.reason}: {stop.message}; next: " + " or ".join(f"`{c}`" for c in stop.commands)


def stops_check(key: dg.AssetKey, stops: Sequence[PartitionStop]) -> dg.AssetCheckEvaluation:
    """Whether extraction runs everywhere; if not, the commands that go on."""
    lines = [stop_line(stop) for stop in stops]
    return _check(key, PARTITIONS_RUN, lines, "no partition waits for an operator")


def parked_check(key: dg.AssetKey, tables: Iterable[TableStatus]) -> dg.AssetCheckEvaluation:
    """Whether every table is being loaded; if not, the commands that go on."""
    lines = [f"{t.table}: {t.message}" for t in tables if t.state == "parked"]
    return _check(key, TABLES_LOAD, lines, "no table is parked")


def rows_check(key: dg.AssetKey, tables: Iterable[TableStatus]) -> dg.AssetCheckEvaluation:
    """Whether every job loaded as many rows as were staged (L4)."""
    lines = [
        f"{t.table}: {t.mismatches} jobs loaded another number of rows than their files have; next: "
        f"`kbq reconcile`"
        for t in tables
        if t.mismatches
    ]
    return _check(key, ROWS_MATCH, lines, "every job loaded the rows of its files")


def counts_check(key: dg.AssetKey, report: CountReport) -> dg.AssetCheckEvaluation:
    """Whether the warehouse counts what was loaded and committed; the numbers, those that differ first."""
    counts = sorted(report.tables, key=lambda count: not count.findings)
    scope = "all rows" if report.since is None else f"rows since {report.since}"
    numbers: Metadata = {
        "counted": scope,
        "rows": sum(count.rows for count in counts),
        "duplicates": sum(count.duplicates for count in counts),
    }
    if counts:  # Dagster refuses a table without rows
        numbers["counts"] = dg.MetadataValue.table([_count_record(count) for count in counts[:SHOWN_LINES]])
    fine = f"{scope} agree with what was loaded and committed"
    return _check(key, COUNTS_AGREE, report.findings, fine, numbers)


def _count_record(count: TableCount) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "table": str(count.table),
            "partition": str(TopicPartition(count.range.topic, count.range.partition)),
            "epoch": count.range.epoch,
            "rows": count.rows,
            "offsets": count.distinct,
            "loaded": count.loaded,
            "in_flight": count.in_flight,
        }
    )


PARTITIONS_RUN: Final = "no_partition_is_stopped"
TABLES_LOAD: Final = "no_table_is_parked"
ROWS_MATCH: Final = "loaded_rows_match_staged_rows"
COUNTS_AGREE: Final = "warehouse_counts_agree"
CHECKS: Final[Mapping[str, str]] = {
    PARTITIONS_RUN: "Extraction goes on everywhere. Where it stopped, the message names the commands.",
    TABLES_LOAD: "Every table is being loaded. Where one is parked, the message names the command.",
    ROWS_MATCH: "Each load job's output rows equal the rows of the files it loaded (PROTOCOL L4).",
    COUNTS_AGREE: "The warehouse, counted by topic, partition and epoch, has what was loaded and committed, once "
    "(`kbq reconcile --counts`). Not part of any load: asked by a person or by the schedule.",
}


def _check(
    key: dg.AssetKey, name: str, problems: Sequence[str], fine: str, numbers: Metadata | None = None
) -> dg.AssetCheckEvaluation:
    more = f"\n…and {len(problems) - SHOWN_LINES} more" if len(problems) > SHOWN_LINES else ""
    text = "\n".join(problems[:SHOWN_LINES]) + more
    metadata: Metadata = {"problems": len(problems), **(numbers or {})}
    if problems:
        metadata["next"] = dg.MetadataValue.md("\n".join(f"- {p}" for p in problems[:SHOWN_LINES]))
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=name,
        passed=not problems,
        severity=dg.AssetCheckSeverity.ERROR,
        description=text or fine,
        metadata=metadata,
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return []
    lines = ["", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows[:SHOWN_LINES]]
    if len(rows) > SHOWN_LINES:
        lines.append(f"\n…and {len(rows) - SHOWN_LINES} more")
    return [*lines, ""]
