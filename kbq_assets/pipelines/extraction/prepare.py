"""Writes the state that a plan's units need: new commits, new partitions, recorded gaps and returned topics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

from kbq_assets.core.errors import ConfigurationError, KbqError, TransientError
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
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore

_NOT_WRITTEN: Final = "its commit is not written"
_LOGGER: Final = logging.getLogger("kbq.extract")


@dataclass(frozen=True)
class Prepared:
    """The units whose commits are ready, and what became of the others."""

    units: list[Unit]
    stops: list[PartitionStop]
    #: partitions whose commit the store did not write now, each with the error
    failures: Mapping[TopicPartition, str]
    #: commits that are not ready
    failed: Collection[Shard]

    def lacks(self, unit: Unit) -> bool:
        """Whether the commit of a unit is not ready."""
        return _shard(unit.range.topic_partition) in self.failed


def prepare_each(
    store: ObjectStore, planned: ExtractionPlan, log_store: ObjectStore | None = None
) -> Prepared:
    """Create the state that the plan needs. A commit that the store refuses stops only its own topic, and one that it
    does not write now fails only its own partitions. ``log_store`` is the store of the erasure logs if it is not
    ``store``. Raises ConfigurationError if the store refuses many commits and takes none."""
    failed = _prepare(store, planned, log_store)
    refused = {key: error for key, error in failed.items() if isinstance(error, ConfigurationError)}
    stops = [
        *dict.fromkeys(refused_stop(topic, _NOT_WRITTEN, error) for (topic, _), error in refused.items())
    ]
    failures = {
        tp: f"{_NOT_WRITTEN}: {failed[_shard(tp)]}"
        for tp in _partitions(planned)
        if isinstance(failed.get(_shard(tp)), TransientError)
    }
    units = [unit for unit in planned.units if _shard(unit.range.topic_partition) not in failed]
    return Prepared(units, stops, failures, failed.keys())


def _prepare(
    store: ObjectStore, planned: ExtractionPlan, log_store: ObjectStore | None
) -> dict[Shard, KbqError]:
    """Create the state; return the error of each commit that the store refuses, or does not write now."""
    _note_returned(store, planned.returned)
    failed = _created(store, planned, log_store)
    for tp, change in _changes(planned):
        shard = _shard(tp)
        if shard not in failed:
            try:
                state.change_head(store, commit_path(*shard), change)
            except (ConfigurationError, TransientError) as error:
                failed[shard] = error
    return failed


def _note_returned(store: ObjectStore, topics: Collection[str]) -> None:
    """Note that topics are no longer deleted. Their records do not depend on it, so a later run may do it."""
    if topics:
        back = partial(TopicRegistry.marked, topics=topics, gone=False)
        try:
            state.change(store, TopicRegistry, TOPIC_REGISTRY, back)
        except (ConfigurationError, TransientError) as error:
            _LOGGER.warning("%s still counts as deleted: %s", ", ".join(topics), error)


def _created(
    store: ObjectStore, planned: ExtractionPlan, log_store: ObjectStore | None
) -> dict[Shard, KbqError]:
    """Create the commits of new topics, and complete interrupted creations. If the registry cannot be written, this
    fails for all of them, and for no other topic."""
    made: dict[Shard, Versioned[Commit] | KbqError] = {}
    try:
        for is_last in (False, True):
            failed = {topic: found for (topic, _), found in made.items() if isinstance(found, KbqError)}
            wave = [each for each in planned.creations if each.is_last is is_last]
            made |= {(each.topic, each.shard): failed[each.topic] for each in wave if each.topic in failed}
            new = [each.commit() for each in wave if each.topic not in failed]
            found = state.create_each_commit(store, new, log_store)
            made |= zip(((commit.topic, commit.shard) for commit in new), found, strict=True)
        if planned.announced:
            exist = partial(_activated, planned.announced)
            state.change(store, TopicRegistry, TOPIC_REGISTRY, exist)
    except (ConfigurationError, TransientError) as error:
        shards = ((each.topic, each.shard) for each in planned.creations)
        return dict.fromkeys((*shards, *planned.announced), error)
    end_if_all(made.values())
    return {shard: found for shard, found in made.items() if isinstance(found, KbqError)}


def _activated(shards: Collection[Shard], registry: TopicRegistry) -> TopicRegistry:
    return reduce(lambda known, shard: known.activate(*shard), shards, registry)


def _partitions(planned: ExtractionPlan) -> Iterator[TopicPartition]:
    """Partitions that need a commit: with units, or new."""
    yield from (unit.range.topic_partition for unit in planned.units)
    yield from (TopicPartition(each.topic, number) for each in planned.creations for number in each.starts)
    yield from (tp for tp, _ in _changes(planned))


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
