"""Settings of `kbq serve`: its poll interval, and the labels of lag metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.config.variables import choice, variable, whole

#: Label granularities of lag metrics.
LAG_LABELS: Final = ("topic", "partition")


@dataclass(frozen=True)
class ServiceSettings:
    """``look_seconds`` is the time between two polls of a dependency."""

    look_seconds: int = variable(
        "KBQ_SERVE_SECONDS",
        "seconds between the service's polls of state and broker; at least 5",
        15,
        whole(5),
    )
    lag_label: str = variable(
        "KBQ_LAG_LABEL",
        "label granularity of lag metrics: topic or partition",
        LAG_LABELS[0],
        choice(*LAG_LABELS),
    )
