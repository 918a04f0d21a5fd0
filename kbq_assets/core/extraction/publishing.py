"""Publishes windows with one swap of a commit: pure functions from a commit and outcomes to the next commit (PROTOCOL
E4).

A window is appended only if the partition is at the window's first position and has the leader epoch under which the
window was read. Otherwise the window may come from a log that was truncated since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from kbq_assets.core.errors import StateError
from kbq_assets.core.extraction import deaths
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol import commits, schema_pins
from kbq_assets.core.protocol.commits import Commit, Window
from kbq_assets.core.protocol.offsets import TopicPartition

ANOTHER_WAS_FASTER = "another extraction was faster"
Rebased = tuple[Commit, list[UnitOutcome], dict[TopicPartition, str]]


def rebase(
    commit: Commit,
    outcomes: Iterable[UnitOutcome],
    now_ms: int,
    asked_ms: int = 0,
    sealed: frozenset[str] = frozenset(),
) -> Rebased:
    """The commit with the outcomes applied, the outcomes whose windows it contains, and the reasons that others are
    lost.

    Windows fit if the partition still has the epoch and ``next`` for which they were read (E4). Windows after lost
    windows are lost too. ``sealed`` are the paths in manifests that are newer than the outcomes.
    """
    ours: list[UnitOutcome] = []
    lost: dict[TopicPartition, str] = {}
    new: list[UnitOutcome] = []
    stopped_short: set[TopicPartition] = set()
    for outcome in outcomes:
        tp = outcome.unit.range.topic_partition
        if tp in stopped_short:
            continue
        is_new = not _lists(commit, tp, outcome.windows, sealed)
        try:
            commit = _with(commit, outcome, asked_ms, is_new=is_new)
        except StateError as error:
            stopped_short.add(tp)
            if outcome.windows:
                lost[tp] = error.message if _stands_at(commit, outcome.unit) else ANOTHER_WAS_FASTER
            continue
        if outcome.windows:
            ours.append(outcome)
        if is_new:
            new.append(outcome)
    return _counted(commit, new, now_ms), ours, lost


def _with(commit: Commit, outcome: UnitOutcome, asked_ms: int, *, is_new: bool) -> Commit:
    """The commit with an outcome's stop and, if they are new, its windows. Raises StateError if the windows do not
    follow."""
    tp, windows = outcome.unit.range.topic_partition, outcome.windows
    if is_new:
        _check_erasures(commit, outcome)
        published = commits.publish(commit, tp.partition, outcome.unit.epoch, windows, asked_ms)
        _check_log(commit.partitions[tp.partition].leader_epoch, outcome)
        commit = schema_pins.pin(published, outcome.schema_ids)
        rule = outcome.unit.settings.rule
        if windows and outcome.unit.tables and rule != commit.load:
            commit = dataclasses.replace(commit, load=rule)
    if outcome.stop is not None and commit.partitions[tp.partition].next == outcome.stop.first:
        stop = deaths.count_death if outcome.has_died else commits.stop
        commit = stop(commit, tp.partition, outcome.stop)
    return commit


def _counted(commit: Commit, outcomes: Iterable[UnitOutcome], now_ms: int) -> Commit:
    """The commit with its totals updated for the outcomes' windows, in one step because a swap publishes many."""
    windows = [
        (window, max(0.0, (now_ms - (outcome.opened_ms[number] if outcome.opened_ms else now_ms)) / 1000))
        for outcome in outcomes
        for number, window in enumerate(outcome.windows)
    ]
    return dataclasses.replace(commit, published=commit.published.published(windows, now_ms))


def _check_log(leader_epoch: int, outcome: UnitOutcome) -> None:
    """Raise StateError unless the windows continue the log from which the position was read.

    The broker verified the unit's leader epoch. A slice that was read ahead began without one: if its first records
    have the epoch of the last records before it, one leader wrote both, so nothing was truncated in between. If the
    commit has no epoch, the unit has the broker's.
    """
    if leader_epoch < 0 and not outcome.unit.ahead:
        return
    known = outcome.first_leader_epoch if outcome.unit.ahead else outcome.unit.leader_epoch
    if known != leader_epoch:
        raise StateError(f"{outcome.unit.range} was read under another leader; the next run reads it again")


def _check_erasures(commit: Commit, outcome: UnitOutcome) -> None:
    """Raise StateError if the windows may contain records that were erased after they were read (X2)."""
    if outcome.windows and outcome.erasures < commit.erasures:
        raise StateError(f"{outcome.unit.range} was read before an erasure; the next run reads it again")


def _stands_at(commit: Commit, unit: Unit) -> bool:
    partition = commit.partitions.get(unit.range.topic_partition.partition)
    return commit.epoch == unit.epoch and partition is not None and partition.next == unit.range.from_offset


def _lists(commit: Commit, tp: TopicPartition, windows: Iterable[Window], sealed: frozenset[str]) -> bool:
    """Whether the commit already lists these windows, because an earlier swap succeeded although its reply was an
    error. Windows without files look the same in every attempt.
    """
    state = commit.partitions.get(tp.partition)
    if state is None:
        return False
    read = {f.path for w in windows for f in w.files}
    return not read.isdisjoint(sealed) or any(f.path in read for w in state.windows for f in w.files)
