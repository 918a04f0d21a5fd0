"""Metric families and samples, in Prometheus's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kbq_assets.core.protocol.totals import Histogram

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
#: Maximum number of values of a label in a family. The remaining ones, by name, form one sample.
MAX_LABEL_VALUES: Final = 1_000
OTHER: Final = "_other"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Sample:
    """One line of output: the family's name with ``suffix``, labels, and value."""

    value: float
    labels: Labels
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """Samples with one name. ``kind`` is counter, gauge or histogram. A counter's name gets no suffix."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


def single(name: str, kind: str, text: str, value: float) -> Family:
    """A family of one sample without labels."""
    return Family(name, kind, text, (Sample(value, {}),))


def labelled(name: str, kind: str, text: str, label: str, values: Mapping[str, float]) -> Family:
    return Family(name, kind, text, tuple(Sample(value, {label: key}) for key, value in values.items()))


def histogram(
    name: str, text: str, bounds: Sequence[int], values: Iterable[tuple[Labels, Histogram]]
) -> Family:
    """A histogram: cumulative buckets, sum and count for each set of labels."""
    samples: list[Sample] = []
    for labels, found in values:
        counts = (*found.counts, *[0] * (len(bounds) + 1 - len(found.counts)))
        for bound, count in zip((*map(str, bounds), "+Inf"), accumulate(counts), strict=True):
            samples.append(Sample(count, {**labels, "le": bound}, "_bucket"))
        samples.append(Sample(found.sum, labels, "_sum"))
        samples.append(Sample(found.count, labels, "_count"))
    return Family(name, HISTOGRAM, text, tuple(samples))


def bounded(
    values: Mapping[str, float],
    join: Callable[[Iterable[float]], float] = sum,
    most: int = MAX_LABEL_VALUES,
) -> dict[str, float]:
    """The first ``most`` values by name, with the rest joined as `_other`."""
    names = sorted(values)
    kept = {name: values[name] for name in names[:most]}
    if rest := [values[name] for name in names[most:]]:
        kept[OTHER] = join(rest)
    return kept
