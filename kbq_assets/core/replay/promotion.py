"""Decides whether a replacement may begin, and how it changes the counts. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, TableReference
from kbq_assets.core.replay.brought import with_brought
from kbq_assets.core.replay.model import REPLAY_COLUMN, Replay
from kbq_assets.core.statements.rules import PARK, TIMESTAMP, UPSERT, StatementRule
from kbq_assets.core.statements.switching import lasting_rule
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.ordering_options import HOUR

_NUMBER = Column(REPLAY_COLUMN, "INT64")


def overlaps(replay: Replay, file: StagedFile) -> bool:
    """Whether a file may have rows in the range."""
    name = file.name
    bounds = replay.bounds.get(name.topic_partition.partition)
    return (
        name.topic_partition.topic == replay.topic
        and name.epoch == replay.epoch
        and bounds is not None
        and max(name.first_offset, bounds.first) < min(file.until, bounds.until)
    )


def _precedes(replay: Replay, file: StagedFile) -> bool:
    """Whether a file may have rows from before the range's end."""
    name = file.name
    bounds = replay.bounds.get(name.topic_partition.partition)
    if name.topic_partition.topic != replay.topic or bounds is None or bounds.first >= bounds.until:
        return False
    return (name.epoch, name.first_offset) < (replay.epoch, bounds.until)


def check_settled(
    replay: Replay, table: TableReference, state: TableState, files: Iterable[StagedFile]
) -> None:
    """Raise Refused while rows of the range may still be loaded (R3). For an upsert table this includes older rows,
    because a promoted row would keep them out, and a rollback would not bring them back (R11). ``files`` are those of
    commit and backlog, read after the state."""
    concerns, what = (
        (_precedes, "of the range or before it") if state.has_statements else (overlaps, "of the range")
    )
    for file in files:
        if concerns(replay, file) and not state.is_loaded(file):
            raise Refused(
                f"{file.path} has rows {what} and is not loaded",
                next_step=f"resume {table}, kbq load, then again; or a replay --until "
                f"{file.name.topic_partition.partition}:{file.name.first_offset}"
                if state.parked
                else "kbq load, then again",
            )
    for bad in state.quarantined:
        if concerns(replay, bad.file) and not bad.dropped:
            raise Refused(
                f"{bad.file.path} has rows {what} and is in quarantine",
                next_step=f"kbq quarantine retry --table {table}, or kbq quarantine drop --table {table}",
            )


def check_kind(what: str, rule: StatementRule, *, are_changes: bool = False) -> None:
    """Raise Refused if ``what`` is loaded by a statement that does not allow ranges to be replaced (R11)."""
    if rule.appends or (rule.kind == UPSERT and rule.tie == PARK and not are_changes):
        return
    kind = "change events" if are_changes else f"load={rule.kind}"
    kind += " tie=timestamp" if rule.tie == TIMESTAMP else ""
    raise Refused(
        f"{what}: the effect of a record depends on records outside of a range ({kind}), so no range can be replaced",
        next_step="give the topic another table; kbq reset then reads it again into that, also from its backup",
    )


def check_replaceable(
    table: TableReference, state: TableState, wanted: Collection[StatementRule]
) -> StatementRule:
    """The rule of a table. ``wanted`` are the rules of its topics. Raises Refused if its rows must not change after
    readers saw them (R8), or if its ranges cannot be replaced (R11).

    Readers may rely on every row having passed the table's gates, and on complete hours not changing. A replacement
    would break that. For the order of offsets, see `check_positions`.
    """
    if not state.has_statements and all(rule.appends for rule in wanted):
        rule = StatementRule()
    else:
        rule = lasting_rule(table, state, wanted)
    if rule.appends and state.has_statements:
        raise Refused(
            f"{table} has rows that statements changed and rows that were appended since",
            next_step="give the topic another table; kbq reset then reads it again into that, also from its backup",
        )
    check_kind(str(table), rule)
    order = state.order
    if order.rule.by == HOUR or order.rule.gates:
        what = "rows of complete hours" if order.rule.by == HOUR else "rows that passed its gates"
        raise Refused(
            f"{table} has order={order.rule.by}: the range would replace {what}",
            next_step="kbq replay diff shows the rows; kbq reset reads the topic again, in order and through the gates",
        )
    if not rule.appends and (state.definition.failed is not None or order.failed is not None):
        # Its statement will be entered again with its old text, which lacks `_kbq_replay`.
        raise Refused(f"{table}: its batch failed", next_step=f"kbq status {table}, then again")
    return rule


