"""No schedule of crashes, late calls, zombies and operators makes a check of the state fail, or blocks a topic.

Only damage that no run does may: a check that fails on its own would stop loads for nothing (promise 4).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping

import pytest

from kbq_assets.core.observation.check_names import CONTIGUOUS, ROWS_MATCH
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.loading.load import LoadOptions
from kbq_assets.pipelines.loading.load_blocks import LoadBlocks
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.observation.checks import CheckPorts, CheckReport, run_checks
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.simulation import world as simulated
from kbq_assets_tests.simulation.schedule import run_schedule
from kbq_assets_tests.simulation.world import TOPIC, World
from kbq_assets_tests.sizes import VARIED_SCHEDULES


def _checked(world: World) -> CheckReport:
    sources = [SourceEntry(TOPIC, world.recipe.settings)]
    ports = CheckPorts(StateCache(world.store), LoadBlocks(), lambda: world.kafka, sources, lambda: 0)
    return run_checks(ports, broker=False)


def test_no_schedule_makes_a_check_fail_or_blocks_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[object] = []
    judge = LoadBlocks.__call__

    def noted(self: LoadBlocks, view: LoadView) -> object:
        found = judge(self, view)
        blocked.extend(found.values())
        return found

    monkeypatch.setattr(LoadBlocks, "__call__", noted)
    for seed in range(VARIED_SCHEDULES):
        failures = [r for r in _checked(run_schedule(seed)).failures if r.check in (CONTIGUOUS, ROWS_MATCH)]
        assert (seed, failures, blocked) == (seed, [], [])


class _BlocksNowAndThen:
    """Blocks the topic in four of five views, until the faults end: views of one run may differ."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.blocked = 0
        self.world: World | None = None

    def __call__(self, view: LoadView) -> Mapping[str, LoadBlock]:
        assert self.world is not None
        if not self.world.scheduler.fault_rate or self.random.random() < 0.2:
            return {}
        self.blocked += bool(view.committed)
        return {TOPIC: LoadBlock(TOPIC, CONTIGUOUS, "blocked")}


def test_holds_that_come_and_go_lose_double_and_disorder_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """L9 next to crashes, late calls, parked tables and resets: `run_schedule` checks all promises."""
    blocks = _BlocksNowAndThen()
    begin = World.__init__

    def noted(self: World, *args: object) -> None:
        begin(self, *args)  # type: ignore[arg-type]
        blocks.world = self

    monkeypatch.setattr(World, "__init__", noted)
    monkeypatch.setattr(simulated, "LoadOptions", functools.partial(LoadOptions, blocks=blocks))
    for seed in range(VARIED_SCHEDULES):
        run_schedule(seed)
    assert blocks.blocked > VARIED_SCHEDULES // 4
