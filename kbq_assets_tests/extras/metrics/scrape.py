"""The output of `/metrics`, read by Prometheus' own parser."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from kbq_assets.definitions import Parts
from kbq_assets.extras.metrics.families import Family
from kbq_assets.extras.metrics.service.server import exposition
from kbq_assets.extras.metrics.service.watches import Watches

Scrape = dict[str, dict[tuple[str, ...], float]]


def values(families: Iterable[Family]) -> Scrape:
    """Per sample name and label values, the value."""
    return parsed(exposition(families).decode())


def parsed(text: str) -> Scrape:
    """The same of a text. The parser adds `_total` to counters that have none: lines are read for the names."""
    names = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines() if line[:1] != "#"}
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in names else sample.name.removesuffix("_total")
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


def types(text: str) -> dict[str, str]:
    """What each name is declared as."""
    declared = (line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))
    return {name: kind for name, kind in declared}


def polled(parts: Parts) -> Scrape:
    """All metrics of a platform, from one look at everything."""
    watches = Watches(parts.deployment, parts.observer.arrivals)
    watches.poll()
    return values(watches.families())
