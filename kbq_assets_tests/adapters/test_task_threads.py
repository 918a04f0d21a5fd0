"""Tasks and their outcomes, whenever they end. For engines that use them, see contracts/engine.py."""

from __future__ import annotations

import threading
from typing import Any

from kbq_assets.adapters.task_threads import TaskThreads
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets_tests.contracts.engine import unit

ONE, TWO = unit(number=1), unit(number=2)


class AtOnce(threading.Thread):
    """A thread whose work is done when it has started."""

    def start(self) -> None:
        self.run()


def read(units: tuple[Unit, ...]) -> list[UnitOutcome]:
    if TWO in units:
        raise LookupError("lost")
    return [UnitOutcome(each) for each in units]


def failed(of: Unit, error: Exception) -> UnitOutcome:
    return UnitOutcome(of, failure=repr(error))


def tasks(thread: Any = AtOnce) -> TaskThreads:
    return TaskThreads(read, failed, thread)


def test_a_task_that_had_ended_before_it_was_given_up_counts() -> None:
    running = tasks()
    running.submit((ONE,))
    running.give_up("time is up")
    assert [running.next_outcomes(0), running.next_outcomes(0)] == [[UnitOutcome(ONE)], []]


def test_the_outcomes_of_all_tasks_that_have_ended_arrive_together() -> None:
    running = tasks()
    running.submit((ONE,))
    running.submit((ONE, TWO))
    assert len(running) == 2, "until somebody took the outcomes"
    lost = "LookupError('lost')"
    assert running.next_outcomes(0) == [
        UnitOutcome(ONE), UnitOutcome(ONE, failure=lost), UnitOutcome(TWO, failure=lost),
    ]  # fmt: skip
    assert len(running) == 0


def test_the_last_sign_is_that_of_the_first_task_or_of_the_last_outcome() -> None:
    running = tasks()
    running.last_sign = 0.0
    running.submit((ONE,))
    assert running.last_sign > 0
    running.last_sign = 0.0
    running.submit((ONE,))
    assert running.last_sign == 0, "the first one still runs"
    running.next_outcomes(0)
    assert running.last_sign > 0
