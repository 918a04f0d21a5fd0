"""Only whole days beyond the age limit expire."""

from __future__ import annotations

import pytest

from kbq_assets.core.compaction.expiry import plan_expiry
from kbq_assets.core.compaction.model import CompactionPolicy, LakeFile, LakeView
from kbq_assets.core.protocol.names import TableReference

DAY_MS = 86_400_000
DAYS = (None, 95, 96, 97, 98, 99, 100, 101)
FILES = tuple(LakeFile(str(day), 10, 2, "p", 0, day=day) for day in DAYS)
VIEW = LakeView(TableReference("shop", "orders"), 1, "layout", 0, FILES, CompactionPolicy())


@pytest.mark.parametrize(
    ("days", "paths"),
    [(0, ()), (1, ("95", "96", "97", "98")), (3, ("95", "96")), (4, ("95",)), (5, ())],
)
@pytest.mark.parametrize("now_ms", [100 * DAY_MS, 101 * DAY_MS - 1])
def test_days_that_ended_so_long_ago_go(days: int, paths: tuple[str, ...], now_ms: int) -> None:
    plan = plan_expiry(VIEW, days, now_ms)
    assert (plan.paths, plan.rows, plan.bytes) == (paths, 2 * len(paths), 10 * len(paths))
