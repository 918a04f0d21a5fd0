"""Larger scopes of the models of single features, which `make model` explores; their tests explore smaller ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kbq_assets_tests.model.engine import Model
from kbq_assets_tests.model.late_changes import LateChanges
from kbq_assets_tests.model.ordered_error_replays import OrderedErrorReplays
from kbq_assets_tests.model.warehouse_replays import WarehouseReplays


@dataclass(frozen=True)
class Feature:
    """A scope of a model of one feature."""

    name: str
    model: Model[Any]


LARGE = (
    Feature(
        "late changes of 2 partitions, 2 recreations, an operator who accepts gaps",
        LateChanges(recreations=2, partitions=2, accepts=True),
    ),
    Feature(
        "replays in two warehouses, rolled back; one goes down; a crash",
        WarehouseReplays((0, 1), crashes=1, rollbacks=2, downs=1),
    ),
    Feature(
        "2 replays in the second warehouse, rolled back; a crash",
        WarehouseReplays((1, 1), makes=(False, True), crashes=1, rollbacks=2),
    ),
    Feature("replays in two warehouses, 2 operators each", WarehouseReplays((0, 1), operators=2)),
    Feature(
        "replays in two warehouses, one added later; resets; backlogs; a crash",
        WarehouseReplays((0, 1), given=(True, False), moves=1, resets=2, crashes=1),
    ),
    Feature(
        "a replay beside another staging area, 2 operators; 2 crashes",
        WarehouseReplays(given=(True, False), others=1, operators=2, crashes=2, rollbacks=1),
    ),
    Feature(
        "error rows into an ordered table, 2 replays; a crash", OrderedErrorReplays(replays=2, crashes=1)
    ),
    Feature("error rows into an ordered table, 2 replays; a hold", OrderedErrorReplays(replays=2, holds=1)),
    Feature(
        "error rows into an ordered table of a lake, 2 replays; a crash",
        OrderedErrorReplays(replays=2, batches=1, crashes=1, is_lake=True),
    ),
)
