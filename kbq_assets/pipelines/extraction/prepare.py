"""Writes the state that a plan's units need: new commits, new partitions, recorded gaps and returned topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.extraction.planning import Addition, ExtractionPlan, RecordedGap
from kbq_assets.core.extraction.stops import PartitionStop, refused_stop
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TOPIC_REGISTRY, commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.core.protocol.watermarks import Shard
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.refusals import end_if_all
from kbq_assets.ports.object_store import ObjectStore


def prepare(store: ObjectStore, planned: ExtractionPlan, log_store: ObjectStore | None = None) -> list[Unit]:
    """Create the state that the plan needs, and return its units. ``log_store`` is the store of the erasure logs if it
    is not ``store``. Raises ConfigurationError for a commit that the store refuses."""
    refused = _prepare(store, planned, log_store)
    for error in refused.values():
        raise error
    return list(planned.units)


def prepare_each(store: ObjectStore, planned: ExtractionPlan) -> tuple[list[Unit], list[PartitionStop]]:
    """Like `prepare`, but a commit that the store refuses stops only its own topic. Return the units of the other
    commits, and the stops. Raises ConfigurationError if the store refuses many commits and takes none."""
    refused = _prepare(store, planned, None)
    stops = [refused_stop(topic, "its commit is not written", error) for (topic, _), error in refused.items()]
    return [unit for unit in planned.units if _shard(unit.range.topic_partition) not in refused], stops


def _prepare(
    store: ObjectStore, planned: ExtractionPlan, log_store: ObjectStore | None
) -> dict[Shard, ConfigurationError]:
    """Create the state; return the store's refusals by commit."""
    if planned.returned:
        back = partial(TopicRegistry.marked, topics=planned.returned, gone=False)
        state.change(store, TopicRegistry, TOPIC_REGISTRY, back)
    new = [creation.commit() for creation in planned.creations]
    made = state.create_each_commit(store, new, log_store)
    end_if_all(made)
    refused = {
        (commit.topic, commit.shard): found
        for commit, found in zip(new, made, strict=True)
        if isinstance(found, ConfigurationError)
    }
    for tp, change in _changes(planned):
        shard = _shard(tp)
        if shard not in refused:
            try:
                state.change_head(store, commit_path(*shard), change)
            except ConfigurationError as error:
                refused[shard] = error
    return refused


def _shard(tp: TopicPartition) -> Shard:
    return tp.topic, shard_of(tp.partition)


def _changes(planned: ExtractionPlan) -> Iterator[tuple[TopicPartition, Callable[[Commit], Commit]]]:
    for addition in planned.additions:
        yield addition.topic_partition, partial(_add, addition)
    for gap in planned.gaps:
        yield gap.topic_partition, partial(_record_gap, gap)


def _add(addition: Addition, commit: Commit) -> Commit:
    partition = addition.topic_partition.partition
    if commit.epoch != addition.epoch or partition in commit.partitions:
        return commit
    # An earlier partition with this number may have been reset away. Its rows have older epochs.
    since = commit.epoch if commit.epoch > 1 else 0
    starting = commits.starting_at(addition.start, addition.leader_epoch, since)
    return commit.with_partition(partition, starting)


def _record_gap(gap: RecordedGap, commit: Commit) -> Commit:
    partition = gap.topic_partition.partition
    if commit.epoch != gap.epoch or commit.partitions[partition].next >= gap.until:
        return commit
    return commits.accept_gap(commit, partition, gap.until, gap.reason, gap.leader_epoch)
