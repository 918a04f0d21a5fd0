"""The real code without the epochs that gaps and new partitions carry (E2). Schedules of late changes must notice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from kbq_assets.core.protocol.commits import Commit
from kbq_assets.pipelines.extraction import prepare
from kbq_assets.pipelines.operate import commands
from kbq_assets_tests.simulation.mutants import Mutant


def _in_any_epoch(original: Callable[[Any, Commit], Commit]) -> Callable[[Any, Commit], Commit]:
    def changed(change: Any, commit: Commit) -> Commit:
        return original(dataclasses.replace(change, epoch=commit.epoch), commit)

    return changed


def _is_at_the_position(now: Commit, shown: Commit, partition: int) -> bool:
    return now.partitions[partition].next == shown.partitions[partition].next


#: Schedules of late changes (`run_late_changes`) notice these.
LATE_CHANGE_MUTANTS = (
    Mutant("a gap of any epoch is recorded", "E2",
           ((prepare, "_record_gap", _in_any_epoch(prepare._record_gap)),), seed=0),
    Mutant("a partition of any epoch is added", "E2", ((prepare, "_add", _in_any_epoch(prepare._add)),), seed=9),
    Mutant("a gap of any epoch is accepted", "E2", ((commands, "_is_as_shown", _is_at_the_position),), seed=2),
)  # fmt: skip
