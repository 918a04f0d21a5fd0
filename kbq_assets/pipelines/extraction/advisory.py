"""Published positions, committed to consumer groups for people and their tools. KBQ never reads them back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.extraction.ports import PartitionReport
from kbq_assets.ports.kafka import AdvisoryGroups

_LOGGER: Final = logging.getLogger("kbq.extract")
#: The option's value for a topic whose positions go to no group.
NONE: Final = "none"


def groups_of(
    published: tuple[PartitionReport, ...], topics: Mapping[str, TopicSettings], default: str
) -> dict[str, dict[TopicPartition, int]]:
    """The positions of each group, by the topics' options; ``default`` is the installation's."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for report in published:
        tp = report.topic_partition
        group = (topics[tp.topic].extraction.advisory_group if tp.topic in topics else "") or default
        if group and group != NONE:
            found.setdefault(group, {})[tp] = report.until
    return found


def commit_groups(
    groups: AdvisoryGroups, positions: Mapping[str, Mapping[TopicPartition, int]]
) -> dict[str, str]:
    """Why groups have not got their positions. It raises nothing: a view of a run never fails the run."""
    failures: dict[str, str] = {}
    for group, offsets in sorted(positions.items()):
        try:
            groups.commit(group, offsets)
        except KbqError as error:
            failures[group] = str(error)
            _LOGGER.warning("%s; next: %s", error.message, error.next_step)
    return failures
