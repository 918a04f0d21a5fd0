"""Metrics of batches of files, by table prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kbq_assets.core.observation.arrivals import Arrivals, PrefixArrivals
from kbq_assets.extras.metrics.families import GAUGE, Family, bounded, labelled

_LABEL = "table_prefix"


def arrival_families(found: Arrivals, now_ms: int) -> Iterator[Family]:
    """How many batches failed, are parked or wait, and the age of the oldest that waits."""

    def counted(name: str, text: str, value: Callable[[PrefixArrivals], int]) -> Family:
        values = {each.prefix: float(value(each)) for each in found.prefixes}
        return labelled(name, GAUGE, text, _LABEL, bounded(values))

    yield counted("kbq_failed_file_batches", "Batches of files whose job failed", lambda each: each.failed)
    yield counted(
        "kbq_parked_file_batches",
        "Batches of files that configuration or rules keep back",
        lambda each: each.parked,
    )
    yield counted("kbq_waiting_file_batches", "Batches of files to apply", lambda each: each.waiting)
    ages = {each.prefix: max(0, now_ms - each.oldest_ms) / 1000 for each in found.prefixes if each.oldest_ms}
    text = "Age of the oldest batch of files to apply"
    yield labelled("kbq_oldest_file_batch_age_seconds", GAUGE, text, _LABEL, bounded(ages, max))
