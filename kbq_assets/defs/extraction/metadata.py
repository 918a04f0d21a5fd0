"""Dagster metadata of an extraction: for staged partitions, topics and the run. Pure functions.

Numbers are stored as numbers under the same names in every run, so Dagster plots them over time. Ages are seconds
before ``now_ms`` by Kafka's timestamps, which producers may choose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import dagster as dg

from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.counts import Counts, total
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.defs.metadata import SHOWN_FILES, SHOWN_LINES, Metadata, age, markdown_table, stop_line
from kbq_assets.defs.translator import StagedKey
from kbq_assets.pipelines.extraction.ports import ExtractionReport, PartitionReport

#: Most topics in a run's summary.
SHOWN_TOPICS: Final = 50


@dataclass(frozen=True)
class StagedSlice:
    """One extraction's result for one partition of `staged_files`. ``lag`` is the number of unread positions."""

    key: StagedKey
    partition: PartitionReport
    files: tuple[StagedFile, ...]
    lag: int
    cost: Usage | None = None

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def counts(self) -> Counts:
        """Sums over all tables of its Kafka partition."""
        return self.partition.counts


def lags(report: ExtractionReport) -> dict[TopicPartition, int]:
    """Unread positions of partitions that have some, up to the broker's log ends at the start of the run."""
    plan = report.plan
    reached = {unit.range.topic_partition: unit.range.from_offset for unit in plan.units}
    reached |= {p.topic_partition: p.until for p in report.partitions}
    left = {tp: end - reached.get(tp, end) for tp, end in plan.ends.items()}
    left |= {waiting.topic_partition: waiting.positions for waiting in plan.waiting}
    return {tp: positions for tp, positions in left.items() if positions > 0}


def staged_slices(report: ExtractionReport) -> dict[str, StagedSlice]:
    """An extraction's changes by key of `staged_files`."""
    left, costs = lags(report), {cost.topic: cost for cost in report.costs}
    found = {
        StagedKey(partition.topic_partition, table): partition
        for partition in report.partitions
        for table in {f.table for f in partition.files}
    }
    return {
        key.format(): StagedSlice(
            key,
            partition,
            tuple(f for f in partition.files if f.table == key.table),
            left.get(key.topic_partition, 0),
            costs.get(key.topic_partition.topic),
        )
        for key, partition in sorted(found.items())
    }


def idle_partitions(report: ExtractionReport, keys: Iterable[str]) -> Iterator[tuple[str, Metadata]]:
    """Chosen keys that were already up to date, except those that failed or wait for an operator."""
    lag = lags(report)
    troubled = {*report.failures, *(stop.topic_partition for stop in report.stops)}
    for text in keys:
        tp = StagedKey.parse(text).topic_partition
        # Partition -1 stands for the whole topic.
        if tp not in troubled and TopicPartition(tp.topic, -1) not in troubled:
            yield text, {"rows": 0, "error_rows": 0, "lag_records": lag.get(tp, 0), "files": 0}


def staged_metadata(piece: StagedSlice, now_ms: int) -> Metadata:
    """Metadata of one staged partition's materialization."""
    files, counts = piece.files, piece.counts
    return {
        "rows": piece.rows,
        "error_rows": counts.errors,
        "lag_records": piece.lag,
        **_ages(files, piece.lag, now_ms),
        "bytes": sum(f.bytes for f in files),
        "bytes_before_compression": sum(f.raw_bytes for f in files),
        "files": len(files),
        "skipped_records": counts.skipped,
        "event_time_fallbacks": sum(f.events.fallbacks for f in files),
        "dropped_values": counts.dropped_values,
        **_offsets(piece),
        **_share_of_cost(piece),
        "schemas": ", ".join(sorted({f"{f.name.schema_id} ({f.fingerprint[:12]})" for f in files})),
        "staged_files": dg.MetadataValue.table([_file_record(f) for f in files[-SHOWN_FILES:]]),
    }


def _ages(files: Collection[StagedFile], lag: int, now_ms: int) -> Metadata:
    """The age of the oldest staged record, and an upper bound of how far reading is behind the log's end.

    Records are mostly in the order of time, so unread ones are hardly older than the last file's oldest record.
    """
    times = [f.oldest_ms for f in files if f.oldest_ms > 0]
    if not times:
        return {} if lag else {"lag_seconds": 0.0}
    behind = age("lag_seconds", max(times), now_ms) if lag else {"lag_seconds": 0.0}
    return {**behind, **age("log_to_staged_seconds", min(times), now_ms)}


