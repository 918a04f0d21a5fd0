"""Pauses double up to an hour, and no clock makes a pause endless."""

from __future__ import annotations

import pytest

from kbq_assets.core.extraction import restarts
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import Parked, TableState
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.topics.topic_settings import TopicSettings

NOW = 1_700_000_000_000
MINUTE = 60_000
STOP = Stop("unknown_schema", "id 7", 10, 20, last_ms=NOW)


@pytest.mark.parametrize(("tries", "minutes"), [(0, 1), (1, 2), (5, 32), (6, 60), (7, 60), (10_000, 60)])
def test_pauses_double_from_a_minute_to_an_hour(tries: int, minutes: int) -> None:
    due = NOW + minutes * MINUTE
    assert restarts.next_try_ms(tries, NOW) == due
    assert [restarts.is_due(tries, NOW, now) for now in (due - 1, due)] == [False, True]


@pytest.mark.parametrize(
    "last", [NOW + 365 * 24 * 60 * MINUTE, NOW + 2 * MINUTE, NOW - 365 * 24 * 60 * MINUTE, 0]
)
def test_a_clock_that_was_wrong_leads_to_a_try(last: int) -> None:
    assert restarts.is_due(6, last, NOW)


def test_two_clocks_that_nearly_agree_keep_the_pause() -> None:
    assert not restarts.is_due(0, NOW + 30_000, NOW)


@pytest.mark.parametrize(
    ("reason", "restart", "tried"),
    [
        ("unknown_schema", "auto", True),
        ("unknown_schema", "manual", False),
        ("unstageable_schema", "auto", False),
        ("error_share", "auto", False),
        ("bad_record", "auto", False),
    ],
)
def test_only_what_the_registry_can_fix_is_tried_again(reason: str, restart: str, tried: bool) -> None:
    stop = Stop(reason, "x", 0, 5, last_ms=NOW)
    assert restarts.restarts_now(stop, TopicSettings.of(restart=restart), NOW + MINUTE) is tried


def test_without_the_time_nothing_is_tried_again() -> None:
    assert not restarts.restarts_now(STOP, TopicSettings(), 0)


@pytest.mark.parametrize("reason", ["missing_files", "foreign_job", "old_flight", "operator"])
def test_a_parking_that_only_a_person_can_judge_stays(reason: str) -> None:
    def never() -> int:
        raise AssertionError("the store need not be asked for the time")

    assert not restarts.parking_restarts(Parked(reason, "x"), never)


@pytest.mark.parametrize("reason", ["load_failed", "incompatible_schema"])
def test_a_parking_that_the_warehouse_can_fix_is_tried_again(reason: str) -> None:
    parked = Parked(reason, "x", last_ms=NOW)
    assert [restarts.parking_restarts(parked, lambda t=t: t) for t in (NOW, NOW + MINUTE)] == [False, True]  # type: ignore[misc]


def test_a_stop_where_one_stood_is_a_failed_try_and_the_same_stop_is_none() -> None:
    commit = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(next=10)})
    stopped = commits.stop(commit, 0, STOP)
    assert commits.stop(stopped, 0, STOP) == stopped
    later = Stop("unknown_schema", "id 7", 10, 20, last_ms=NOW + 1)
    again = commits.stop(stopped, 0, later)
    assert [c.partitions[0].stop and c.partitions[0].stop.tries for c in (stopped, again)] == [0, 1]


def test_a_tried_table_keeps_its_tries_until_a_job_succeeds_or_an_operator_resumes_it() -> None:
    parked = table_state.park(
        TableState("u", failed=table_state.Failures(3)), ParkReason.LOAD_FAILED, "x", NOW
    )
    tried = table_state.restart(parked)
    assert (tried.parked, tried.restarting, tried.failed.jobs) == (None, parked.parked, 3)
    again = table_state.park(tried, ParkReason.LOAD_FAILED, "y", NOW + 1)
    assert again.parked == Parked("load_failed", "y", 1, NOW + 1)
    assert again.restarting is None
    assert table_state.unpark(again) == table_state.unpark(tried) == TableState("u")


@pytest.mark.parametrize(
    ("cls", "document", "tries"),
    [
        (Stop, b'{"format":1,"reason":"unknown_schema","message":"m","first":1,"until":2}', 0),
        (Parked, b'{"format":1,"reason":"load_failed","error":"e"}', 0),
    ],
)
def test_state_of_an_older_version_parses_and_is_due_at_once(
    cls: type[Stop] | type[Parked], document: bytes, tries: int
) -> None:
    old = codec.loads(cls, document, "x")
    assert (old.tries, restarts.is_due(old.tries, old.last_ms, NOW)) == (tries, True)
    assert "next run" in restarts.retry_in_words(0, restarts.next_try_ms(0, old.last_ms))


def test_the_time_of_the_next_try_is_reported_with_the_failed_ones() -> None:
    assert restarts.retry_in_words(2, NOW) == "KBQ tries again after 2023-11-14 22:13:20 UTC; 2 tries failed"
