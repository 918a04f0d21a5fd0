"""Plans a replay: its positions, its epoch, and its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kbq_assets.core.errors import KbqError, NotFound, PreconditionFailed, Refused
from kbq_assets.core.extraction.backlog import Averages
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.run_totals import EXTRACTION, RunTotals, totals_path
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.counts import Counts, total
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.replay.model import (
    BACKUP,
    KAFKA,
    REPLAYS,
    Replay,
    epoch_of,
    parse_replay_path,
    replay_path,
)
from kbq_assets.core.replay.positions import Extracted, Position, bounds_of
from kbq_assets.core.replay.promotion import check_kind
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.replay.backup_ranges import TopicCopies
from kbq_assets.pipelines.replay.ranged import replayed_settings
from kbq_assets.pipelines.replay.warehouses import check_goes_to, in_part, marks_of
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.replay import ReplayTables, RowRange

#: Ranges that a plan names. It only counts the others.
_NAMED: Final = 8


@dataclass(frozen=True)
class ReplayedTopic:
    """A topic's commits by shard, and the states of all tables, as a replay finds them."""

    commits: Mapping[int, Commit]
    states: Mapping[TableReference, TableState]

    @classmethod
    def read(cls, live: Deployment, topic: str) -> ReplayedTopic:
        """Read the states before the commits, so no mark is newer than the commits (L1). Raises NotFound."""
        store = live.load_store
        states = state.read_table_states(store)
        return cls(shards_of(live.store, topic), {t: s.value for t, s in states.items()})

    def tables(self, topic: str) -> list[TableReference]:
        """Tables that ever had rows of the topic."""
        return sorted(
            t for t, found in self.states.items() if any(key.startswith(f"{topic}/") for key in found.rows)
        )

    @property
    def totals(self) -> Counts:
        """Totals over the partitions' whole history."""
        return total(commit.totals for commit in self.commits.values())


def plan_replay(
    live: Deployment,
    number: int,
    topic: str,
    ends: tuple[Position, Position],
    source: str = KAFKA,
    only: frozenset[TableReference] = frozenset(),
) -> Replay:
    """The replay of a range, for all tables or ``only`` some. Raises Refused, NotFound."""
    first, until = ends
    settings = replayed_settings(live.sources, topic)
    found = ReplayedTopic.read(live, topic)
    check_goes_to(live.settings, topic, settings, found.commits.values())
    keyed = [t for t in found.tables(topic) if found.states[t].has_statements]
    for table in keyed:
        check_kind(str(table), found.states[table].definition.statements.rule)
    if only and (keyed or not settings.statement.rule.appends):
        raise Refused(
            f"{topic} has load=upsert: such a table does not show which records went to it",
            next_step="start a replay without --tables",
        )
    if source == BACKUP:
        copies = TopicCopies.read(live, settings, found.commits)
        extracted = _copied(copies, found.commits, first, until)
    else:
        extracted = _extracted(live, found.commits, first, until)
    waiting = _waiting(live, topic)
    extracted = [replace(each, waits_from=waiting.get(each.topic_partition)) for each in extracted]
    bounds = bounds_of(extracted, first, until)
    planned = Replay(
        number,
        topic,
        0,
        bounds,
        source,
        started_ms=live.store.now_ms(),
        only=tuple(sorted(map(str, only))),
        tombstones=settings.records.tombstones == "row",
        warehouse=live.settings.warehouse_area,
    )
    if source == BACKUP:
        for range_ in planned.ranges:
            copies.check(range_)
    return replace(planned, epoch=epoch_of(planned.ranges, found.commits.values(), marks_of(live.load_store)))


def _waiting(live: Deployment, topic: str) -> dict[TopicPartition, int]:
    """The first offset in each partition that waits for a table that is gone. Only a promotion can create the table
    again, but it must not replace rows that wait (R3)."""
    view, found = read_view(StateCache(live.load_store)), dict[TopicPartition, int]()
    for table, known in view.states.items():
        if isinstance(known, KbqError) or known.value.parked is None:
            continue
        if known.value.parked.reason == ParkReason.TABLE_GONE:
            for file in view.files(table):
                tp = file.name.topic_partition
                if tp.topic == topic and not known.value.is_loaded(file):
                    found[tp] = min(file.name.first_offset, found.get(tp, file.name.first_offset))
    return found


def replay_numbers(store: ObjectStore) -> list[int]:
    """The numbers of all replays, in order."""
    return sorted(map(parse_replay_path, store.paths(REPLAYS)))


def read_replays(store: ObjectStore) -> list[Replay]:
    """All replays, in order. None is ever deleted."""
    return [state.read(store, Replay, replay_path(number)).value for number in replay_numbers(store)]


def find_replay(store: ObjectStore, number: int) -> Replay:
    """A replay of any warehouse. Raises NotFound."""
    found = state.find(store, Replay, replay_path(number))
    if found is None:
        raise NotFound(f"there is no replay {number}", next_step="kbq replay list")
    return found.value