def _offsets(piece: StagedSlice) -> Metadata:
    """Offsets, and the newest schema id."""
    return {
        "first_offset": min(f.name.first_offset for f in piece.files),
        "last_offset": max(f.until for f in piece.files) - 1,
        "schema_id": piece.files[-1].name.schema_id,
    }


def _share_of_cost(piece: StagedSlice) -> Metadata:
    """The partition's share of the topic's cost, proportional to its staged bytes."""
    if piece.cost is None or not piece.cost.staged_bytes:
        return {}
    seconds = piece.cost.core_seconds * sum(f.bytes for f in piece.files) / piece.cost.staged_bytes
    return {"core_seconds": round(seconds, 3), "cost": round(seconds, 6)}


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


@dataclass(frozen=True)
class TopicsReport:
    """One extraction's result for a topic, or for the topics of one line of the source list."""

    topics: tuple[str, ...]
    partitions: tuple[PartitionReport, ...]
    lag: int
    costs: tuple[Usage, ...]
    seconds: float

    @property
    def counts(self) -> Counts:
        """Sums over all partitions."""
        return total(p.counts for p in self.partitions)


def topic_reports(report: ExtractionReport) -> dict[str, TopicsReport]:
    """An extraction's result by topic, for topics that it read or that have a lag."""
    partitions: dict[str, list[PartitionReport]] = defaultdict(list)
    left: dict[str, int] = defaultdict(int)
    for partition in report.partitions:
        partitions[partition.topic_partition.topic].append(partition)
    for tp, positions in lags(report).items():
        left[tp.topic] += positions
    costs = {cost.topic: cost for cost in report.costs}
    return {
        topic: TopicsReport(
            (topic,),
            tuple(partitions[topic]),
            left[topic],
            (costs[topic],) if topic in costs else (),
            report.seconds,
        )
        for topic in sorted({*partitions, *left, *costs})
    }


def together(reports: Sequence[TopicsReport]) -> TopicsReport:
    """The sum of several topics' results."""
    return TopicsReport(
        tuple(topic for report in reports for topic in report.topics),
        tuple(partition for report in reports for partition in report.partitions),
        sum(report.lag for report in reports),
        tuple(cost for report in reports for cost in report.costs),
        reports[0].seconds,
    )


def topic_metadata(report: TopicsReport, now_ms: int) -> Metadata:
    """Metadata of a topic's observation. Dagster plots it on the external asset."""
    counts, costs = report.counts, [cost.core_seconds for cost in report.costs]
    files = [f for p in report.partitions for f in p.files]
    return {
        "records": counts.records,
        "lag_records": report.lag,
        **_ages(files, report.lag, now_ms),
        "error_rows": counts.errors,
        "skipped_records": counts.skipped,
        "event_time_fallbacks": counts.event_time_fallbacks,
        "dropped_values": counts.dropped_values,
        "value_bytes": counts.bytes,
        "records_per_second": _rate(counts.records, report.seconds),
        "core_seconds": round(sum(costs), 3),
        "cost": round(sum(costs), 6),
        "partitions": len(report.partitions),
        "topics": len(report.topics),
    }


def extraction_metadata(report: ExtractionReport, now_ms: int) -> Metadata:
    """Metadata of a whole extraction. Its names differ from those of partitions, so plots do not mix them."""
    totals, files = report.totals, [f for p in report.partitions for f in p.files]
    left = sum(lags(report).values())
    costs: Metadata = {}
    if report.costs:  # Dagster rejects a table without rows
        dearest = sorted(report.costs, key=lambda cost: -cost.core_seconds)[:SHOWN_LINES]
        costs["costs"] = dg.MetadataValue.table([_cost_record(cost) for cost in dearest])
    return {
        "summary": dg.MetadataValue.md(extraction_summary(report)),
        "run_records": totals.records,
        "run_rows": totals.staged,
        "run_error_rows": totals.errors,
        "run_lag_records": left,
        **{f"run_{name}": value for name, value in _ages(files, left, now_ms).items()},
        "stopped_partitions": len(report.stops),
        "failed_partitions": len(report.failures),
        "run_records_per_second": _rate(totals.records, report.seconds),
        "run_seconds": round(report.seconds, 3),
        "run_skipped_records": totals.skipped,
        "run_event_time_fallbacks": totals.event_time_fallbacks,
        "run_value_bytes": totals.bytes,
        "run_files": len(files),
        "changed_partitions": len(report.partitions),
        "waiting_partitions": len(report.plan.waiting),
        "throttled_positions": sum(throttled.positions for throttled in report.plan.throttled),
        "run_core_seconds": round(sum(cost.core_seconds for cost in report.costs), 3),
        "run_cost": round(sum(cost.core_seconds for cost in report.costs), 6),
        **costs,
    }


