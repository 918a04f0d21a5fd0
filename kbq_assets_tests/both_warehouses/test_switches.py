"""A change of `load` takes effect after all earlier windows, wherever loads die (PROTOCOL S10)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from kbq_assets_tests.both_warehouses.conftest import OpenBench
from kbq_assets_tests.both_warehouses.test_ordered_tables import small_jobs

#: All records have one key: a statement inserts none into a table that has one.
NEW_ONLY: dict[str, Any] = {"load": "insert_new", "key": "x"}


@pytest.mark.parametrize("dies", [False, True])
def test_windows_from_before_a_change_are_appended_and_later_ones_are_not(
    open_bench: OpenBench, dies: bool
) -> None:
    bench = small_jobs(open_bench())
    bench.produce(1)
    bench.cycle()
    bench.produce(1, 1)
    for point in itertools.count(9, 11) if dies else ():
        bench.settings = bench.settings.with_options(**NEW_ONLY)
        bench.extract()
        if bench.load_until(point) < point:
            break
    bench.cycle(**NEW_ONLY)
    assert bench.shown() == [(0, 0), (0, 1), (0, 2)]
    switch = bench.table().definition.statements.switch
    assert switch is not None
    assert list(switch.at.values()) == [(1, 3)]
    bench.produce(1)
    bench.cycle(**NEW_ONLY)
    assert bench.shown() == [(0, 0), (0, 1), (0, 2)]
    bench.produce(1)
    bench.cycle()  # back: the window was committed before
    assert bench.shown() == [(0, 0), (0, 1), (0, 2)]
    bench.produce(1)
    bench.cycle()
    assert bench.shown() == [(0, 0), (0, 1), (0, 2), (0, 5)]
    assert bench.table().definition.statements.applied == 2
