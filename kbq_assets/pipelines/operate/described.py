"""The broker's topic, as commands that begin a new epoch compare it with commits (PROTOCOL E2, E9)."""

from __future__ import annotations

from collections.abc import Collection

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.extraction.planning import is_other_topic
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.offsets import TopicDescription
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
    is_other_cluster = bool(commit.cluster_id and cluster_id) and commit.cluster_id != cluster_id
    is_other = is_other_cluster or is_other_topic(commit.topic_id, topic.topic_id)
    if is_other and not commit.partitions.keys() <= set(resets):
        raise Refused(
            f"{commit.topic} was recreated: the positions of its other partitions are of the former log",
            next_step=f"{command} --topic {commit.topic}, which resets all partitions",
        )
