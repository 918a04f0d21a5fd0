"""Snapshots and plans of backups, separate from those of the tables (PROTOCOL B1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kbq_assets.core.backup.areas import AREAS, UNREACHABLE, copied_area
from kbq_assets.core.errors import ConfigurationError, KbqError, StateError, TransientError
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: Commands that `kbq backup` also has.
_OWN: Final = ("kbq resume", "kbq accept-gap", "kbq reset")
#: Opens the store of an area (core/backup/areas.py).
OpenArea = Callable[[str], ObjectStore]
#: Plans the topics of one output by the commits of a store. The second argument decides by a topic's options whether it
#: has that output.
PlanOutput = Callable[[ObjectStore, Callable[[TopicSettings], bool]], ExtractionPlan]


def plan_backups(
    sources: Iterable[SourceEntry],
    reader: OffsetReader,
    open_area: OpenArea,
    plan_output: PlanOutput,
    only: frozenset[str] | None,
) -> dict[str, ExtractionPlan]:
    """The plan of each area that has a topic. If an area does not answer, its plan has a stop for each of its topics,
    and the tables continue."""
    sources = tuple(sources)
    wanted = {copied_area(entry.settings) for entry in sources}
    found: dict[str, ExtractionPlan] = {}
    for area in AREAS:
        if area in wanted:
            try:
                planned = plan_output(open_area(area), in_area(area))
                stops = (replace(stop, commands=backup_commands(stop.commands)) for stop in planned.stops)
                found[area] = replace(planned, stops=tuple(stops))
            except (TransientError, StateError, ConfigurationError) as error:
                topics = select_topics(sources, reader.topics())
                found[area] = ExtractionPlan(stops=tuple(_unreachable(topics, area, only, error)))
    return found


def in_area(area: str) -> Callable[[TopicSettings], bool]:
    """A function that returns whether a topic's backup is in an area."""
    return lambda settings: copied_area(settings) == area


def _unreachable(
    topics: Mapping[str, TopicSettings], area: str, only: frozenset[str] | None, error: KbqError
) -> Iterable[PartitionStop]:
    for topic, settings in topics.items():
        if copied_area(settings) == area and (only is None or topic in only):
            tp = TopicPartition(topic, -1)
            message = f"the backup of {topic} cannot be read: {error.message}"
            yield PartitionStop(tp, UNREACHABLE, message, (error.next_step or "kbq extract",))


def _is_own(command: str) -> bool:
    """Whether backups have their own version of a command."""
    return command.startswith(_OWN) and not command.endswith("--gone")


def backup_commands(commands: Iterable[str]) -> tuple[str, ...]:
    """The commands that resume a backup, derived from those that resume the tables. Options for bad records and pinned
    schemas are left out, because copies have neither."""
    of_tables = ("--as-errors", "--new-schemas")
    return tuple(
        command.replace("kbq ", "kbq backup ", 1) if _is_own(command) else command
        for command in commands
        if not command.endswith(of_tables)
    )
