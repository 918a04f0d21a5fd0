"""A dependency that is down, slow or broken affects only its own readings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.extras.metrics.service.watches import LastReading, Watch
from kbq_assets_tests.fakes.clock import FakeClock


def watch(read: Callable[[], int], clock: FakeClock | None = None) -> Watch[int]:
    return Watch("broker", read, clock or FakeClock(), 1.0)


def test_before_the_first_poll_nothing_is_known() -> None:
    assert watch(lambda: 1).last == LastReading(None, None, None)


def test_a_dependency_that_is_away_is_shown_as_it_was_with_its_age() -> None:
    clock, answers = FakeClock(), iter([7])

    def read() -> int:
        if (answer := next(answers, None)) is None:
            raise Unavailable("it does not answer", next_step="wait")
        return answer

    seen = watch(read, clock)
    seen.poll()
    clock.seconds += 20
    seen.poll()
    assert seen.last == LastReading(7, 20.0, False, "Unavailable: it does not answer\n  next: wait")


def test_an_error_of_the_program_is_reported_in_the_log_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: Iterator[int | Exception] = iter([ZeroDivisionError("a bug"), 3])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen = watch(read)
    seen.poll()
    assert seen.last.error == "ZeroDivisionError: a bug"
    assert "a bug" in caplog.text
    seen.poll()
    assert seen.last == LastReading(3, 0.0, True)


def test_a_poll_that_does_not_end_counts_as_failed_and_shows_the_last_value() -> None:
    clock, entered, leave = FakeClock(), threading.Event(), threading.Event()

    def read() -> int:
        if seen.last.value is not None:
            entered.set()
            leave.wait(300)
        return 5

    seen = watch(read, clock)
    seen.poll()
    thread = threading.Thread(target=seen.poll)
    thread.start()
    assert entered.wait(300)
    clock.seconds += 61
    assert seen.last == LastReading(5, 61.0, False, "no answer for 61 s")
    leave.set()
    thread.join(300)
    assert seen.last.is_up is True


def test_no_two_threads_poll_at_once() -> None:
    inside, most, begin = [0], [0], threading.Barrier(8)

    def read() -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.001)
        inside[0] -= 1
        return 1

    seen = watch(read)

    def look() -> None:
        begin.wait(300)
        seen.poll()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert most == [1]


def test_a_started_watch_polls_until_it_is_stopped() -> None:
    polled = threading.Event()

    def read() -> int:
        polled.set()
        return 1

    seen = watch(read)
    seen.start()
    assert polled.wait(300)
    seen.stop(300)
    assert not seen._thread.is_alive()
