"""Many events of one run, written in batches: one by one, ten thousand take minutes of a database's connections."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

import dagster as dg
from dagster._core.events import DagsterEventBatchMetadata

#: Dagster's variable for how many events it writes at once, and what `definitions` sets it to where nobody did.
BATCH_VARIABLE: Final = "DAGSTER_EVENT_BATCH_SIZE"
BATCH_SIZE: Final = "500"

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


def in_batches(
    context: StepContext, materialisations: Iterable[dg.AssetMaterialization]
) -> Iterator[dg.DagsterEvent]:
    """The events of materialisations, logged and to be yielded.

    A yielded `AssetMaterialization` would be written at once, in transactions of its own. Postgres writes a batch by
    one statement, SQLite still one by one.
    """
    step = context.get_step_execution_context()
    batch = uuid.uuid4().hex
    for materialisation, following in itertools.pairwise(itertools.chain(materialisations, [None])):
        assert materialisation is not None
        is_end = following is None
        yield dg.DagsterEvent.asset_materialization(
            step, materialisation, DagsterEventBatchMetadata(batch, is_end)
        )
