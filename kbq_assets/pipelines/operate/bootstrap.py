"""`kbq bootstrap`: writes the first commit of a topic (PROTOCOL E1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbq_assets.core.errors import InvalidName, NotFound, Refused
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import DONE, STAGING, StagedFileName, shard_of
from kbq_assets.core.protocol.offsets import TopicDescription, TopicPartition
from kbq_assets.pipelines.operate.commands import Proposal, StartAt, epochs_of, shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


def propose_bootstrap(store: ObjectStore, reader: OffsetReader, topic: str, start: StartAt) -> Proposal:
    """Write the first commit of a topic."""
    described = reader.topics().get(topic)
    if described is None:
        raise NotFound(f"topic {topic} is not on the broker", next_step="check the name and the credentials")
    partitions = [TopicPartition(topic, p) for p in range(described.partitions)]
    starts = start.positions(reader, partitions)
    return _creation_proposal(store, reader, topic, described.topic_id, starts)


def propose_bootstrap_from_done_files(
    store: ObjectStore, reader: OffsetReader, topics: Collection[str] | None = None
) -> list[Proposal]:
    """Continue where Kafka BigQuery Express stopped: each partition starts after its highest done file (E1).

    Users may create done files by hand, with either form of name. Without ``topics``, leaves out those that have their
    commits, because their done files are KBQ's own. Raises Refused if a topic still has Avro files that are not loaded.
    """
    described = reader.topics()
    starts = _ends_of_done_files(store, frozenset(described), described if topics is None else topics)
    for topic in [topic for topic, found in starts.items() if not _without_commit(store, topic, found)]:
        if topics is not None:
            raise _has_commit(topic)
        starts.pop(topic)
    if not starts:
        raise NotFound(
            "there are no done files of these topics", next_step=f"put them into {store.uri(DONE)}"
        )
    undrained = sorted(path for path in _staged_paths(store) if _topic_of(path) in starts)
    if undrained:
        raise Refused(
            f"{counted(len(undrained), 'staged file is', 'staged files are')} not loaded yet, such as {undrained[0]}",
            next_step="let the old loader finish, or delete them if their rows are in the tables",
        )
    return [_done_proposal(store, reader, described[topic], starts[topic]) for topic in sorted(starts)]


def _ends_of_done_files(
    store: ObjectStore, known: frozenset[str], wanted: Collection[str]
) -> dict[str, dict[int, int]]:
    """The position after the highest done file of each partition that has one, by topic."""
    ends: dict[str, dict[int, int]] = {}
    for path in store.paths(DONE):
        try:
            name = DoneFileName.parse_bootstrap(path, known)
        except InvalidName:
            continue
        tp = name.topic_partition
        if tp.topic in known and tp.topic in wanted:
            positions = ends.setdefault(tp.topic, {})
            positions[tp.partition] = max(positions.get(tp.partition, 0), name.last_offset + 1)
    return ends


def _done_proposal(
    store: ObjectStore, reader: OffsetReader, description: TopicDescription, starts: dict[int, int]
) -> Proposal:
    topic = description.topic
    missing = [TopicPartition(topic, p) for p in range(description.partitions) if p not in starts]
    earliest = {tp.partition: o.earliest for tp, o in reader.offsets(missing).items()}
    return _creation_proposal(store, reader, topic, description.topic_id, {**earliest, **starts})


def _creation_proposal(
    store: ObjectStore, reader: OffsetReader, topic: str, topic_id: str, starts: Mapping[int, int]
) -> Proposal:
    starts = _without_commit(store, topic, starts)
    if not starts:
        raise _has_commit(topic)
    cluster_id, epochs = reader.cluster_id(), epochs_of(reader, topic, starts)

    def apply() -> None:
        for shard in sorted({shard_of(p) for p in starts}):
            own = {p: commits.starting_at(s, epochs[p]) for p, s in starts.items() if shard_of(p) == shard}
            state.create_commit(store, Commit(topic, shard, cluster_id, topic_id, 1, own))

    lines = tuple(f"{TopicPartition(topic, p)} starts at {start}" for p, start in sorted(starts.items()))
    return Proposal(f"bootstrap {topic}", lines, apply)


def _has_commit(topic: str) -> Refused:
    return Refused(f"{topic} already has a commit", next_step=f"kbq reset --topic {topic} starts it over")


def _without_commit(store: ObjectStore, topic: str, starts: Mapping[int, int]) -> dict[int, int]:
    """The starts of partitions without a commit. A bootstrap that was interrupted may have left only some."""
    known = shards_of(store, topic, required=False)
    return {partition: start for partition, start in starts.items() if shard_of(partition) not in known}


def _staged_paths(store: ObjectStore) -> Iterable[str]:
    return (path for prefix in (STAGING, DONE) for path in store.paths(prefix) if path.endswith(".avro"))


def _topic_of(path: str) -> str:
    try:
        return StagedFileName.parse(path).topic_partition.topic
    except InvalidName:
        # Kafka BigQuery Express stores its Avro files next to the done files, with the same base name.
        return path.rpartition("/")[2].rsplit(".", 6)[0]
