"""The real code with one rule of PROTOCOL.md removed. The simulator must notice each.

Rules whose removal shows in one interleaving of thousands have a test of that interleaving instead
(`kbq_assets_tests/pipelines/`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from kbq_assets.core.errors import JobAlreadyExists, StateError, UnknownOutcome
from kbq_assets.core.extraction import pruning
from kbq_assets.core.loading import batches, completeness, origins, quarantine, table_state
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.loading.merging import plan_merges
from kbq_assets.core.loading.origins import Doubt
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.loading.verification import Unsound
from kbq_assets.core.ordering import batches as ordering_batches
from kbq_assets.core.ordering import hour_order, transitions
from kbq_assets.core.ordering.table_order import TableOrder
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.extraction import publisher
from kbq_assets.pipelines.loading import completeness as loading_completeness
from kbq_assets.pipelines.loading import job_recovery, job_start, merging
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.verification import StagedContents
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.operate import restage
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.registry import RegisteredSchema
from kbq_assets.wire.files.error_rows import ErrorRows
from kbq_assets.wire.files.hour_files import WindowHours
from kbq_assets.wire.files.staged_file import FileEncoder
from kbq_assets.wire.records.rows_per_hour import HourCounter
from kbq_assets.worker import unit
from kbq_assets.worker.pinned_schemas import PinnedSchemas
from kbq_assets_tests.simulation import ordered
from kbq_assets_tests.simulation.world import World


@dataclass(frozen=True)
class Mutant:
    """A rule removed: attributes to replace while it is active."""

    name: str
    rule: str
    changes: tuple[tuple[Any, str, Any], ...]
    #: A schedule that notices it. When changed code moves it, the search finds another one to write here.
    seed: int = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace the attributes, and put them back."""
        with ExitStack() as stack:
            for owner, name, value in self.changes:
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)
            yield


def _blind_swap(store: Any, old: Any, value: Any) -> Any:
    generation = store.get(old.path).generation
    store.swap(old.path, codec.dumps(value), generation)
    return old


def _publish_without_next(original: Callable[..., Any]) -> Callable[..., Any]:
    def publish(now: Any, window: Any, *args: Any) -> Any:
        return original(dataclasses.replace(now, next=window.first), window, *args)

    return publish


def _reset_without_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    def reset(commit: Any, starts: Any, **options: Any) -> Any:
        return dataclasses.replace(original(commit, starts, **options), epoch=commit.epoch)

    return reset


def _mark_without_schema(file: StagedFile) -> str:
    topic, partition = file.name.topic_partition
    return f"{topic}/{partition}/{file.name.epoch}/0"


def _mark_without_epoch(file: StagedFile) -> str:
    topic, partition = file.name.topic_partition
    return f"{topic}/{partition}/1/{file.name.schema_id}"


def _prune_if_any_loaded(commit: Any, is_loaded: Callable[[StagedFile], bool]) -> Any:
    return commits._map_windows(commit, lambda window: None if any(map(is_loaded, window.files)) else window)


def _orphan_whatever_the_position(path: str, by_shard: Any) -> bool:
    return True


def _tables_before_the_commit(store: Any, commits_: Any) -> Any:
    """Takes backlogs and states from before the commits were read, but reads the commits again."""
    before = files_in_use(store, [])
    found = state.read_commits(store)
    commits_[:] = found
    return {**before, **{f.path: f for c in found for f in c.value.files}}


files_in_use = state.files_in_use


def _submit_or_give_up(run: TableRun, current: Any, in_flight: Any, staged: Any) -> Turn:
    try:
        run.ports.warehouse.insert_job(run.load_job(in_flight, in_flight.files))
    except UnknownOutcome:
        run.swap(current, table_state.give_up(current.value))
    except JobAlreadyExists:
        pass
    return CONTINUE


def _record_failed_as_loaded(run: TableRun, current: Any, in_flight: Any, error: Any) -> Turn:
    run.swap(current, table_state.record_success(current.value, in_flight.rows))
    return CONTINUE


def _delete_then_settle(run: TableRun, current: Any, in_flight: Any, staged: Any) -> Turn:
    run.ports.store.delete_many([f.path for f in in_flight.files])
    return original_settle(run, current, in_flight, staged)


original_settle = job_recovery.settle


def _isolate_with_the_mark(current: Any, bad: Any) -> Any:
    isolated = original_isolate(current, bad)
    if isolated.in_flight is None:
        return isolated
    marks = dict(isolated.marks)
    for quarantined in bad:
        marks[table_state.mark_key(quarantined.file)] = quarantined.file.until
    return dataclasses.replace(
        isolated, in_flight=None, marks=marks, quarantined=(*current.quarantined, *bad)
    )


original_isolate = table_state.isolate


def _same_sequence(current: Any, in_flight: Any) -> Any:
    in_flight = dataclasses.replace(in_flight, job_id=f"kbq-{current.uuid}-1")
    return dataclasses.replace(current, in_flight=in_flight)


