"""Ordered tables in the simulator: operators who decide about batches, and what must hold (PROTOCOL O1 to O8)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kbq_assets.core.errors import KbqError, NotFound, Refused
from kbq_assets.core.loading import batches
from kbq_assets.core.loading.batches import LoadBatch, identity
from kbq_assets.core.loading.completeness import HOUR_MS, SourcePartition
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditChunk, AuditEntry, TableOrder
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference, audit_path
from kbq_assets.core.topics.error_tables import ERROR_TABLE
from kbq_assets.pipelines.loading import completeness
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.protocol import state
from kbq_assets.wire.files.hour_files import MOST_HOURS, OTHERS, RouteRows, WindowHours

if TYPE_CHECKING:
    from kbq_assets.core.topics.topic_settings import TopicSettings
    from kbq_assets.pipelines.loading.view import LoadView
    from kbq_assets.wire.chunk import Chunk
    from kbq_assets_tests.fakes.warehouse import Row
    from kbq_assets_tests.simulation.world import World

_DECISIONS: dict[str, Callable[[TableState, AuditEntry], TableState]] = {
    "hold": transitions.hold,
    "release": transitions.release,
    "retry": transitions.retry,
    "continue": transitions.go_on,
    "skip": lambda now, entry: transitions.skip(
        now, now.order.failed.number if now.order.failed else 0, entry
    ),
}


def judge_swap(before: TableState, after: TableState, given_up: Callable[[], set[str]]) -> list[str]:
    """What a swap of an ordered table's state breaks. ``given_up``: paths that resets gave up."""
    job, order = after.in_flight, before.order
    if not order.rule.by or not after.order.rule.by:
        return []
    found = []
    if job is not None and before.in_flight is None:
        if order.hold is not None:
            found.append(f"batch {order.next} was entered while the table was held")
        if order.rule.gates and order.validated < order.settled:
            found.append(f"batch {order.next} was entered before batch {order.settled} was validated")
        failed = order.failed.files if order.failed else ()
        # A reset that gives up all files of a batch leaves its number to the next windows (O3).
        gone = {_parts(path) for path in given_up()} if failed else set()
        is_left = any(_parts(file.path) not in gone for file in failed)
        if order.failed and is_left and not {*map(identity, job.files)} <= {*map(identity, failed)}:
            found.append(f"batch {order.failed.number} was passed over, or has other files")
    if after.order.settled - order.settled not in (0, 1):
        found.append(f"batch {after.order.settled} was settled after {order.settled}")
    known = {bad.file.path for bad in before.quarantined}
    if lost := [bad.file.path for bad in after.quarantined if not bad.dropped and bad.file.path not in known]:
        found.append(f"{lost} went to quarantine")
    return found


def _parts(path: str) -> StagedFileName:
    """The parts of a file's name that its copies share."""
    return dataclasses.replace(StagedFileName.parse(path), attempt="")


def judge_hours(world: World, before: TableState, after: TableState) -> list[str]:
    """Rows that a job shows before all partitions were read up to their hour (O8)."""
    job = after.in_flight
    if job is None or before.in_flight is not None or before.order.rule.by != "hour":
        return []
    read = []
    for commit in world.commits():
        for partition, position in commit.partitions.items():
            tp = commit.topic_partition(partition)
            reported = (
                t for (of, offset), (t, _) in world.own_times.items() if of == tp and offset < position.next
            )
            read.append(max(reported, default=0))
    safety_ms = world.recipe.settings.checks.complete_after_seconds * 1000
    passed = max(0, min(read, default=0) - safety_ms) // HOUR_MS
    early = [
        f"offset {offset} of {file.path}"
        for file in job.files
        for offset in world.offsets(file)
        if (times := world.own_times.get((file.name.topic_partition, offset)))
        and min(times) // HOUR_MS > passed
    ]
    return [f"hours after {passed} were released early: {early[:3]}"] if early else []


def judge_marks(world: World, before: TableState, after: TableState) -> list[str]:
    """Files that a swap's marks cover, although the swap neither records a job with them nor gives them up (L4, O8)."""
    if after.marks == before.marks or world.others:
        return []
    ended, failed = before.in_flight, before.order.failed
    quarantined = [bad.file for bad in (*before.quarantined, *after.quarantined)]
    settled = [*quarantined, *(ended.files if ended else ()), *(failed.files if failed else ())]
    known, tables = set(map(identity, settled)), {file.table for file in settled}
    if not tables:
        return []
    covered = [
        file
        for file in world.waiting()
        if file.table in tables and after.is_loaded(file) and not before.is_loaded(file)
        if identity(file) not in known
    ]
    paths = given_up(world) if covered else set()
    return [f"a mark covers {file.path}, which is not loaded" for file in covered if file.path not in paths]


def judge_files(world: World, files: Sequence[StagedFile]) -> list[str]:
    """Files of a window that cross an hour, although it has few hours (O8)."""
    if world.recipe.settings.ordering.order != "hour" or len(files) >= MOST_HOURS:
        return []
    crossing = [f.path for f in files if f.table.table != ERROR_TABLE and len(f.events.hours) > 1]
    return [f"{path} crosses an hour" for path in crossing]


def given_up(world: World) -> set[str]:
    """The paths that resets gave up."""
    commits = state.read_commits(world.store)
    return {path for commit in commits for path in commit.value.given_up}


