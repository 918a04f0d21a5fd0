"""Threads of a pipeline are only used where calls wait."""

from __future__ import annotations

import threading
import time

import pytest

from kbq_assets.pipelines.threads import parallel


def _thread(item: int) -> int:
    return threading.get_ident()


def test_calls_that_do_not_wait_have_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbq_assets.pipelines.threads._WAITING_SECONDS", 60.0)
    assert {*parallel(_thread, range(100))} == {threading.get_ident()}


@pytest.mark.parametrize("slow", [0, 60])
def test_after_a_call_that_waits_the_others_run_side_by_side(slow: int) -> None:
    meeting = threading.Barrier(2)

    def call(item: int) -> int:
        if item == slow:
            time.sleep(0.05)
        elif item > slow:
            meeting.wait(60)
        return item * item

    assert parallel(call, range(101)) == [n * n for n in range(101)]


def test_few_calls_wait_one_after_another() -> None:
    def call(item: int) -> int:
        time.sleep(0.02)
        return _thread(item)

    assert {*parallel(call, range(3))} == {threading.get_ident()}
