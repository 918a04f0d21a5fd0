"""Rules of backups and erasures removed: schedules of backups must notice each (PROTOCOL B1 to B10, X1 to X5)."""

from __future__ import annotations

import dataclasses
from typing import Any

from kbq_assets.core.backup import merging, sharing
from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.errors import NotFound
from kbq_assets.core.extraction import publishing
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol import manifests as manifest_contents
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.pipelines.backup import merge as merges
from kbq_assets.pipelines.erasure import search, topic
from kbq_assets.pipelines.erasure.erasures import Erasures
from kbq_assets.pipelines.extraction import extract as extraction
from kbq_assets.pipelines.protocol import erasures as erasure_log
from kbq_assets.pipelines.protocol import state
from kbq_assets.worker import stopping
from kbq_assets.worker import window as windows
from kbq_assets.worker.window import WindowWriter
from kbq_assets_tests.simulation.mutants import Mutant

_split = windows._split
_plan, _publish = extraction.plan, commits._with_window
_resume, _verify = Erasures.resume, Erasures.verify
_enter, _raise_commits = erasure_log.enter, erasure_log.raise_commits
_key, _unloaded = manifest_contents._key, topic._unloaded
#: How long the log comes after the rest.
_STEPS_BETWEEN = 100


def _plan_at_the_tables(store: Any, *args: Any, **kwargs: Any) -> Any:
    """A plan whose backups begin where the tables stand."""

    def moved(unit: Any) -> Any:
        tp = unit.range.topic_partition
        try:
            commit = state.read(store, Commit, commit_path(tp.topic, shard_of(tp.partition))).value
        except NotFound:
            return unit
        at = commit.partitions.get(tp.partition)
        if at is None or at.next >= unit.range.until_offset:
            return unit
        return dataclasses.replace(unit, range=dataclasses.replace(unit.range, from_offset=at.next))

    found = _plan(store, *args, **kwargs)
    backups = {
        area: dataclasses.replace(each, units=tuple(map(moved, each.units)))
        for area, each in found.backups.items()
    }
    return dataclasses.replace(found, backups=backups)


def _publish_anywhere(now: Any, window: Any, tp: Any, asked: int) -> Any:
    is_copy = any(file.path.startswith("backup/") for file in window.files)
    return _publish(dataclasses.replace(now, next=window.first) if is_copy else now, window, tp, asked)


def _announce_last(self: Erasures, number: int) -> Any:
    """Erases rows and files first, and enters the erasure into the log last, while others go on."""
    erasure = self.find(number)
    found = _resume(self, number)
    for _ in range(_STEPS_BETWEEN):
        self.live.clock.sleep(1.0)
    _enter(self.live.store, erasure)
    for store in (self.live.store, *self._areas(erasure)):
        _raise_commits(store, erasure.topic, number)
    return found


def _nobody_is_told(*_: Any) -> int:
    return 0


def _search_rows_alone(self: Erasures, number: int) -> tuple[str, ...]:
    return tuple(line for line in _verify(self, number) if "does not have it" not in line)


def _merged_whatever_changed(commit: Any, number: int, merged: Any) -> Any:
    """The merged files in place of all windows that they overlap."""
    for run, window in merged:
        state_ = commit.partitions[run.topic_partition.partition]
        epoch = merging._epoch(window)
        rest = [
            w
            for w in state_.windows
            if merging._epoch(w) != epoch or w.until <= window.first or window.until <= w.first
        ]
        windows = tuple(sorted((*rest, window), key=lambda w: (merging._epoch(w), w.first)))
        commit = commit.with_partition(
            run.topic_partition.partition, dataclasses.replace(state_, windows=windows)
        )
    return merging.voided(commit)


def _without_epoch(number: int, window: Any) -> Any:
    return (*_key(number, window)[:2], 0)


def _no_epochs(*_: Any) -> dict[int, Any]:
    return {}


def _without_quarantine(view: Any, table: Any) -> Any:
    return [each for each in _unloaded(view, table) if not each.is_quarantined]


def _stop_the_window(self: Any, chunk: Any, rejects: Any, until: int) -> None:
    """Stop at the window's beginning, wherever its record is."""
    index = self._first_stop(rejects)
    if index is not None:
        unit, reason = self._staging.unit, StopReason.UNKNOWN_SCHEMA
        raise stopping.stop_window(unit, reason, "whole", self.first, until)


def _split_behind(batch: Any, first: int) -> Any:
    """A window that ends behind the record that stops it, which is in no window then."""
    head, rest = _split(batch, first)
    rest = dataclasses.replace(rest, chunk=rest.chunk.slice(1, len(rest.chunk)))
    return dataclasses.replace(head, position=head.position + 1), rest


#: Schedules of backups notice these.
BACKUP_MUTANTS = (
    Mutant("the backup stands where the tables do", "B1",
           ((extraction, "plan", _plan_at_the_tables), (commits, "_with_window", _publish_anywhere)), seed=1),
    Mutant("the tables' reading serves the backup wherever it stands", "B1",
           ((sharing, "_reads_the_same", lambda one, other: True), (commits, "_with_window", _publish_anywhere)),
           seed=1),
    Mutant("a record that stops takes its window with it", "E10",
           ((WindowWriter, "_check_first", _stop_the_window),)),
    Mutant("a window ends behind the record that stops", "E10", ((windows, "_split", _split_behind),)),
)  # fmt: skip
#: Schedules of erasures notice these.
ERASURE_MUTANTS = (
    Mutant("windows of a backup are told apart by their position alone", "B5",
           ((manifest_contents, "_key", _without_epoch),), seed=3),
    Mutant("a reset of the backup hides copies from an erasure", "X5",
           ((search, "epochs_of_log", _no_epochs),), seed=20),
    Mutant("files in quarantine keep their rows", "X3", ((topic, "_unloaded", _without_quarantine),), seed=4),
)  # fmt: skip
#: Late publications (`races.run_late_publication`) notice these.
LATE_MUTANTS = (
    Mutant("the erasure log is written last", "X1",
           ((erasure_log, "enter", _nobody_is_told), (erasure_log, "raise_commits", _nobody_is_told),
            (Erasures, "verify", _search_rows_alone), (Erasures, "resume", _announce_last)), seed=6),
    Mutant("windows are published whatever log they were read with", "X2",
           ((publishing, "_check_erasures", lambda commit, outcome: None),)),
)  # fmt: skip
#: Schedules of erasures beside merges of backup files notice these.
COMPACTED_MUTANTS = (
    Mutant("a clean-up takes what a merge writes for an orphan", "B10",
           ((BackupFileName, "merge", property(lambda self: 0)),), seed=229),
    Mutant("a merge lists what it read, whatever changed since", "B10",
           ((merges, "ended", _merged_whatever_changed),), seed=32),
)  # fmt: skip