def _publish_listed_as_lost(commit: Any, outcomes: Any, now_ms: int, asked_ms: int, sealed: Any) -> Any:
    for outcome in outcomes:
        tp = outcome.unit.range.topic_partition
        now = commit.partitions[tp.partition]
        if outcome.windows:
            rebased = dataclasses.replace(now, next=outcome.windows[0].first)
            commit = commit.with_partition(tp.partition, rebased)
        try:
            commit = commits.publish(commit, tp.partition, commit.epoch, outcome.windows)
        except StateError:
            continue
    return commit, [], {}


def _newest_first(files: list[StagedFile]) -> Any:
    return {tp: windows[::-1] for tp, windows in original_windows(files).items()}


original_windows = batches.windows_by_partition


def _errors_with_kafka_times(self: ErrorRows) -> Any:
    finished = finish_errors(self)
    return finished and dataclasses.replace(finished, newest_event_ms=self._hours.newest_ms)


finish_errors = ErrorRows.finish


def _add_whatever_was_described(self: HourCounter, times: Any, newest: Any = None) -> None:
    add_times(self, times)


add_times = HourCounter.add

MUTANTS = (
    Mutant("a swap without precondition", "E4, L2",
           ((state, "swap", _blind_swap), (publisher, "swap", _blind_swap)), seed=3),
    Mutant("windows published wherever the partition stands", "E4",
           ((commits, "_with_window", _publish_without_next(commits._with_window)),
            (unit, "_is_superseded", lambda unit, commit: False))),
    Mutant("an unknown swap is made again without looking", "E4", ((publisher, "rebase", _publish_listed_as_lost),)),
    Mutant("a reset keeps the epoch", "E9", ((commits, "reset", _reset_without_epoch(commits.reset)),), seed=5),
    Mutant("marks without schema id", "L1", ((table_state, "mark_key", _mark_without_schema),)),
    Mutant("marks without epoch", "E9", ((table_state, "mark_key", _mark_without_epoch),), seed=17),
    Mutant("a window is pruned when any of its files is loaded", "E7",
           ((commits, "prune", _prune_if_any_loaded),), seed=3),
    Mutant("the sweep ignores the position", "E6", ((pruning, "_is_orphan", _orphan_whatever_the_position),), seed=23),
    Mutant("the sweep reads tables and backlogs before the commits", "E6",
           ((state, "files_in_use", _tables_before_the_commit),), seed=593),
    Mutant("a failed job counts as loaded", "L5", ((job_recovery, "_recover", _record_failed_as_loaded),), seed=11),
    Mutant("files are deleted before the load is recorded", "L4", ((job_recovery, "settle", _delete_then_settle),)),
    Mutant("the mark passes a bad file before its batch", "L5", ((table_state, "isolate", _isolate_with_the_mark),),
           seed=42),
    Mutant("one job id for all of a table's jobs", "L2", ((table_state, "under_new_id", _same_sequence),)),
    Mutant("newest windows first", "L1", ((batches, "windows_by_partition", _newest_first),)),
    Mutant("hours of quarantined rows are complete", "L5, L10",
           ((loading_completeness, "_refused", lambda current: []),), seed=11),
)  # fmt: skip
#: Two loaders at once notice it far sooner than whole schedules do, where its job seldom finds its files.
A_NEW_ID = Mutant("a new id after an unknown outcome", "L3", ((job_recovery, "_submit", _submit_or_give_up),))


def _wanted_by_the_option(self: WarehouseStates, file: StagedFile) -> list[str]:
    return list(World.options_now[-1] or ("",))


def _used_by_the_first(store: Any, commits_: Any) -> Any:
    first = WarehouseStore.of(store)
    files = [file for commit in commits_ for file in commit.value.files]
    files += [file for chunk in state.read_backlogs(first) for file in chunk.value.files]
    for current in state.read_table_states(first).values():
        files += current.value.in_flight.files if current.value.in_flight else ()
    return {file.path: file for file in files}


def _one_by_one(
    waiting: Iterable[StagedFile], may_wait_aside: Callable[[StagedFile], bool]
) -> list[StagedFile]:
    return [file for file in waiting if may_wait_aside(file)]


#: With several warehouses only (`TWO_WAREHOUSES`).
WAREHOUSE_MUTANTS = (
    Mutant("a window is pruned by one warehouse's marks", "W3",
           ((WarehouseStates, "_wanting", lambda self, file: list(file.wanted_by[:1])),), seed=17),
    Mutant("a file is deleted after its own load alone", "W4",
           ((TableRun, "without_needed", lambda self, files: list(files)),)),
    Mutant("the topic's option decides a deletion", "W2",
           ((WarehouseStates, "_wanting", _wanted_by_the_option),), seed=7),
    Mutant("clean-up knows the first warehouse only", "W4",
           ((state, "files_in_use", _used_by_the_first),), seed=103),
    Mutant("files of a chunk move one by one", "W3", ((pruning, "_moving", _one_by_one),), seed=729),
    Mutant("a backlog without a table state is not seen", "W3",
           ((LoadView, "tables", property(lambda self: sorted({*self.committed, *self.registry.tables}))),), seed=19),
)  # fmt: skip


