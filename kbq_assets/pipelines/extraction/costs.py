"""Cost records of a run, for chargeback, by a function that a user may replace."""

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
    """Compute and store a run's costs. All windows are published by now, so a failure here affects nothing else."""
    costs = tuple(Cost(used, _cost(function, used)) for used in usage)
    if costs:
        run = new_run()
        try:
            store.create(costs_path(run, started_ms), cost_lines(costs, run, started_ms))
        except KbqError as error:
            _LOGGER.warning("the cost of run %s could not be stored: %s", run, error)
    return costs


def _cost(function: CostFunction, usage: Usage) -> float | None:
    """The cost of a topic's usage; None if the function gives no finite number."""
    try:
        cost = float(function(usage))
    except Exception as error:
        # A user's code: it may raise anything.
        _LOGGER.warning("the cost function failed for %s: %s: %s", usage.topic, type(error).__name__, error)
        return None
    if not math.isfinite(cost):
        _LOGGER.warning("the cost function returned %s for %s, which is not a cost", cost, usage.topic)
        return None
    return cost
