"""Clocks advance, and sleeping takes time."""

from __future__ import annotations

import pytest

from kbq_assets.adapters.clock import SystemClock
from kbq_assets.ports.clock import Clock
from kbq_assets_tests.fakes.clock import FakeClock


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_clock_moves_by_what_is_slept(clock: Clock) -> None:
    start = clock.monotonic()
    clock.sleep(0.02)
    assert clock.monotonic() - start >= 0.019


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_clock_never_goes_back(clock: Clock, seconds: float) -> None:
    start = clock.monotonic()
    clock.sleep(seconds)
    assert clock.monotonic() >= start