def operate(world: World, name: str) -> None:
    """An operator decides something about a table, whether or not it makes sense."""
    kind = world.random.choice(sorted(_DECISIONS))
    _decide(world, name, world.random.choice(world.tables), kind)


def _decide(world: World, name: str, table: TableReference, kind: str) -> None:
    entry = AuditEntry(world.store.time_ms, "", 0, "simulated", name)
    with suppress(Refused, NotFound):
        decide(world.store.view(name), table, lambda now: _changed(now, kind, entry))
        world.met[kind] += 1


def _changed(now: TableState, kind: str, entry: AuditEntry) -> TableState:
    if not now.order.rule.by:
        raise Refused("the table has no order")
    return _DECISIONS[kind](now, entry)


def calm(world: World) -> None:
    """From now on, no gate waits for a person, and no batch for an hour."""
    order = world.recipe.settings.ordering.order
    settings = world.recipe.settings.with_options(gate="", order="offset" if order == "hour" else order)
    world.recipe = dataclasses.replace(world.recipe, settings=settings)


def repair(world: World) -> None:
    """An operator who waits lets each batch go on, without its rows if one of its files never loads."""
    for table, found in state.read_table_states(world.store).items():
        failed = found.value.order.failed
        is_spoiled = failed and any(file.path in world.warehouse.bad_paths for file in failed.files)
        for kind in ("release", "continue", "skip" if is_spoiled else "retry"):
            with suppress(KbqError):
                _decide(world, "operator", table, kind)


def check_visible(world: World) -> str:
    """The first row that becomes visible in a job after one with a higher offset of its partition; "" if none does."""
    log, begin, last = world.warehouse.log, 0, dict[tuple[object, ...], int]()
    for end in world.warehouse.job_ends:
        seen: dict[tuple[object, ...], int] = {}
        for table, row in log[begin:end]:
            key = (table, row.topic, row.partition, row.epoch)
            if is_ordered(world, table, row) and row.offset <= last.get(key, -1):
                return f"{table} {row} after offset {last[key]}"
            seen[key] = max(seen.get(key, -1), row.offset)
        last |= {key: max(offset, last.get(key, -1)) for key, offset in seen.items()}
        begin = end
    return ""


def as_visible(world: World) -> Iterator[tuple[TableReference, Row]]:
    """The rows in the order in which they become visible. The rows of a job appear together: its files take turns by
    hour."""
    log, begin = world.warehouse.log, 0
    for end in (*world.warehouse.job_ends, len(log)):
        rows = log[begin:end]
        yield from sorted(rows, key=lambda each: each[1].offset) if world.by_hour else rows
        begin = end


def is_ordered(world: World, table: TableReference, row: Row) -> bool:
    """Whether a row has to become visible in order."""
    is_ours = table.table != "kbq_errors" and row not in world.brought_back
    return world.recipe.settings.ordering.order in ("offset", "hour") and is_ours and not world.recreated


def check_audit(world: World) -> str:
    """Skipped rows that no decision in the audit list gives up; "" if there are none."""
    for table, found in state.read_table_states(world.store).items():
        order, decided = found.value.order, Counter[str]()
        for entry in (*archived(world, table, order), *order.audit):
            decided[entry.action] += entry.rows
        skipped = sum(bad.file.rows for bad in found.value.quarantined if bad.error.startswith("skipped: "))
        # A skip that its ledger never heard of is decided, and the statement runs again (S5).
        is_late = not world.recipe.settings.statement.rule.appends and skipped < decided["skip"]
        if skipped != decided["skip"] and not is_late:
            return f"{table}: {skipped} rows were skipped, {decided['skip']} by a decision"
    return ""


def archived(world: World, table: TableReference, order: TableOrder) -> list[AuditEntry]:
    """The older decisions about a table."""
    entries: list[AuditEntry] = []
    while len(entries) < order.archived:
        entries.extend(state.read(world.store, AuditChunk, audit_path(table, len(entries))).value.entries)
    return entries


def skip_silently(now: TableState, batch: int, entry: AuditEntry) -> TableState:
    """A skip that nobody can find again."""
    skipped = _skip(now, batch, entry)
    return dataclasses.replace(skipped, order=dataclasses.replace(skipped.order, audit=now.order.audit))


_skip = transitions.skip


def by_schema(*arguments: Any) -> LoadBatch | None:
    """The batch of a table without an order."""
    return batches.plan_batch(*arguments[:-1])


def in_one_file(self: WindowHours, chunk: Chunk, parts: list[RouteRows]) -> Iterator[tuple[int, RouteRows]]:
    """All rows in one file per table and schema."""
    return ((OTHERS, part) for part in parts)


def fitting_without_the_last(*arguments: Any) -> tuple[StagedFile, ...]:
    """The files of a job, without the last one of its window's other files: marks do not know these apart."""
    files = _fitting(*arguments)
    return files[:-1] if len(files) > 1 and files[-1].window == files[-2].window else files


_fitting = batches.fitting


def fastest_partitions(view: LoadView, options: Mapping[str, TopicSettings]) -> dict[str, SourcePartition]:
    """Of each topic the partition that was read furthest."""
    found: dict[str, SourcePartition] = {}
    for topic, settings in options.items():
        safety_ms = settings.checks.complete_after_seconds * 1000
        partitions = completeness._source_partitions(view, topic, safety_ms)
        found[topic] = max(partitions, key=lambda each: each.until)
    return found
