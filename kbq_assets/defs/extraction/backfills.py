"""One run does the work of a whole backfill.

Dagster's daemon makes a run for each topic and each contiguous range of keys, in the order of their registration. So a
scattered selection becomes many runs. The first run brings all partitions of all the backfill's topics up to date, and
removes the runs queued behind it. A run that the daemon submits later finds the work done, removes the runs queued
behind it, and ends at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import dagster as dg

from kbq_assets.core.plurals import counted

#: Tag of the run that did the work of a backfill. Its value is the run's asset, because a backfill may select other
#: assets too: topics of another code location, or batches of files of another table.
WHOLE_TAG = "kbq/whole_backfill"
#: Dagster's own tag of a backfill's runs.
BACKFILL_TAG = "dagster/backfill"

Event = TypeVar("Event")


def whole_choice(
    context: dg.AssetExecutionContext,
    assets: Collection[dg.AssetKey],
    work: Callable[[list[str]], Iterator[Event]],
) -> Iterator[Event]:
    """Do ``work`` for this run's partitions. In a backfill, do it for all its ``assets``, unless a run already has."""
    backfill = context.run.tags.get(BACKFILL_TAG, "")
    if not backfill:
        yield from work(list(context.partition_keys))
        return
    # A user who re-executes a run wants the work repeated.
    if context.run.parent_run_id is None and (done_by := _done_by(context.instance, backfill, assets)):
        context.log.info(f"run {done_by} brought all partitions of this backfill up to date")
        _remove_queued(context, backfill, assets)
        return
    wanted = _wanted(context.instance, backfill, assets)
    try:
        yield from work(list(dict.fromkeys((*context.partition_keys, *wanted))))
        context.instance.add_run_tags(context.run.run_id, {WHOLE_TAG: context.asset_key.to_user_string()})
    finally:
        # Remove the runs even after a failure: one run has reported the error, and the backfill shows what is missing.
        _remove_queued(context, backfill, assets)


def _wanted(instance: dg.DagsterInstance, backfill: str, assets: Collection[dg.AssetKey]) -> Sequence[str]:
    """The backfill's partition keys of all ``assets``; () if Dagster does not have them."""
    found = instance.get_backfill(backfill)
    data = found.asset_backfill_data if found else None
    subsets = data.target_subset.partitions_subsets_by_asset_key if data is not None else {}
    return sorted(
        key for asset, subset in subsets.items() if asset in assets for key in subset.get_partition_keys()
    )


def _done_by(instance: dg.DagsterInstance, backfill: str, assets: Collection[dg.AssetKey]) -> str:
    own = {key.to_user_string() for key in assets}
    runs = instance.get_runs(dg.RunsFilter(tags={BACKFILL_TAG: backfill}))
    return next((run.run_id for run in runs if run.tags.get(WHOLE_TAG) in own), "")


def _remove_queued(context: dg.AssetExecutionContext, backfill: str, assets: Collection[dg.AssetKey]) -> None:
    """Remove the queued runs. They wait for this run's slot in the pool, so they cannot start meanwhile."""
    instance = context.instance
    queued = instance.get_runs(
        dg.RunsFilter(tags={BACKFILL_TAG: backfill}, statuses=[dg.DagsterRunStatus.QUEUED])
    )
    siblings = [run for run in queued if run.asset_selection and set(run.asset_selection) <= set(assets)]
    for run in siblings:
        instance.report_run_canceled(run)  # so a daemon that has just seen it in the queue does not start it
        instance.delete_run(run.run_id)
    if siblings:
        context.log.info(
            f"removed {counted(len(siblings), 'queued run')} of this backfill: nothing is left to do"
        )
