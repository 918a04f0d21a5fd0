"""Replays of deployments with several warehouses: each fills one of them (PROTOCOL R13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState, mark_key
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE
from kbq_assets.core.replay.brought import given_by_windows, lacking
from kbq_assets.core.replay.model import Replay
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.catalog.source_list import SourceList
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.replay.ranged import replayed_settings
from kbq_assets.ports.object_store import ObjectStore


def warehouses_of(settings: Settings, sources: SourceList, topic: str) -> tuple[str, ...]:
    """The warehouses that a topic goes to today, by their names in `KBQ_WAREHOUSE`. Raises Refused if the topic cannot
    be replayed."""
    return tuple(map(settings.warehouse_named, _wanted(replayed_settings(sources, topic))))


def _wanted(options: TopicSettings) -> tuple[str, ...]:
    return options.destination.warehouses or (FIRST_WAREHOUSE,)


def check_goes_to(settings: Settings, topic: str, options: TopicSettings, commits: Iterable[Commit]) -> None:
    """Raise Refused unless the topic goes to the chosen warehouse, or went there before."""
    name = settings.warehouse_area
    partitions = [found for commit in commits for found in commit.partitions.values()]
    was_given = any(given_by_windows(found, name).positions for found in partitions)
    if name not in _wanted(options) and not was_given:
        wanted = settings.warehouse_named(_wanted(options)[0])
        raise Refused(
            f"{topic} does not go to warehouse {settings.warehouse_named(name)}",
            next_step=f"kbq --warehouse {wanted} replay start {topic}, or add it to the topic's option warehouses",
        )


def check_own(settings: Settings, replay: Replay) -> Replay:
    """Return the replay. Raises Refused if it is not of the chosen warehouse."""
    if replay.warehouse != settings.warehouse_area:
        wanted = settings.warehouse_named(replay.warehouse)
        raise Refused(
            f"replay {replay.number} belongs to warehouse {wanted}",
            next_step=f"omit --warehouse, or use kbq --warehouse {wanted}",
        )
    return replay


def check_named(settings: Settings, replay: Replay) -> None:
    """Raise Refused if `KBQ_WAREHOUSE` does not name a replay's warehouse."""
    name = replay.warehouse
    if name and name not in settings.other_warehouses:
        raise Refused(
            f"replay {replay.number} belongs to warehouse {name}, but KBQ_WAREHOUSE no longer names it",
            next_step=f"name it again, or kbq warehouse remove {name}, which ends its replays",
        )


def in_part(settings: Settings, replay: Replay, commits: Iterable[Commit]) -> Iterable[str]:
    """A line for a topic if its warehouse was given only a part of the rows: a promotion also brings the others."""
    partitions = [found for commit in commits for found in commit.partitions.values()]
    if rows := sum(lacking(found, replay.warehouse) for found in partitions):
        name = settings.warehouse_named(replay.warehouse)
        yield (
            f"warehouse {name} was not given {counted(rows, 'row')} of the topic: a promotion also brings"
            " those of the range"
        )


def marks_of(store: ObjectStore) -> Mapping[str, int]:
    """The highest end of files that any table of any warehouse has, is loading, or waits for in its backlog, by key of
    a mark. A single warehouse that was down, or was not given some windows, may have lower ends of epochs (R2)."""
    found: dict[str, int] = {}
    for area in state.areas(store).values():
        states = state.read_table_states(area).values()
        for key, mark in marks_in(each.value for each in states).items():
            found[key] = max(mark, found.get(key, 0))
        for chunk in state.read_backlogs(area):
            for file in chunk.value.files:
                found[mark_key(file)] = max(file.until, found.get(mark_key(file), 0))
    return found


def marks_in(states: Iterable[TableState]) -> dict[str, int]:
    """The highest end of files that any of the tables has or is loading, by key of a mark."""
    found: dict[str, int] = {}
    for each in states:
        # Include files in flight: a reset may have given them up, so no backlog has them.
        loading = ((mark_key(file), file.until) for file in (each.in_flight.files if each.in_flight else ()))
        for key, mark in (*each.marks.items(), *loading):
            found[key] = max(mark, found.get(key, 0))
    return found
