"""Families in Prometheus' text format, by its own client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kbq_assets.extras.metrics.families import COUNTER, Family

#: The older format: OpenMetrics requires `_total` on counters, and Kafka BigQuery Express's have none.
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TOTAL: Final = "_total"


class _Families(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            # For the client a counter's name has no `_total`, but its samples' names do.
            metric = Metric(family.name.removesuffix(_TOTAL), family.help, family.kind)
            for sample in family.samples:
                metric.add_sample(family.name + sample.suffix, dict(sample.labels), sample.value)
            yield metric


def exposition(families: Iterable[Family]) -> bytes:
    """The text of a scrape."""
    families = list(families)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    text = generate_latest(registry)
    for family in families:
        if family.kind == COUNTER and not family.name.endswith(_TOTAL):
            for line in ("HELP", "TYPE"):
                declared = f"# {line} {family.name}"
                text = text.replace(f"{declared}{_TOTAL} ".encode(), f"{declared} ".encode())
    return text
