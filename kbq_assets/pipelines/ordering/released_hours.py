"""Hours that the partitions' watermarks in a view release for a table with `order: hour` (PROTOCOL O8)."""

from __future__ import annotations

from collections.abc import Iterable

from kbq_assets.core.loading.batches import pending_files, windows_by_partition
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.hour_order import ALL_HOURS, Release, release_of, why_waiting
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.topics.ordering_options import HOUR
from kbq_assets.pipelines.loading.completeness import partitions_to_wait_for
from kbq_assets.pipelines.loading.load_blocks import TopicOptions
from kbq_assets.pipelines.loading.ports import topics_of
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.protocol.state import Versioned


def release_for(
    view: LoadView, current: TableState, files: Iterable[StagedFile], options: TopicOptions
) -> Release:
    """The hour up to which a table's windows may become visible. ``options`` are those of topics that are extracted
    now; the table does not wait for others. Raises the errors of ``options``."""
    if current.order.rule.by != HOUR:
        return ALL_HOURS
    topics = topics_of(files) | {key.partition("/")[0] for key in current.rows}
    slowest = partitions_to_wait_for(view, topics, options)
    objects = (view.commit_objects.get(path) for topic in topics for path in view.commit_paths(topic))
    written = max((found.updated_ms for found in objects if isinstance(found, Versioned)), default=0)
    return release_of(slowest.values(), written)


def why_no_batch(view: LoadView, current: TableState, files: Iterable[StagedFile], release: Release) -> str:
    """A message about the hour that all pending windows of a table wait for, and the partition that has not passed it;
    "" if none waits."""
    if current.order.rule.by != HOUR:
        return ""
    pending = pending_files(current, (file for file in files if file.path not in view.given_up))
    free = [file for file in pending if file.name.topic_partition.topic not in view.blocks]
    return why_waiting(windows_by_partition(free), release)
