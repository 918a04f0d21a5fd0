"""Errors of the last runs: failed tables and interrupted partitions. Between runs, nothing else shows them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.observation.run_totals import (
    EXTRACTION,
    LOADING,
    WHOLE_RUN,
    RunFailure,
    RunTotals,
    totals_path,
)
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of

_INTERRUPTED = "interrupted"


def load_failures(cache: StateCache) -> Mapping[str, RunFailure]:
    """Errors of the last loads of a warehouse's tables, by table."""
    own = warehouse_of(cache.store)
    keys = ((key.rpartition("/"), failure) for key, failure in _failures(cache, LOADING).items())
    return {table: failure for (warehouse, _, table), failure in keys if warehouse == own}


def interruptions(
    cache: StateCache, unread: Iterable[TopicPartition], lasting_ms: int | None = None
) -> list[PartitionStop]:
    """The partitions with ``unread`` records in which the last extraction was interrupted, or their topics if an error
    ended the whole extraction. With ``lasting_ms``, the current time, only those that need an operator."""
    partitions = sorted(unread)
    failures = _failures(cache, EXTRACTION) if partitions else {}
    found = {tp: failures[str(tp)] for tp in partitions if str(tp) in failures}
    if WHOLE_RUN in failures:
        found = {TopicPartition(tp.topic, -1): failures[WHOLE_RUN] for tp in partitions}
    return [
        PartitionStop(
            tp,
            _INTERRUPTED if failure.transient else StopReason.FAILED,
            f"in {counted(failure.times, 'run', 'runs in a row')}: {failure.message}",
            ("kbq extract",),
        )
        for tp, failure in found.items()
        if lasting_ms is None or failure.lasts(lasting_ms)
    ]


def _failures(cache: StateCache, kind: str) -> Mapping[str, RunFailure]:
    """The failures of one kind of run; empty if they cannot be read."""
    [found] = cache.read(RunTotals, [totals_path(kind)], {})
    return {} if isinstance(found, KbqError) else found.value.failures
