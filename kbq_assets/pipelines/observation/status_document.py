"""A status as a document: what `kbq status --json` prints and `kbq serve` answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kbq_assets.core.extraction.planning import PartitionStop
from kbq_assets.core.loading.completeness import hour_text
from kbq_assets.pipelines.observation.status import PartitionStatus, Status, TableStatus


def status_json(found: Status) -> dict[str, object]:
    """A status as a document."""
    return {
        "partitions": [_partition_json(p) for p in found.partitions],
        "new_partitions": found.new_partitions,
        "tables": [_table_json(t) for t in found.tables],
        "stops": [stop_json(stop) for stop in found.stops],
        "evolved": [dataclasses.asdict(each) for each in found.evolved],
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
        "event_time_fallbacks": p.totals.event_time_fallbacks,
        "rows": dict(p.totals.rows),
    }


def _table_json(t: TableStatus) -> dict[str, object]:
    return {
        "table": str(t.table),
        "state": t.state,
        "loaded_rows": t.loaded_rows,
        "pending_rows": t.pending_rows,
        "pending_files": t.pending_files,
        "held_rows": t.blocked_rows,
        "quarantined_files": t.quarantined_files,
        "mismatches": t.mismatches,
        "complete_until": hour_text(t.complete_until) or None,
        "late_rows": t.late_rows,
        "message": t.message,
        "tries": t.tries,
        "next_try_ms": t.next_try_ms or None,
    }


def stop_json(stop: PartitionStop) -> Mapping[str, object]:
    """A stop; ``partition`` is null where the whole topic stops, ``next_try_ms`` where it is not tried by itself."""
    topic, partition = stop.topic_partition
    return {
        "topic": topic,
        "partition": None if partition < 0 else partition,
        "reason": stop.reason,
        "message": stop.message,
        "commands": list(stop.commands),
        "tries": stop.tries,
        "next_try_ms": stop.next_try_ms or None,
    }