def check_positions(table: TableReference, former: int, new: int, common: int) -> None:
    """Raise Refused if a replacement would change which offsets have a row in a table in offset order. Rows would
    appear below offsets that readers already saw, now or at a rollback (R8). ``former`` and ``new`` are the numbers of
    offsets with rows before and after, ``common`` with rows both before and after."""
    if former != common or new != common:
        raise Refused(
            f"{table} has order=offset: below offsets that its readers saw, {counted(new - common, 'row')} of the range"
            f" would appear, and {former - common:,} would vanish",
            next_step="kbq replay diff shows the rows; kbq reset reads the topic again, in order",
        )


def is_whole(replay: Replay, state: TableState, starts: Mapping[int, int]) -> bool:
    """Whether no key of the range can have an earlier record: the range begins where its partitions begin, and the
    table has no rows of an earlier epoch."""
    epochs = (int(key.rpartition("/")[2]) for key in state.rows if key.startswith(f"{replay.topic}/"))
    begins = (r.from_offset <= starts[r.topic_partition.partition] for r in replay.ranges)
    return all(epoch >= replay.epoch for epoch in epochs) and all(begins)


def is_fed(replay: Replay, state: TableState) -> bool:
    """Whether a table was given records of the range's topic and epoch."""
    return any(key.startswith(f"{replay.topic}/") and key.endswith(f"/{replay.epoch}") for key in state.rows)


def merged_columns(
    table: TableReference, live: Sequence[Column] | None, shadow: Sequence[Column] | None
) -> tuple[Column, ...]:
    """The columns that a live table must have for a replay's rows. Raises Refused if a column has another type."""
    known = {column.name.lower(): column for column in live or ()}
    for column in shadow or ():
        found = known.get(column.name.lower())
        if found is not None and not _fits(found, column):
            raise Refused(
                f"{table}: column {column.name} is {found.type}, and {column.type} in the replay",
                next_step="give the column another name or type in today's schema or options, and replay again",
            )
    wanted = [
        column
        if live is None or column.name.lower() in known
        else dataclasses.replace(column, mode=_relaxed(column))
        for column in shadow or ()
    ]
    return (*wanted, _NUMBER)


def _fits(live: Column, new: Column) -> bool:
    if live.type != new.type or (live.mode == "REPEATED") != (new.mode == "REPEATED"):
        return False
    known = {field.name.lower(): field for field in live.fields}
    return all(_fits(known[f.name.lower()], f) for f in new.fields if f.name.lower() in known)


def _relaxed(column: Column) -> str:
    return "NULLABLE" if column.mode == "REQUIRED" else column.mode


def changes_of(changes: Mapping[TableReference, Mapping[str, int]]) -> dict[int, Counts]:
    """The changes of each partition's counts by a replacement. The number of records does not change, so rows that are
    gone count as skipped. ``changes`` are numbers of rows, by table and `rows_key`.
    """
    found: dict[int, Counts] = {}
    for table, by_key in sorted(changes.items()):
        for key, rows in by_key.items():
            partition = int(key.split("/")[1])
            is_error = is_error_table(table)
            change = Counts(
                skipped=-rows, errors=rows if is_error else 0, rows={} if is_error else {str(table): rows}
            )
            found[partition] = found.get(partition, Counts()) + change
    return found


def replaced(
    commit: Commit,
    job_id: str,
    epoch: int,
    changes: Mapping[int, Counts],
    warehouse: str = FIRST_WAREHOUSE,
    passed_over: Mapping[int, int] | None = None,
) -> Commit:
    """The commit after a replacement in a warehouse, applied once (R5). Partitions that were reset since do not count
    these rows. ``passed_over`` is, by partition, the number of records in the range for which the replay has no rows;
    None for a rollback."""
    for partition, counts in sorted(changes.items()):
        found = commit.partitions.get(partition)
        if found is None or found.since > epoch or job_id in found.changes_of(warehouse):
            continue
        key = f"{warehouse}/{job_id}" if warehouse else job_id
        left_out = None if passed_over is None else passed_over.get(partition, 0)
        own = with_brought(counts, found, job_id, warehouse, left_out)
        kept = {**found.replaced, key: own}
        commit = commit.with_partition(partition, dataclasses.replace(found, replaced=kept))
    return commit
