"""Writes the many events of a run in batches (ADR 14)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

import dagster as dg
from dagster._core.events import DagsterEventBatchMetadata

#: Dagster's variable for the size of an event batch, and the value that `definitions` sets if it is not set.
BATCH_VARIABLE: Final = "DAGSTER_EVENT_BATCH_SIZE"
BATCH_SIZE: Final = "500"

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


def in_batches(
    context: StepContext, materializations: Iterable[dg.AssetMaterialization]
) -> Iterator[dg.DagsterEvent]:
    """Events of materializations, for the step to yield.

    Dagster writes a yielded `AssetMaterialization` immediately and in transactions of its own. These events form
    batches: Postgres writes a batch in one statement, but SQLite still writes events one by one.
    """
    step = context.get_step_execution_context()
    batch = uuid.uuid4().hex
    for materialization, following in itertools.pairwise(itertools.chain(materializations, [None])):
        assert materialization is not None
        is_end = following is None
        yield dg.DagsterEvent.asset_materialization(
            step, materialization, DagsterEventBatchMetadata(batch, is_end)
        )
