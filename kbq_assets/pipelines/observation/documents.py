"""Reports as JSON documents, for `--json` and `kbq serve`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.loading.completeness import hour_text
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.status import BackupsStatus
from kbq_assets.pipelines.observation.status import PartitionStatus, Status, TableStatus


def document(value: object, fields: str, **computed: object) -> dict[str, object]:
    """A document with the named fields of a value, in this order, then computed ones. A TopicPartition has two
    fields."""
    found: dict[str, object] = {}
    for name in fields.split():
        item = getattr(value, name)
        if isinstance(item, TopicPartition):
            found.update(item._asdict())
        else:
            found[name] = _plain(item)
    return {**found, **computed}


def _plain(item: object) -> object:
    if isinstance(item, TableReference):
        return str(item)
    if isinstance(item, tuple):
        return list(item)
    return dict(item) if isinstance(item, Mapping) else item


def status_json(found: Status, broker_error: str = "") -> dict[str, object]:
    """A status as a document. With a ``broker_error``, lags and new partitions are unknown, so they are null."""
    unknown = {"lag": None} if broker_error else {}
    return {
        "broker_error": broker_error or None,
        "partitions": [{**_partition_json(p), **unknown} for p in found.partitions],
        "new_partitions": None if broker_error else found.new_partitions,
        "tables": [_table_json(t) for t in found.tables],
        "stops": [stop_json(stop) for stop in found.stops],
        "interrupted": [stop_json(stop) for stop in found.interrupted],
        "evolved": [dataclasses.asdict(each) for each in found.evolved],
        "backups": backups_json(found.backups),
        "replays": list(found.replays),
        "unavailable": dict(found.unavailable),
        "file_batches": [
            document(each, "prefix failed parked waiting oldest_ms problems commands")
            for each in found.arrivals.prefixes
        ],
    }


def backups_json(found: BackupsStatus) -> dict[str, object]:
    partitions = (
        {
            **document(p, "topic_partition epoch start position lag"),
            **document(p.totals, "records bytes gaps lost"),
        }
        for p in found.partitions
    )
    return {"partitions": list(partitions), "stops": [stop_json(stop) for stop in found.stops]}


def _partition_json(p: PartitionStatus) -> dict[str, object]:
    counted = document(p.totals, "records gaps lost errors skipped event_time_fallbacks dropped_values rows")
    return document(p, "topic_partition epoch position lag pending_windows pending_rows", **counted)


def _table_json(t: TableStatus) -> dict[str, object]:
    return {
        **document(t, "table state loaded_rows pending_rows pending_files"),
        "held_rows": t.blocked_rows,
        **document(t, "quarantined_files mismatches"),
        "complete_until": hour_text(t.complete_until) or None,
        **document(t, "late_rows message tries"),
        "next_try_ms": t.next_try_ms or None,
        "switch": t.batches.switch,
    }


def stop_json(stop: PartitionStop) -> Mapping[str, object]:
    """A stop as a document. ``partition`` is null if the whole topic is stopped; ``next_try_ms`` is null if KBQ does
    not retry it."""
    found = document(
        stop, "topic_partition reason message commands tries", next_try_ms=stop.next_try_ms or None
    )
    return found if stop.topic_partition.partition >= 0 else {**found, "partition": None}
