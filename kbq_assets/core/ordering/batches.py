"""Chooses the files of an ordered table's next batch (PROTOCOL O1): whole windows, in order, of all schemas.

A window's files become visible in one job, so no row is visible before a row with a lower offset of its partition,
whatever their schemas. A warehouse that takes files of one schema per job gets consecutive windows of that schema. A
window of several schemas is staged again with one schema (pipelines/ordering/one_schema.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from kbq_assets.core.loading.batches import (
    LoadBatch,
    LoadLimits,
    SchemaKey,
    WindowQueues,
    fitting,
    identity,
    merged,
    pending_files,
    plan_batch,
    refuse_cut,
    retried_batch,
    windows_by_partition,
)
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import hour_order
from kbq_assets.core.ordering.hour_order import ALL_HOURS, Release
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.ordering_options import HOUR

#: Most bytes of windows that are staged again for one job. The limit is needed because these bytes pass through the
#: loader.
MOST_RESTAGED_BYTES: Final = 64 << 20


def next_batch(
    table: TableReference,
    state: TableState,
    files: Iterable[StagedFile],
    limits: LoadLimits,
    given_up: frozenset[str] = frozenset(),
    blocked: Collection[str] = (),
    release: Release = ALL_HOURS,
) -> LoadBatch | None:
    """The next batch of a table, with or without an order (`plan_batch`). ``release`` limits the hours for `order:
    hour`."""
    if state.order.rule.by:
        return plan_ordered(table, state, files, limits, given_up, blocked, release)
    return plan_batch(table, state, files, limits, given_up, blocked)


def plan_ordered(
    table: TableReference,
    state: TableState,
    files: Iterable[StagedFile],
    limits: LoadLimits,
    given_up: frozenset[str] = frozenset(),
    blocked: Collection[str] = (),
    release: Release = ALL_HOURS,
) -> LoadBatch | None:
    """The next batch of an ordered table; None if no files are pending, or all of them wait for a check or an hour. A
    failed batch is planned again with the same windows. Raises StateError as `plan_batch` does.
    """
    retried = [bad.file for bad in state.retried if bad.file.name.topic_partition.topic not in blocked]
    if retried:
        return retried_batch(table, retried, limits)
    pending = pending_files(state, (f for f in files if f.path not in given_up))
    chosen = [f for f in pending if f.name.topic_partition.topic not in blocked]
    for file in chosen:
        refuse_cut(state, file)
    if state.order.failed is not None:
        failed = {identity(file) for file in state.order.failed.files}
        again = [file for file in chosen if identity(file) in failed]
        if again:
            return _batch_of(table, windows_by_partition(again), limits)
    queues = windows_by_partition(chosen)
    if state.order.rule.by == HOUR:
        free = hour_order.released(queues, release)
        queues = hour_order.of_first_hour(free, release) if free else free
    return _batch_of(table, queues, limits) if queues else None


def _batch_of(table: TableReference, queues: WindowQueues, limits: LoadLimits) -> LoadBatch:
    kind = (lambda window: "") if limits.mixes_schemas else _kind
    oldest = _oldest(queues)
    wanted = kind(oldest)
    bound = limits.bytes if wanted or limits.mixes_schemas else min(limits.bytes, MOST_RESTAGED_BYTES)
    windows = merged(queues, lambda window: kind(window) == wanted)
    schema = SchemaKey(oldest[0].name.schema_id, oldest[0].fingerprint)
    return LoadBatch(table, schema, fitting(windows, limits, bound))


def _oldest(queues: WindowQueues) -> list[StagedFile]:
    return min(queues.values(), key=lambda windows: windows[0][0].oldest_ms)[0]


def _kind(window: list[StagedFile]) -> str:
    """The schema of a window; "" if it has several."""
    first, *others = {file.fingerprint: None for file in window}
    return "" if others else first
