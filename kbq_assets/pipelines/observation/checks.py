"""Runs all checks with one read of state, and with a number of broker calls that does not depend on the partitions.

If the broker does not answer, its checks are unknown: neither passed nor failed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kbq_assets.core.errors import KbqError, TransientError
from kbq_assets.core.loading.batches import LoadLimits, pending_files
from kbq_assets.core.loading.partitions import limits_by
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation import checks
from kbq_assets.core.observation.check_names import (
    BACKUPS_RUN,
    DATA_FRESH,
    LAG_SHORT,
    PARTITIONS_RUN,
    REPLAYS_END,
    TABLES_LOAD,
)
from kbq_assets.core.observation.checks import CheckResult, LoadBlock
from kbq_assets.core.ordering import transitions
from kbq_assets.core.protocol.codec import no_collection
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TABLES, TableReference, commit_topic, table_state_path
from kbq_assets.core.protocol.waits import park_commands
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.backup.plan import OpenArea
from kbq_assets.pipelines.extraction.ports import no_backups
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks, commits_by_topic
from kbq_assets.pipelines.loading.view import UNUSABLE, LoadView, read_view
from kbq_assets.pipelines.observation.accounting import Books, PartitionHistory, loaded_rows, out_of_balance
from kbq_assets.pipelines.observation.broker_checks import BrokerView
from kbq_assets.pipelines.observation.replays import UnfinishedReplay, unfinished_replays
from kbq_assets.pipelines.observation.run_failures import load_failures
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.kafka import OffsetReader

#: Only tables in BigQuery have counts.
_LIMITS: Final = LoadLimits()
#: Checks that need the broker.
NEED_BROKER: Final = (PARTITIONS_RUN, BACKUPS_RUN, LAG_SHORT, DATA_FRESH)


@dataclass(frozen=True)
class CheckPorts:
    """The ports of the checks. ``now_ms`` is only compared with records' Kafka timestamps."""

    cache: StateCache
    blocks: LoadBlocks
    offsets: Callable[[], OffsetReader]
    sources: Iterable[SourceEntry]
    now_ms: Callable[[], int]
    open_backup: OpenArea = no_backups


