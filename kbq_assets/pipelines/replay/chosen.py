"""Replays of chosen tables: after a promotion, no record is in two tables, and none is in no table (PROTOCOL R10)."""

from __future__ import annotations

from collections.abc import Mapping

from kbq_assets.core.errors import Refused
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.replay.model import Replay
from kbq_assets.core.topics.error_tables import ERROR_TABLE, is_error_table
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.replay.start import ReplayedTopic, rows_of
from kbq_assets.ports.replay import ReplayTables


def left_out(replay: Replay, totals: Counts) -> Mapping[str, int]:
    """Rows that today's options send to tables that the replay does not fill. ``totals`` are of its whole range."""
    if replay.chosen is None:
        return {}
    found = {table: rows for table, rows in totals.rows.items() if rows and table not in replay.only}
    if totals.errors and not any(map(is_error_table, replay.chosen)):
        found[ERROR_TABLE] = totals.errors
    return found


def check_moves(live: Deployment, tables: ReplayTables, replay: Replay, others: Mapping[str, int]) -> None:
    """Raise Refused if a record would move between a chosen table and another one. ``others`` is the result of
    `left_out`."""
    if replay.chosen is None:
        return
    rows, chosen = rows_of(replay), sorted(replay.chosen)
    shadows = [replay.shadow(table) for table in chosen]
    for table in ReplayedTopic.read(live, replay.topic).tables(replay.topic):
        if replay.covers(table):
            continue
        if doubled := tables.shared(shadows, [table], rows):
            raise Refused(
                f"{counted(doubled, 'row')} of {table} would be in a chosen table too",
                next_step=_again(replay, {str(table)}),
            )
    if not others:
        return
    days = tables.days(chosen, rows)
    present = sum(each.distinct for by_day in days.values() for each in by_day.values())
    if gone := present - tables.shared(chosen, shadows, rows):
        raise Refused(
            f"{counted(gone, 'record')} of the range would leave the chosen tables, perhaps for"
            f" {', '.join(sorted(others))}, which this replay does not fill",
            next_step=_again(replay, set(others)),
        )


def _again(replay: Replay, more: set[str]) -> str:
    dataset = min(replay.only).partition(".")[0]
    named = sorted({*replay.only, *(name if "." in name else f"{dataset}.{name}" for name in more)})
    return (
        f"kbq replay drop {replay.number}, then kbq replay start {replay.topic} --tables {','.join(named)},"
        " or without --tables"
    )