#: Numbers of a partition: its rows; or [rows, error rows, unread positions] if one of the last two is not 0.
Numbers: TypeAlias = int | list[int]


def numbers_of_partitions(slices: Iterable[StagedSlice]) -> dict[str, dict[str, dict[str, list[Numbers]]]]:
    """Numbers by topic, table, and the first of a series of consecutive Kafka partitions. The form is compact because
    Dagster's database stores the numbers of up to 11,200 partitions per cycle."""
    found: dict[str, dict[str, dict[str, list[Numbers]]]] = {}
    last: dict[tuple[str, str], tuple[int, list[Numbers]]] = {}
    for piece in sorted(slices, key=lambda piece: piece.key.topic_partition):
        (topic, partition), table = piece.key.topic_partition, str(piece.key.table)
        before, numbers = last.get((topic, table), (-2, []))
        if partition != before + 1:
            numbers = found.setdefault(topic, {}).setdefault(table, {})[str(partition)] = []
        more = [piece.counts.errors, piece.lag]
        numbers.append([piece.rows, *more] if any(more) else piece.rows)
        last[topic, table] = partition, numbers
    return found


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1) if seconds > 0 else 0.0


def _cost_record(usage: Usage) -> dg.TableRecord:
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
            "cost": round(usage.core_seconds, 6),
        }
    )


def extraction_headline(report: ExtractionReport) -> str:
    """One line about an extraction."""
    totals, problems = report.totals, []
    if totals.errors:
        problems.append(counted(totals.errors, "error row"))
    if report.stops:
        problems.append(counted(len(report.stops), "stopped partition"))
    if report.failures:
        problems.append(counted(len(report.failures), "failed partition"))
    if left := sum(lags(report).values()):
        problems.append(f"{counted(left, 'position')} left to read")
    details = f" ({', '.join(problems)})" if problems else ""
    partitions = counted(len(report.partitions), "partition")
    return f"{counted(totals.records, 'record')} of {partitions} in {report.seconds:.1f} s{details}"


def extraction_summary(report: ExtractionReport) -> str:
    """A Markdown report of an extraction: first the stops and failures, then the topics by size."""
    lines = [extraction_headline(report), ""]
    lines += _capped([f"- ⛔ {stop_line(stop)}" for stop in report.stops])
    lines += _capped([f"- ⚠ {tp}: {message}" for tp, message in report.failures.items()])
    lines += _capped([f"- new: {each}" for each in report.evolved])
    topics = sorted(topic_reports(report).values(), key=lambda topic: -topic.counts.records)
    header = ("topic", "partitions", "records", "error rows", "left to read", "core seconds")
    rows = [_topic_row(topic) for topic in topics]
    return "\n".join(lines + markdown_table(header, rows, SHOWN_TOPICS))


def _topic_row(report: TopicsReport) -> tuple[str, ...]:
    counts = report.counts
    seconds = sum(cost.core_seconds for cost in report.costs)
    numbers = (f"{n:,}" for n in (len(report.partitions), counts.records, counts.errors, report.lag))
    return (report.topics[0], *numbers, f"{seconds:.1f}")


def _capped(lines: Sequence[str]) -> list[str]:
    more = len(lines) - SHOWN_LINES
    return [*lines[:SHOWN_LINES], *([f"- …and {more} more"] if more > 0 else [])]


def by_asset(
    reports: Mapping[str, TopicsReport], assets: Mapping[str, dg.AssetKey]
) -> Iterable[tuple[dg.AssetKey, TopicsReport]]:
    """Reports by external asset. Topics of one line of the source list share an asset."""
    found: dict[dg.AssetKey, list[TopicsReport]] = defaultdict(list)
    for topic, report in reports.items():
        if topic in assets:
            found[assets[topic]].append(report)
    return ((key, together(group)) for key, group in sorted(found.items()))
