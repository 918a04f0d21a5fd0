"""Cost records of a run, for chargeback."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction.cost import Usage, cost_lines, costs_path
from kbq_assets.ports.object_store import ObjectStore

_LOGGER: Final = logging.getLogger("kbq.extract")


def charge(store: ObjectStore, costs: Iterable[Usage], run: str, started_ms: int) -> tuple[Usage, ...]:
    """Store a run's costs. All windows are published by now, so a failure here affects nothing else."""
    costs = tuple(costs)
    if costs:
        try:
            store.create(costs_path(run, started_ms), cost_lines(costs, run, started_ms))
        except KbqError as error:
            _LOGGER.warning("the cost of run %s could not be stored: %s", run, error)
    return costs
