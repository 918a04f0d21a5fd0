"""Why the last runs failed for tables, or were interrupted in partitions: between runs nothing else says so."""

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
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of

_INTERRUPTED = "interrupted"


def load_failures(cache: StateCache) -> Mapping[str, RunFailure]:
    """Why the last loads of a warehouse's tables failed, by table."""
    own = warehouse_of(cache.store)
    keys = ((key.rpartition("/"), failure) for key, failure in _failures(cache, LOADING).items())
    return {table: failure for (warehouse, _, table), failure in keys if warehouse == own}


def interruptions(
    cache: StateCache, unread: Iterable[TopicPartition], lasting_ms: int | None = None
) -> list[PartitionStop]:
    """The partitions, of those with ``unread`` records, in which the last extraction was interrupted; their topics, if
    an error ended all of it. With ``lasting_ms``, the time now: only those that need a person."""
    partitions = sorted(unread)
    failures = _failures(cache, EXTRACTION) if partitions else {}
    found = {tp: failures[str(tp)] for tp in partitions if str(tp) in failures}
    if WHOLE_RUN in failures:
        found = {TopicPartition(tp.topic, -1): failures[WHOLE_RUN] for tp in partitions}
    return [
        PartitionStop(
            tp, _INTERRUPTED, f"in {failure.times} runs in a row: {failure.message}", ("kbq extract",)
        )
        for tp, failure in found.items()
        if lasting_ms is None or failure.lasts(lasting_ms)
    ]


def _failures(cache: StateCache, kind: str) -> Mapping[str, RunFailure]:
    """The failures of one kind of run; none if their record cannot be read."""
    [found] = cache.read(RunTotals, [totals_path(kind)], {})
    return {} if isinstance(found, KbqError) else found.value.failures
