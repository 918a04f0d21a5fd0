"""What a run cost, by a function that may be somebody else's, kept for chargeback."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Final

from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction.cost import Cost, CostFunction, Usage, cost_lines, costs_path
from kbq_assets.ports.object_store import ObjectStore

_LOGGER: Final = logging.getLogger("kbq.extract")


def charge(
    store: ObjectStore,
    function: CostFunction,
    usage: Iterable[Usage],
    new_run: Callable[[], str],
    started_ms: int,
) -> tuple[Cost, ...]:
    """Compute and keep what a run cost. All windows are published by now: whatever fails here fails alone."""
    costs = tuple(Cost(used, _cost(function, used)) for used in usage)
    if costs:
        run = new_run()
        try:
            store.create(costs_path(run, started_ms), cost_lines(costs, run, started_ms))
        except KbqError as error:
            _LOGGER.warning("the cost of run %s is not kept: %s", run, error)
    return costs


def _cost(function: CostFunction, usage: Usage) -> float | None:
    """The function's word on a topic's usage, None where that is no number."""
    try:
        cost = float(function(usage))
    except Exception as error:
        # Somebody else's code: anything may come out of it.
        _LOGGER.warning("the cost function failed for %s: %s: %s", usage.topic, type(error).__name__, error)
        return None
    if not math.isfinite(cost):
        _LOGGER.warning("the cost function says %s for %s, which is no cost", cost, usage.topic)
        return None
    return cost
