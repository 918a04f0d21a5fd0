"""Any sequence of runs, faults, operators and zombies keeps the four promises."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kbq_assets_tests.simulation.promises import check_all, check_no_duplicate, check_order
from kbq_assets_tests.simulation.schedule import settle
from kbq_assets_tests.simulation.world import World
from kbq_assets_tests.sizes import MACHINE_RUNS

pytestmark = pytest.mark.thorough

turns = st.integers(1, 40)


class PlatformMachine(RuleBasedStateMachine):
    """The simulator's world, driven by Hypothesis: which process starts, how far each runs, what fails."""

    @initialize(seed=st.integers(0, 1000), fault_rate=st.sampled_from([0.0, 0.02, 0.1]))
    def begin(self, seed: int, fault_rate: float) -> None:
        self.world = World(seed)
        self.world.scheduler.fault_rate = fault_rate
        self.world.park_rate = 0.3
        self.world.produce()

    @rule()
    def produce(self) -> None:
        self.world.produce()

    @rule(steps=turns)
    def start_extractor(self, steps: int) -> None:
        self._start("extractor", self.world.extract, steps)

    @rule(steps=turns)
    def start_loader(self, steps: int) -> None:
        self._start("loader", self.world.load, steps)

    @rule(steps=turns)
    def start_janitor(self, steps: int) -> None:
        self._start("janitor", self.world.clean, steps)

    @rule(steps=turns, reset_rate=st.sampled_from([0.0, 1.0]))
    def start_operator(self, steps: int, reset_rate: float) -> None:
        self.world.reset_rate = reset_rate
        self._start("operator", self.world.operate, steps)

    @rule(steps=turns)
    def go_on(self, steps: int) -> None:
        self._run(steps)

    @rule()
    def run_a_job(self) -> None:
        self.world.run_job()

    @rule()
    def deliver_a_late_call(self) -> None:
        self.world.deliver_late_call()

    @rule()
    def reject_or_accept(self) -> None:
        self.world.reject()

    @rule()
    def spoil_a_file(self) -> None:
        self.world.spoil_a_file()

    @rule()
    def stop_a_process(self) -> None:
        for process in self.world.scheduler.processes[:1]:
            process.stalled = 60

    def _start(self, kind: str, body: object, steps: int) -> None:
        if len(self.world.scheduler.processes) < 5:
            self.world.scheduler.start(kind, body)  # type: ignore[arg-type]
        self._run(steps)

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            self.world.scheduler.step()
        check_no_duplicate(self.world)
        check_order(self.world)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            settle(self.world)
            check_all(self.world)


TestPlatformMachine = PlatformMachine.TestCase
TestPlatformMachine.settings = settings(max_examples=MACHINE_RUNS, stateful_step_count=25, deadline=None)