@dataclass(frozen=True)
class CheckReport:
    """Results of all topics and tables, passed or failed.

    ``unknown``: checks that could not run, with the reason. ``others``: topics on the broker that are not extracted.
    ``blocked_tables``: tables with files that wait for a check of their topic.
    """

    results: tuple[CheckResult, ...]
    blocks: tuple[LoadBlock, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    blocked_tables: Mapping[str, LoadBlock] = field(default_factory=dict)
    #: topics whose commit the store refuses to these credentials; their files wait
    refused: Mapping[str, KbqError] = field(default_factory=dict)
    #: objects that the store does not give now, by path, each with the error; nothing is known about their subjects
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Failed results, errors first."""
        failed = (result for result in self.results if not result.passed)
        return tuple(sorted(failed, key=lambda r: (r.severity != "error", r.check, r.subject)))

    def of(self, check: str) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.check == check)


def run_checks(ports: CheckPorts, *, broker: bool = True, survives_silence: bool = False) -> CheckReport:
    """Run all checks, or without ``broker`` only those that need just the state. Raises MissingState or Unavailable if
    the state cannot be read; with ``survives_silence``, not for a commit, state or backlog that the store does not give
    now: no check of its topic or table passes, and the report names it."""
    view = read_view(ports.cache, ports.blocks, survives_silence=survives_silence)
    unavailable: Mapping[str, str] = {}
    if survives_silence:
        unavailable, view = view.silent, view.without(view.silent_tables)
    with no_collection:
        waiting = waiting_files(view)
        of_tables = _of_tables(view, waiting, ports)
        results = [*_of_commits(view, ports.blocks), *of_tables, *_of_replays(view)]
    unknown: dict[str, str] = {}
    others: tuple[str, ...] = ()
    try:
        if broker:
            found = BrokerView.read(ports, view)
            results.extend(found.results(waiting))
            others = found.others
    except TransientError as error:
        unknown = dict.fromkeys(NEED_BROKER, error.message)
    unjudged = _unjudged(view)
    known = (result for result in results if not (result.passed and result.subject in unjudged))
    marked = [_marked(result, view.blocks) for result in known]
    return CheckReport(
        tuple(marked),
        tuple(view.blocks.values()),
        unknown,
        others,
        _blocked_tables(waiting, view.blocks),
        view.refusals,
        unavailable,
    )


def _unjudged(view: LoadView) -> set[str]:
    """Topics with a commit that the store does not give now, and the tables that they have fed."""
    topics = {commit_topic(path) for path in view.unavailable}
    states = ((t, s.value) for t, s in view.states.items() if topics and isinstance(s, Versioned))
    return topics | {str(t) for t, s in states if any(range_.topic in topics for range_ in loaded_rows(s))}


def _blocked_tables(
    waiting: Mapping[TableReference, list[StagedFile]], blocks: Mapping[str, LoadBlock]
) -> dict[str, LoadBlock]:
    """The first block of each table that has files of a blocked topic."""
    found = {}
    for table, files in waiting.items() if blocks else ():
        topics = sorted({file.name.topic_partition.topic for file in files} & blocks.keys())
        if topics:
            found[str(table)] = blocks[topics[0]]
    return found


def _marked(result: CheckResult, blocks: Mapping[str, LoadBlock]) -> CheckResult:
    """The result, marked if it failed and blocks its topic."""
    block = blocks.get(result.subject)
    is_cause = not result.passed and block is not None and block.check == result.check
    return replace(result, blocks=True) if is_cause else result


# Commits --------------------------------------------------------------------------------------------------------------


def _of_commits(view: LoadView, blocks: LoadBlocks) -> Iterator[CheckResult]:
    by_topic = commits_by_topic(view)
    options, contiguous = blocks.options(by_topic), blocks.contiguous(view)
    for topic, commits in by_topic.items():
        yield contiguous[topic]
        yield checks.error_result(topic, commits, options[topic])
        yield checks.small_result(topic, commits, blocked=topic in view.blocks)


def _of_replays(view: LoadView) -> Iterator[CheckResult]:
    """Whether the replays of each topic have read their ranges."""
    found = defaultdict[str, list[UnfinishedReplay]](list)
    for each in unfinished_replays(view.cache):
        found[each.subject].append(each)
    for subject in sorted({*commits_by_topic(view), *found}):
        unfinished = found.get(subject, [])
        if not unfinished:
            yield CheckResult(REPLAYS_END, subject, "it has no unfinished replay")
            continue
        commands = [command for each in unfinished for command in each.commands]
        yield checks.failed(REPLAYS_END, subject, [each.message for each in unfinished], commands)


# Tables ---------------------------------------------------------------------------------------------------------------


def waiting_files(view: LoadView) -> dict[TableReference, list[StagedFile]]:
    """Committed files of each readable table that are not loaded."""
    return view.once("waiting files", lambda: _waiting_files(view))


def _waiting_files(view: LoadView) -> dict[TableReference, list[StagedFile]]:
    found = {}
    for table in view.tables:
        try:
            pending = pending_files(view.state_of(table), view.files(table))
        except UNUSABLE:
            continue  # the check of the table reports it
        found[table] = [file for file in pending if file.path not in view.given_up]
    return found


def _settled(view: LoadView) -> frozenset[TableReference]:
    """Tables whose state did not change while commits and backlogs were read: their view is consistent."""
    now = view.cache.listing(TABLES)
    states = ((table, state) for table, state in view.states.items() if isinstance(state, Versioned))
    paths = {table: (table_state_path(table), state.generation) for table, state in states}
    return frozenset(t for t, (path, seen) in paths.items() if path in now and now[path].generation == seen)


def _of_tables(
    view: LoadView, waiting: Mapping[TableReference, list[StagedFile]], ports: CheckPorts
) -> Iterator[CheckResult]:
    settled, now_ms = _settled(view), ports.now_ms()
    states = {t: s.value for t, s in view.states.items() if isinstance(s, Versioned)}
    # This is the most expensive check, and sensors run it each minute. Without a change, the result stays the same.
    missing = view.cache.derived(
        "missing rows", (view.generations, settled), lambda: _missing_rows(view, states, waiting, settled)
    )
    failures = {table: f.message for table, f in load_failures(view.cache).items() if f.lasts(now_ms)}
    for table in view.tables:
        unusable = None if table in waiting else _error_of(view, table)
        found = _loads(table, unusable or view.states.get(table), failures.get(str(table), ""))
        refused = _refused_topics(view, states.get(table)) if found.passed else []
        yield (
            refused_result(str(table), {topic: view.refusals[topic] for topic in refused})
            if refused
            else found
        )
        if table in states and unusable is None:
            yield checks.rows_result(table, states[table], missing.get(table, ()))
            limits = _limits(states[table], ports.blocks)
            yield checks.quota_result(table, states[table].jobs.submitted, limits, now_ms)


def _limits(state: TableState, blocks: LoadBlocks) -> LoadLimits:
    """BigQuery's limits, for a table's partitions."""
    if not state.jobs.submitted.days:
        return _LIMITS
    topics = blocks.options({range_.topic for range_ in loaded_rows(state)})
    return limits_by(_LIMITS, (each.destination.partition_unit for each in topics.values()))


def _error_of(view: LoadView, table: TableReference) -> KbqError | None:
    """The error of a table whose state or backlog cannot be used."""
    try:
        view.state_of(table)
        view.chunks(table)
    except UNUSABLE as error:
        return error
    return None


def _loads(
    table: TableReference, found: Versioned[TableState] | KbqError | None, failure: str
) -> CheckResult:
    """Whether a table is being loaded. ``failure`` is the error of its last load."""
    if isinstance(found, KbqError):
        return checks.failed(TABLES_LOAD, str(table), (found.message,), (found.next_step,))
    if found is not None and (tried := found.value.restarting) is not None:
        why = f"it is tried again after {tried.reason}: {tried.error}"
        return checks.failed(TABLES_LOAD, str(table), (why,), ("kbq status",))
    if found is not None and (replacing := found.value.definition.replacing) is not None:
        why = f"{replacing.what} rows of it, and it waits"
        return checks.failed(TABLES_LOAD, str(table), (why,), (replacing.next_step,))
    if found is None or found.value.parked is None:
        if failure:
            why = f"its last load failed: {failure}"
            return checks.failed(TABLES_LOAD, str(table), (why,), ("kbq load",))
        return CheckResult(TABLES_LOAD, str(table), "it is loaded")
    parked = found.value.parked
    why = f"it is parked: {parked.reason}: {parked.error}"
    commands = park_commands(table, parked.reason, transitions.failed_batch(found.value))
    return replace(checks.failed(TABLES_LOAD, str(table), (why,), commands), causes=(parked.reason,))


def _refused_topics(view: LoadView, known: TableState | None) -> list[str]:
    """Topics with a refused commit that have fed a table. New files may wait in the commit."""
    if not view.refusals or known is None:
        return []
    return sorted({range_.topic for range_ in loaded_rows(known)} & view.refusals.keys())


def refused_result(table: str, refusals: Mapping[str, KbqError]) -> CheckResult:
    """The failed result of a table that is not loaded, because the store refuses commits of its topics."""
    found = [f"the files of {topic} wait: {error.message}" for topic, error in refusals.items()]
    commands = dict.fromkeys(error.next_step for error in refusals.values() if error.next_step)
    return checks.failed(TABLES_LOAD, table, found, commands)


def _missing_rows(
    view: LoadView,
    states: Mapping[TableReference, TableState],
    waiting: Mapping[TableReference, list[StagedFile]],
    settled: frozenset[TableReference],
) -> dict[TableReference, list[str]]:
    """Findings by table: committed rows that are missing or duplicated in loaded, waiting and quarantined rows."""
    books = Books.of(states, (file for files in waiting.values() for file in files))
    known = settled | (waiting.keys() - view.states.keys())
    found: dict[TableReference, list[str]] = defaultdict(list)
    for commit in view.commits:
        for ledger in PartitionHistory.of(commit, commit, view.warehouse):
            for _, tables, why in out_of_balance(ledger, books):
                if known.issuperset(tables):
                    for table in sorted(tables):
                        found[table].append(f"{ledger.topic_partition}: {why}")
    return found
