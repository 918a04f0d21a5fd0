"""The complete hours of tables, judged after a load from its last view (core/loading/completeness.py).

This calls neither broker nor warehouse. A view reads states, then commits, then backlogs. So everything that was
committed when a watermark was read is either covered by the state's marks or among the waiting files (PROTOCOL L1).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from kbq_assets.core.errors import KbqError, NotFound, PreconditionFailed, TransientError
from kbq_assets.core.loading import batches, completeness
from kbq_assets.core.loading.completeness import SourcePartition, TableHours, Verdict
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import PARTITIONS_PER_SHARD, TableReference, commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.loading.load_blocks import TopicOptions
from kbq_assets.pipelines.loading.view import LoadView, read_states
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

Verdicts = Mapping[TableReference, Verdict]


def judge_tables(view: LoadView, options: TopicOptions) -> Verdicts:
    """The time until which each table is complete, and what delays it. Tables wait only for topics in ``options``,
    which are those extracted now. Raises the errors of ``options``."""
    slowest = partitions_to_wait_for(view, view.topics.topics, options)
    return {table: _judge(view, table, slowest) for table in view.tables}


@dataclass(frozen=True)
class TableCompleteness:
    """A table's verdict and its hours, for display."""

    verdict: Verdict
    hours: TableHours

    @property
    def table(self) -> TableReference:
        return self.verdict.table


def standings(view: LoadView, options: TopicOptions) -> tuple[TableCompleteness, ...]:
    """Every table, in order. The hours are what the last load found complete; the verdict shows what comes next."""
    verdicts = judge_tables(view, options)
    return tuple(TableCompleteness(verdicts[table], _hours_of(view, table)) for table in view.tables)


def known_hours(cache: StateCache) -> Mapping[TableReference, TableHours]:
    _, states = read_states(cache)
    return {t: found.value.hours for t, found in states.items() if isinstance(found, Versioned)}


def advance_tables(store: ObjectStore, view: LoadView, options: TopicOptions) -> Verdicts:
    """Judge a view, and write newly complete hours to the tables' states. A state that has changed since the view is
    left to the next run."""
    verdicts = judge_tables(view, options)
    moved = [
        (found, verdict.until)
        for table, verdict in verdicts.items()
        if isinstance(found := view.states.get(table), Versioned) and verdict.until > found.value.hours.until
    ]
    if moved:
        now_ms = store.now_ms()
        parallel(lambda pair: _advance(store, *pair, now_ms), moved)
    return verdicts


def _advance(store: ObjectStore, current: Versioned[TableState], until: int, now_ms: int) -> None:
    hours = completeness.advance(current.value.hours, until, now_ms)
    with contextlib.suppress(PreconditionFailed, TransientError, NotFound):
        state.swap(store, current, dataclasses.replace(current.value, hours=hours))


def _hours_of(view: LoadView, table: TableReference) -> TableHours:
    found = view.states.get(table)
    return found.value.hours if isinstance(found, Versioned) else TableHours()


def _judge(view: LoadView, table: TableReference, slowest: Mapping[str, SourcePartition]) -> Verdict:
    try:
        current = view.state_of(table)
        files = [] if current.parked else list(view.files(table))
    except KbqError as error:
        return Verdict(table, _hours_of(view, table).until, why=error.message)
    waiting = batches.pending_files(current, (f for f in files if f.path not in view.given_up))
    waiting.extend(current.in_flight.files if current.in_flight else ())
    topics = {key.partition("/")[0] for key in current.rows}
    topics.update(file.name.topic_partition.topic for file in waiting)
    topics.update(bad.file.name.topic_partition.topic for bad in current.quarantined)
    partitions = [slowest[topic] for topic in topics if topic in slowest]
    blocked = _blocked(table, current)
    verdict = completeness.judge(table, current.hours, partitions, waiting, blocked, _refused(current))
    return _with_block(verdict, view, topics)


def _blocked(table: TableReference, current: TableState) -> str:
    """The reason why a table cannot be judged; "" if it can. If a job loaded fewer rows than it should (L4), the hours
    of the missing rows are unknown."""
    if current.parked:
        return f"parked: {current.parked.reason}"
    if not current.new_mismatches:
        return ""
    return f"{current.new_mismatches[0]}; to continue anyway: kbq resume --table {table}"


def _refused(current: TableState) -> list[StagedFile]:
    """Bad files that no operator has seen, including those of the job in flight. The marks are beyond these files, but
    their rows are in no table."""
    in_flight = current.in_flight.quarantined if current.in_flight else ()
    return [bad.file for bad in (*current.new_quarantined, *in_flight)]


def _with_block(verdict: Verdict, view: LoadView, topics: Collection[str]) -> Verdict:
    """The verdict. If it waits for staged files and a check blocks a topic, it names the check (L9)."""
    blocked = sorted(topics & view.blocks.keys())
    if verdict.held_by != "staged files" or not blocked:
        return verdict
    topic = blocked[0]
    why = f"{verdict.why}; {topic} is blocked: {view.blocks[topic].check}"
    return dataclasses.replace(verdict, why=why)


def partitions_to_wait_for(
    view: LoadView, topics: Iterable[str], options: TopicOptions
) -> dict[str, SourcePartition]:
    """The slowest partition of each topic that tables wait for."""
    topics = frozenset(topics)
    known = slowest_partitions(view, options(topics - view.unknown))
    return {**known, **unknown_partitions(view, topics)}


def slowest_partitions(view: LoadView, options: Mapping[str, TopicSettings]) -> dict[str, SourcePartition]:
    """The slowest partition of each extracted topic that reports complete hours."""
    found = {}
    for topic, settings in options.items():
        if settings.checks.complete_after_seconds > 0:
            partition = completeness.slowest_of(
                _source_partitions(view, topic, settings.checks.complete_after_seconds * 1000)
            )
            if partition is not None:
                found[topic] = partition
    return found


def unknown_partitions(view: LoadView, topics: Iterable[str]) -> dict[str, SourcePartition]:
    """A partition that has passed no hour, for each topic with unknown options (L9)."""
    return {
        topic: SourcePartition(TopicPartition(topic, 0), problem=view.blocks[topic].message)
        for topic in view.unknown.intersection(topics)
    }


def _source_partitions(view: LoadView, topic: str, safety_ms: int) -> Iterator[SourcePartition]:
    entry = view.topics.topics.get(topic, TopicEntry())
    for shard in (*entry.active, *entry.creating):
        found = view.commit_objects[commit_path(topic, shard)]
        if isinstance(found, Versioned):
            yield from _partitions(found, safety_ms)
        else:
            # Without this commit, its partitions are unknown, so no hour is complete.
            tp = TopicPartition(topic, shard * PARTITIONS_PER_SHARD)
            why = "its commit is being created" if isinstance(found, NotFound) else found.message
            yield SourcePartition(tp, safety_ms=safety_ms, problem=why)


def _partitions(commit: Versioned[Commit], safety_ms: int) -> Iterator[SourcePartition]:
    for number, partition in commit.value.partitions.items():
        problem = f"it is stopped: {partition.stop.reason}" if partition.stop else ""
        yield SourcePartition(
            commit.value.topic_partition(number),
            partition.watermark,
            safety_ms,
            commit.updated_ms,
            problem,
        )
