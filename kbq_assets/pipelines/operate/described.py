"""The broker's topic, as commands that begin a new epoch compare it with commits (PROTOCOL E2, E9)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.extraction.planning import is_other_topic
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.offsets import TopicDescription, TopicPartition
from kbq_assets.ports.kafka import OffsetReader


def describe(reader: OffsetReader, topic: str, partition: int | None) -> TopicDescription:
    """The broker's description of a topic. Raises NotFound if there is no such topic or partition."""
    described = reader.topics((topic,)).get(topic)
    if described is None:
        raise NotFound(f"topic {topic} is not on the broker", next_step="check the name and the credentials")
    if partition is not None and partition >= described.partitions:
        raise NotFound(
            f"{topic} has {counted(described.partitions, 'partition')}, numbered from 0",
            next_step="choose one of them",
        )
    return described


def check_same_log(
    commit: Commit, resets: Collection[int], topic: TopicDescription, cluster_id: str, command: str
) -> None:
    """Raise Refused if the commit is of another log, and a reset leaves out some of its partitions: they would continue
    at positions of that log, and skip the first records of the new one."""
    if _is_other_log(commit, topic, cluster_id) and not commit.partitions.keys() <= set(resets):
        raise Refused(
            f"{commit.topic} was recreated: the positions of its other partitions are of the former log",
            next_step=f"{command} --topic {commit.topic}, which resets all partitions",
        )


def position_lines(
    reader: OffsetReader,
    topic: TopicDescription,
    commits: Iterable[Commit],
    starts: Mapping[int, int],
    left: str,
) -> Iterable[str]:
    """How a reset changes positions, and how many it leaves unread or uncopied (``left``): counted from the log's first
    position, if the old one is of a former log or there is none."""
    broker = reader.offsets([TopicPartition(topic.topic, p) for p in starts])
    cluster_id = reader.cluster_id()
    known = {p: (found.next, commit) for commit in commits for p, found in commit.partitions.items()}
    for partition, start in sorted(starts.items()):
        tp = TopicPartition(topic.topic, partition)
        position, commit = known.get(partition, (None, None))
        if position is None or commit is None or _is_other_log(commit, topic, cluster_id):
            begin = broker[tp].earliest if tp in broker else start
        else:
            begin = position
        gives_up = f" gives up {counted(start - begin, 'position')} {left}" if start > begin else ""
        yield f"{tp}: position {'none' if position is None else position} -> {start}{gives_up}"


def _is_other_log(commit: Commit, topic: TopicDescription, cluster_id: str) -> bool:
    is_other_cluster = bool(commit.cluster_id and cluster_id) and commit.cluster_id != cluster_id
    return is_other_cluster or is_other_topic(commit.topic_id, topic.topic_id)
