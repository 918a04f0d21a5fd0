"""Options of a table, derived from the topics that write to it.

A table of several topics gets the safest options: the longest expiry (0: never), a partition filter if any topic wants
one, the lowest limit of billed bytes, and the labels on which all topics agree. Clustering, partitioning and compaction
each come from the first topic, by name, that sets it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kbq_assets.core.compaction.model import CompactionRule
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.topic_settings import TopicSettings

#: The label of KBQ's tables and jobs.
LABEL: Final = ("kbq", "v1")
#: https://cloud.google.com/bigquery/docs/labels-intro#requirements
_MAX_LABEL: Final = 63


def table_options(
    table: TableReference,
    topics: Iterable[str],
    settings: Mapping[str, TopicSettings],
    notes: TableNotes | None = None,
) -> TableOptions:
    """The options of a table. A topic that the source list no longer selects counts with default options."""
    notes = notes or TableNotes()
    topics = sorted(topics)
    chosen = [settings.get(topic, TopicSettings()) for topic in topics] or [TopicSettings()]
    labels = _labels(
        topic=topics,
        owner=[each.ownership.owner for each in chosen],
        cost_center=[each.ownership.cost_center for each in chosen],
    )
    labels |= notes.labels  # jobs get them too
    if is_error_table(table):
        return TableOptions(cluster_by=("_kafka_topic", "reason"), labels=labels, notes=notes)
    expiries = [each.destination.partition_expiry_days for each in chosen]
    return TableOptions(
        cluster_by=next((columns for each in chosen if (columns := each.destination.cluster_by)), ()),
        compaction=next(
            (rule for each in chosen if (rule := each.lake.rule) != CompactionRule()), CompactionRule()
        ),
        partition_unit=next((unit for each in chosen if (unit := each.destination.partition_unit)), ""),
        labels=labels,
        require_partition_filter=any(each.destination.require_partition_filter for each in chosen),
        expiry_days=0 if 0 in expiries else max(expiries),
        notes=notes,
        rules=frozenset(settings[topic].rule for topic in topics if topic in settings),
        bytes_per_day=min(filter(None, (each.statement.bytes_per_day for each in chosen)), default=0),
    )


def label_value(text: str) -> str:
    """Text as a label's value: lower-case letters, digits, '_' and '-', at most 63."""
    return re.sub(r"[^a-z0-9_-]", "_", text.lower())[:_MAX_LABEL]


def _labels(**values: Iterable[str]) -> dict[str, str]:
    """KBQ's label, and the labels on which all topics agree."""
    agreed = {key: set(map(label_value, found)) for key, found in values.items()}
    return {
        **dict([LABEL]),
        **{key: found.pop() for key, found in agreed.items() if len(found) == 1 and all(found)},
    }
