"""Decides about a replacement: what keeps it from beginning, and what it changes. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import REPLAY_COLUMN, Replay
from kbq_assets.core.topics.error_tables import is_error_table

_NUMBER = Column(REPLAY_COLUMN, "INT64")


def overlaps(replay: Replay, file: StagedFile) -> bool:
    """Whether a file may have rows of the range."""
    name = file.name
    bounds = replay.bounds.get(name.topic_partition.partition)
    return (
        name.topic_partition.topic == replay.topic
        and name.epoch == replay.epoch
        and bounds is not None
        and max(name.first_offset, bounds.first) < min(file.until, bounds.until)
    )


def check_settled(
    replay: Replay, table: TableReference, state: TableState, files: Iterable[StagedFile]
) -> None:
    """Raise Refused while rows of the range may still be loaded (R3). ``files`` are those of commit and backlog, read
    after the state."""
    for file in files:
        if overlaps(replay, file) and not state.is_loaded(file):
            raise Refused(
                f"{file.path} has rows of the range and is not loaded",
                next_step=f"resume {table}, kbq load, then again; or a replay --until "
                f"{file.name.topic_partition.partition}:{file.name.first_offset}"
                if state.parked
                else "kbq load, then again",
            )
    for bad in state.quarantined:
        if overlaps(replay, bad.file) and not bad.dropped:
            raise Refused(
                f"{bad.file.path} has rows of the range and is in quarantine",
                next_step=f"kbq quarantine retry --table {table}, or kbq quarantine drop --table {table}",
            )


def check_appended(table: TableReference, state: TableState) -> None:
    """Raise Refused for a table that statements keep: it has no row for each record."""
    if state.has_statements:
        raise Refused(
            f"{table} is kept by statements: it has no row for each record",
            next_step="replays of such tables are not built yet; kbq reset reads a topic again",
        )


def check_replaceable(table: TableReference, state: TableState) -> None:
    """Raise Refused for a table whose rows must not change behind its readers (R8).

    Readers of an ordered table rely on two things: no row appears below an offset that they saw, and every row passed
    the gates. A replacement keeps neither.
    """
    check_appended(table, state)
    if state.order.rule.by:
        raise Refused(
            f"{table} has order=offset: rows of the range would appear below offsets that its readers saw",
            next_step="kbq replay diff shows the rows; kbq reset reads the topic again, in order and through the gates",
        )


def merged_columns(
    table: TableReference, live: Sequence[Column] | None, shadow: Sequence[Column] | None
) -> tuple[Column, ...]:
    """The columns that a live table needs for a replay's rows, those that it has left out of account. Raises Refused if
    a column has another type."""
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


def changes_of(replay: Replay, changes: Mapping[TableReference, Mapping[str, int]]) -> dict[int, Counts]:
    """The counts of each partition after a replacement: records stay, so rows that are gone count as skipped.

    ``changes`` are of rows, by table and `rows_key`.
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


def replaced(commit: Commit, job_id: str, epoch: int, changes: Mapping[int, Counts]) -> Commit:
    """A commit after a replacement, once (R5). A partition that was reset since does not count these rows."""
    for partition, counts in sorted(changes.items()):
        found = commit.partitions.get(partition)
        if found is None or found.since > epoch or job_id in found.replaced:
            continue
        kept = {**found.replaced, job_id: counts}
        commit = commit.with_partition(partition, dataclasses.replace(found, replaced=kept))
    return commit