def _files_and_copies(self: JobInFlight) -> tuple[StagedFile, ...]:
    return (*self.files, *(each.file for each in self.merged))


def _overlapping(files: Any, least: int) -> tuple[tuple[int, ...], ...]:
    return tuple((*group, group[0]) for group in plan_merges(files, least))


#: Jobs that read merged files notice these (`MERGING`).
MERGING_MUTANTS = (
    Mutant("a job reads copies and their parts", "L15", ((JobInFlight, "sources", property(_files_and_copies)),)),
    Mutant("parts of a file are copied twice", "L15", ((merging, "plan_merges", _overlapping),)),
)  # fmt: skip


def _latest_hours_only(hours: Any) -> Any:
    kept = sorted(hours.rows)[-completeness.KEPT_HOURS :]
    rows = {hour: hours.rows[hour] for hour in kept}
    older = sum(hours.rows.values()) - sum(rows.values())
    late = {hour: count for hour, count in hours.late.items() if hour in rows}
    older_late = hours.late_rows - sum(late.values())
    return dataclasses.replace(
        hours, rows=rows, late=late, older_rows=hours.older_rows + older, older_late=older_late
    )


LATEST_ONLY = Mutant(
    "the latest hours push out the others", "L4", ((completeness, "_bounded", _latest_hours_only),)
)
#: Kafka's time instead of a business time moves what a partition has passed (docs/completeness.md).
REPLAY_MUTANTS = (
    Mutant("bad records count as of now", "L10", ((ErrorRows, "finish", _errors_with_kafka_times),)),
    Mutant("records without their time count as of now", "L10", ((HourCounter, "add", _add_whatever_was_described),)),
    Mutant("tombstones count as of now", "L10",
           ((FileEncoder, "newest_ms", property(lambda self: self._hours.newest_ms)),)),
)  # fmt: skip


def _any_schema(self: PinnedSchemas, schema_id: int) -> RegisteredSchema:
    found = self._registry.schema(schema_id)
    self.seen[schema_id] = self._pins.get(schema_id, found.fingerprint)
    return found


def _without_doubt(reason: ParkReason) -> Callable[..., Doubt | None]:
    def doubt(*facts: Any) -> Doubt | None:
        found = find_doubt(*facts)
        return None if found and found.reason == reason else found

    return doubt


find_doubt = origins.doubt


def _settled_with_their_records(state: TableState, in_flight: JobInFlight) -> TableState:
    kept = (dataclasses.replace(bad, retry=False) for bad in state.quarantined)
    return dataclasses.replace(state, quarantined=(*kept, *in_flight.quarantined))


#: Schedules of ordered tables notice these.
ORDER_MUTANTS = (
    Mutant("batches by schema first", "O1", ((ordering_batches, "plan_ordered", ordered.by_schema),), seed=0),
    Mutant("a gate is ignored", "O7", ((TableOrder, "unvalidated", property(lambda self: 0)),), seed=1),
    Mutant("a hold is ignored", "O5", ((TableOrder, "why_held", property(lambda self: "")),), seed=6),
    Mutant("a skip without its decision", "O4, O6", ((transitions, "skip", ordered.skip_silently),), seed=4),
    Mutant("a batch that failed is tried with other windows", "O3",
           ((ordering_batches, "identity", lambda file: ""),), seed=5),
)  # fmt: skip
#: Schedules of tables by hour notice these.
HOUR_MUTANTS = (
    Mutant("a file crosses an hour", "O8", ((WindowHours, "divide", ordered.in_one_file),), seed=0),
    Mutant("an hour is released early", "O8", ((hour_order, "released", lambda queues, release: queues),), seed=4),
    Mutant("one partition's watermark decides", "O8",
           ((loading_completeness, "slowest_partitions", ordered.fastest_partitions),), seed=4),
    Mutant("a window's hours are loaded one by one", "O8",
           ((ordering_batches, "fitting", ordered.fitting_without_the_last),), seed=0),
)  # fmt: skip
#: Schedules of mishaps (mishaps.py) notice these.
MISHAP_MUTANTS = (
    Mutant("a schema id may change its schema", "E12", ((PinnedSchemas, "schema", _any_schema),), seed=16),
    Mutant("files are loaded as they are", "L11", ((StagedContents, "unsound", lambda self, files: Unsound()),),
           seed=2),
    Mutant("another staging area loads too", "L12",
           ((job_start, "doubt", _without_doubt(ParkReason.FOREIGN_ROWS)),), seed=7),
    Mutant("a table that is gone is made anew", "L12",
           ((job_start, "doubt", _without_doubt(ParkReason.TABLE_GONE)),), seed=3),
    Mutant("files that come back from quarantine stay there, too", "L13",
           ((table_state, "_without_settled", _settled_with_their_records),), seed=3),
    Mutant("quarantine takes whole batches", "L5", ((quarantine, "loses_too_much", lambda *_: ""),), seed=50),
    Mutant("backlogs keep files that were read again", "L14",
           ((restage, "backlog_path", lambda *_: "backlog/d.none/1-none.0.0.json"),), seed=1),
)  # fmt: skip
