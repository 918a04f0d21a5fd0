"""Rules of promotions removed: schedules of replays must notice each (PROTOCOL R3 to R7, R12, R13)."""

from __future__ import annotations

from typing import Any

from kbq_assets.core.replay import promotion
from kbq_assets.core.replay.model import Replay
from kbq_assets.pipelines.loading import replacing
from kbq_assets.pipelines.replay import promote, replays
from kbq_assets.pipelines.replay.parts import ReplaceParts
from kbq_assets_tests.simulation.mutants import Mutant


def _nothing(*_: Any) -> None:
    return None


def _enter_without_waiting(*_: Any) -> bool:
    return True


def _nobody_is_freed(*_: Any) -> list[Any]:
    return []


def _burns_the_last(self: ReplaceParts) -> bool:
    return give_up(ReplaceParts(self.warehouse, self.parts[::-1]))


def _gives_up_what_ran(self: ReplaceParts) -> bool:
    give_up(self)
    return True


def _ends_with_the_first(self: ReplaceParts) -> int:
    return len(self.parts) if replaced(self) else 0


def _settled_in_the_first(replay: Replay, *found: Any) -> None:
    if not replay.warehouse:
        check_settled(replay, *found)


def _counted_for_the_first(commit: Any, job_id: str, epoch: int, changes: Any, *_: Any) -> Any:
    return counted(commit, job_id, epoch, changes, passed_over={})


check_settled, counted = promotion.check_settled, promotion.replaced
give_up, replaced = ReplaceParts.give_up, ReplaceParts.replaced


def _uncounted(commit: Any, *_: Any) -> Any:
    return commit


#: Schedules of replays notice these.
PROMOTION_MUTANTS = (
    Mutant("a promotion begins while files of its range wait", "R3", ((promotion, "check_settled", _nothing),),
           seed=8),
    Mutant("a promotion lets no table wait", "R3", ((replacing, "_swapped", _enter_without_waiting),)),
    Mutant("commits do not count a promotion", "R5", ((promotion, "replaced", _uncounted),), seed=2),
    Mutant("a table waits for a promotion that has ended", "R5",
           ((promote, "free_tables", _nobody_is_freed), (replays, "free_tables", _nobody_is_freed)), seed=55),
    Mutant("a rollback ignores later promotions", "R7",
           ((promote, "check_latest", _nothing), (replays, "check_latest", _nothing)), seed=16),
)  # fmt: skip

#: Schedules of replays of two warehouses notice these.
WAREHOUSE_REPLAY_MUTANTS = (
    Mutant("a promotion asks for the loads of the first warehouse alone", "R13",
           ((promotion, "check_settled", _settled_in_the_first),), seed=69),
    Mutant("commits count every promotion for the first warehouse", "R13",
           ((promotion, "replaced", _counted_for_the_first),), seed=1),
)  # fmt: skip

#: Schedules of replays in a lake notice these.
LAKE_MUTANTS = (
    Mutant("a promotion is given up in the table that comes last", "R12",
           ((ReplaceParts, "give_up", _burns_the_last),), seed=0),
    Mutant("a promotion is given up after its first table", "R12",
           ((ReplaceParts, "give_up", _gives_up_what_ran),), seed=0),
    Mutant("a promotion ends with its first table", "R12",
           ((ReplaceParts, "replaced", _ends_with_the_first),), seed=0),
)  # fmt: skip
