"""What changes of a commit skip: gaps and starts, which may be measured on a log that the topic no longer has (E2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbq_assets.core.protocol.commits import Commit

if TYPE_CHECKING:
    from kbq_assets_tests.simulation.world import World


def judge_skips(world: World, before: Commit, after: Commit) -> Iterator[str]:
    """Positions that a swap skips although the log of its topic still has them. ``met`` counts gaps and new partitions.

    A swap that accepts a gap publishes no window."""
    if after.topic_id != world.topic_id:
        return  # what was not read of the former log is gone
    for number, now in after.partitions.items():
        known = before.partitions.get(number) if before.epoch == after.epoch else None
        if known is None:
            until = now.start
            world.met["added"] += before.epoch == after.epoch
        elif now.totals.lost > known.totals.lost:
            until = now.next
            world.met["gap"] += 1
        else:
            continue
        tp = after.topic_partition(number)
        begins = world.kafka.log(tp).start if number < world.partitions else 0
        if until > begins:
            yield f"{tp} epoch {after.epoch} goes on at {until}, its log begins at {begins}"
