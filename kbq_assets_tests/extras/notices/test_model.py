"""A condition is told once, again while it lasts, and when it has ended; many at once are one notice."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.protocol import codec
from kbq_assets.extras.notices.model import (
    FAILED_RUN,
    GROWN_PAUSE_MS,
    NEW,
    RESOLVED,
    SHOWN_ITEMS,
    STILL,
    Condition,
    FailedRun,
    FailedRuns,
    Ledger,
    Message,
    plan_notices,
)

NOW = 1_700_000_000_000
MINUTE, DAY = 60_000, 24 * 3_600_000
PARKED = Condition(
    "no_table_is_parked", "shop.orders", "load_failed: x", commands=("kbq resume --table shop.orders",)
)
EVENT = Condition("quarantined_files", "shop.orders", "1 file", "warn", size=1, lasts=False)


def _tell(
    ledger: Ledger, found: list[Condition], now_ms: int, unseen: frozenset[str] = frozenset()
) -> tuple[Ledger, list[Message]]:
    """Everything is sent and recorded."""
    planned = plan_notices(ledger, found, now_ms, DAY, unseen)
    ledger = planned.ledger
    for message in planned.messages:
        ledger = message.recorded(ledger)
    return ledger, list(planned.messages)


def _phases(messages: list[Message]) -> list[str]:
    return [message.notice.phase for message in messages]


def test_what_is_new_is_told_with_its_command() -> None:
    _, [message] = _tell(Ledger(), [PARKED], NOW)
    assert (message.notice.phase, message.notice.title) == (NEW, "shop.orders is not loaded")
    assert message.notice.items[0].commands == PARKED.commands


def test_what_lasts_is_repeated_once_a_day_and_not_at_every_look() -> None:
    ledger, told = Ledger(), []
    for minute in range(3 * 24 * 60):
        ledger, messages = _tell(ledger, [PARKED], NOW + minute * MINUTE)
        told += [(minute, phase) for phase in _phases(messages)]
    assert told == [(0, NEW), (24 * 60, STILL), (2 * 24 * 60, STILL)]


def test_what_has_ended_is_told_once() -> None:
    ledger, _ = _tell(Ledger(), [PARKED], NOW)
    ledger, [message] = _tell(ledger, [], NOW + MINUTE)
    assert (message.notice.phase, message.notice.title) == (RESOLVED, "Resolved: shop.orders is not loaded")
    assert (message.notice.items[0].since_ms, message.notice.severity) == (NOW, "info")
    assert _tell(ledger, [], NOW + 2 * MINUTE) == (Ledger(), [])


def test_what_comes_back_is_new() -> None:
    ledger, _ = _tell(Ledger(), [PARKED], NOW)
    ledger, _ = _tell(ledger, [], NOW + MINUTE)
    assert _phases(_tell(ledger, [PARKED], NOW + 2 * MINUTE)[1]) == [NEW]


def test_four_hundred_at_once_are_one_notice() -> None:
    tables = [dataclasses.replace(PARKED, subject=f"shop.t{n}") for n in range(400)]
    ledger, [message] = _tell(Ledger(), tables, NOW)
    assert (message.notice.title, message.notice.count) == ("400 tables are not loaded", 400)
    assert len(message.notice.items) == SHOWN_ITEMS
    assert len(ledger.told) == 400
    assert _tell(ledger, tables, NOW + MINUTE) == (ledger, [])
    assert _phases(_tell(ledger, [], NOW + MINUTE)[1]) == [RESOLVED]


def test_kinds_are_told_apart_and_any_word_is_a_kind() -> None:
    column = Condition("new_column", "shop.orders", "a column", lasts=False)
    _, messages = _tell(Ledger(), [PARKED, column], NOW)
    assert [m.notice.title for m in messages] == ["shop.orders is not loaded", "shop.orders: new column"]


@pytest.mark.parametrize("unseen", [PARKED.kind, PARKED.key])
def test_what_could_not_be_seen_has_not_ended(unseen: str) -> None:
    ledger, _ = _tell(Ledger(), [PARKED], NOW)
    assert _tell(ledger, [], NOW + MINUTE, frozenset({unseen})) == (ledger, [])


def test_more_of_it_is_told_anew_but_not_at_once_again() -> None:
    one, two = (dataclasses.replace(PARKED, size=n) for n in (1, 2))
    ledger, _ = _tell(Ledger(), [one], NOW)
    assert _phases(_tell(ledger, [two], NOW + MINUTE)[1]) == []
    ledger, messages = _tell(ledger, [two], NOW + GROWN_PAUSE_MS)
    assert _phases(messages) == [NEW]
    assert _phases(_tell(ledger, [one], NOW + 2 * GROWN_PAUSE_MS)[1]) == []
    shrunk, _ = _tell(ledger, [one], NOW + 2 * GROWN_PAUSE_MS)
    assert _phases(_tell(shrunk, [two], NOW + 3 * GROWN_PAUSE_MS)[1]) == [NEW]


def test_an_event_is_told_once_never_repeated_and_never_resolved() -> None:
    ledger, messages = _tell(Ledger(), [EVENT], NOW)
    assert _phases(messages) == [NEW]
    assert _tell(ledger, [EVENT], NOW + 30 * DAY) == (ledger, [])
    assert _tell(ledger, [], NOW + 30 * DAY) == (Ledger(), [])


def test_what_passes_within_its_grace_is_told_by_nobody() -> None:
    blip = dataclasses.replace(PARKED, grace_ms=5 * MINUTE)
    ledger, messages = _tell(Ledger(), [blip], NOW)
    assert _phases(messages) == []
    assert _tell(ledger, [], NOW + MINUTE) == (Ledger(), [])
    ledger, messages = _tell(ledger, [blip], NOW + 5 * MINUTE)
    assert _phases(messages) == [NEW]
    assert messages[0].notice.items[0].since_ms == NOW


@pytest.mark.parametrize("jump", [400 * DAY, -400 * DAY])
def test_a_clock_that_jumps_silences_nothing_for_ever(jump: int) -> None:
    ledger, _ = _tell(Ledger(), [PARKED], NOW + jump)
    ledger, messages = _tell(ledger, [PARKED], NOW)
    assert _phases(messages) == [STILL]
    assert _phases(_tell(ledger, [PARKED], NOW + MINUTE)[1]) == []


def test_what_was_not_sent_is_told_at_the_next_look() -> None:
    planned = plan_notices(Ledger(), [PARKED], NOW, DAY)
    assert _phases(list(plan_notices(planned.ledger, [PARKED], NOW + MINUTE, DAY).messages)) == [NEW]


@given(st.lists(st.sets(st.integers(0, 4)), max_size=12))
def test_told_and_resolved_alternate_for_every_condition(looks: list[set[int]]) -> None:
    ledger, open_ = Ledger(), set[str]()
    for number, present in enumerate(looks):
        found = [dataclasses.replace(PARKED, subject=str(n)) for n in present]
        ledger, messages = _tell(ledger, found, NOW + number * MINUTE)
        for notice in (m.notice for m in messages):
            subjects = {item.subject for item in notice.items}
            assert subjects <= open_ if notice.phase == RESOLVED else not subjects & open_
            open_ ^= subjects
        assert open_ == {str(n) for n in present}
        assert codec.loads(Ledger, codec.dumps(ledger), "x") == ledger


def test_a_job_that_fails_again_is_one_condition_until_it_succeeds() -> None:
    runs = FailedRuns()
    for minute in range(3):
        runs = runs.with_run(FailedRun("load_job", f"r{minute}", "it broke", NOW + minute * MINUTE))
    [run] = runs.runs.values()
    assert (run.run_id, run.condition.key) == ("r2", f"{FAILED_RUN}/load_job")
    assert runs.without(["load_job"]) == FailedRuns()


def test_single_runs_are_forgotten_in_time() -> None:
    runs = FailedRuns().with_run(FailedRun("load_job", "r", "x", NOW))
    for number in range(100):
        runs = runs.with_run(FailedRun(f"backfill {number}", "r", "x", NOW + number, lasts=False))
    assert len(runs.runs) == 51
    late = runs.with_run(FailedRun("backfill z", "r", "x", NOW + 30 * DAY, lasts=False))
    assert set(late.runs) == {"load_job", "backfill z"}