def create(live: Deployment, replay: Replay) -> None:
    """Write a new replay. Raises Refused if its number is taken, ConfigurationError if its warehouse was removed."""
    live.register_warehouses()
    try:
        live.store.create(replay_path(replay.number), codec.dumps(replay))
    except PreconditionFailed as conflict:
        raise Refused(
            f"replay {replay.number} was started by another process", next_step="run the command again"
        ) from conflict


def _extracted(
    live: Deployment, commits: Mapping[int, Commit], first: Position, until: Position
) -> list[Extracted]:
    reader = live.offsets
    states = {c.topic_partition(p): found for c in commits.values() for p, found in c.partitions.items()}
    broker = reader.offsets(list(states))
    if gone := sorted(states.keys() - broker.keys()):
        raise Refused(f"the broker does not have {', '.join(map(str, gone))}", next_step="kbq plan")

    def offsets_at(end: Position) -> Mapping[TopicPartition, int]:
        return reader.offsets_for_time(list(states), end.time_ms) if end.time_ms >= 0 else {}

    starts, ends = offsets_at(first), offsets_at(until)
    return [
        Extracted(tp, found, broker[tp], starts.get(tp, 0), ends.get(tp, 0))
        for tp, found in sorted(states.items())
    ]


def _copied(
    copies: TopicCopies, commits: Mapping[int, Commit], first: Position, until: Position
) -> list[Extracted]:
    def offset_at(tp: TopicPartition, end: Position) -> int:
        return copies.offset_at(tp, end.time_ms) if end.time_ms >= 0 else 0

    states = {c.topic_partition(p): found for c in commits.values() for p, found in c.partitions.items()}
    return [
        Extracted(
            tp,
            found,
            copies.offsets(tp),
            offset_at(tp, first),
            offset_at(tp, until),
            is_bound=False,
        )
        for tp, found in sorted(states.items())
    ]


def plan_lines(live: Deployment, tables: ReplayTables, replay: Replay) -> Iterable[str]:
    """Lines about the records, tables and cost of a replay, for the user to confirm."""
    found = ReplayedTopic.read(live, replay.topic)
    averages = Averages.of(found.totals)
    records = int(replay.positions * averages.records)
    origin = " from the backup" if replay.source == BACKUP else ""
    yield from (f"reads {range_} again{origin}" for range_ in replay.ranges[:_NAMED])
    if len(replay.ranges) > _NAMED:
        yield f"and {counted(len(replay.ranges) - _NAMED, 'more partition')}"
    size = replay.positions * averages.bytes / 1e6
    yield f"{counted(replay.positions, 'position')}: about {counted(records, 'record')}, {size:,.1f} MB"
    known = [table for table in found.tables(replay.topic) if replay.covers(table)]
    found_days = tables.days(known, rows_of(replay))
    days = sorted({at.day for by_day in found_days.values() for at in by_day if at.day})
    rows = sum(each.rows for by_day in found_days.values() for each in by_day.values())
    between = f", {counted(len(days), 'day')} of partitions from {days[0]} to {days[-1]}" if days else ""
    filled = sum(map(bool, found_days.values()))
    yield f"these positions now have {counted(rows, 'row')} in {counted(filled, 'table')}{between}"
    yield from in_part(live.settings, replay, found.commits.values())
    yield from _cost(live, replay.topic, records, found.totals.records)
    yield "fills shadow tables next to the live ones: no live table, position or load changes"
    if replay.only:
        yield f"fills only {', '.join(replay.only)}; other tables of the topic keep their rows"
    if keyed := [str(t) for t in known if found.states[t].has_statements]:
        yield (
            f"{', '.join(keyed)}: a promotion gives each key of the range its newest record, but is refused if that"
            " lies before the range"
        )
    if unknown := [name for name in replay.only if TableReference.parse(name) not in known]:
        yield f"has no row of this topic yet: {', '.join(unknown)}"
    if ordered := [str(t) for t in known if found.states[t].order.rule.by]:
        yield (
            f"{', '.join(ordered)} has an order: a promotion changes only values, and no gate or hour checks them"
        )


def rows_of(replay: Replay) -> RowRange:
    return RowRange(replay.topic, replay.epoch, replay.ranges)


def _cost(live: Deployment, topic: str, records: int, measured: int) -> Iterable[str]:
    """Estimates of cost and time, based on the topic's extractions so far."""
    totals = state.find(live.store, RunTotals, totals_path(EXTRACTION))
    used = totals.value.costs.get(topic) if totals else None
    if totals is None or used is None or not measured:
        yield "cost and time: unknown, because no run of this topic was measured"
        return
    seconds = used.core_seconds * records / measured
    yield f"about {seconds:,.1f} processor seconds, as measured for this topic; load jobs as for new records"
    if used.rate:
        alone, tasks = records / used.rate, max(1, len(totals.value.workers))
        at_once = f", {alone / tasks:,.1f} in {tasks} tasks, as in the last run" if tasks > 1 else ""
        yield f"about {alone:,.1f} seconds in one task at the measured {used.rate:,.1f} records per second{at_once}"
