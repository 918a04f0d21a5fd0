"""Decides which stopped partitions and parked tables are retried automatically, and when (PROTOCOL E10, L5).

A retry relaxes no rule: it reads a stopped range by the same rules, and submits a parked table's files under a new job
id. So it succeeds only if the cause, outside of KBQ, is gone. All other stops mean that records are missing, duplicated
or bad, or that the state contradicts the broker or warehouse. A retry would not help, or would hide the fault.

Times come from the store and are only hints: a pause decides when work happens, never what happens to data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kbq_assets.core.loading.table_state import Parked
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.waits import ParkReason, StopReason
from kbq_assets.core.topics.topic_settings import TopicSettings

#: Whether a parked table with files of these topics is retried automatically.
MayRestart = Callable[[frozenset[str]], bool]
#: Stops that end once the registry or a setting is fixed, or another replica leads. A bad record or schema stays bad. A
#: share of bad records depends on the window's end, so a retry could pass a part of the range unchecked.
STOPS: Final = frozenset(
    {
        StopReason.UNKNOWN_SCHEMA,
        StopReason.SCHEMA_CHANGED,
        StopReason.DAMAGED_BATCH,
        StopReason.LOG_CHANGED,
        StopReason.TASK_DIED,
        StopReason.FAILED,
    }
)
#: Reasons that go away once the table, its dataset, a permission or the topic's options are fixed.
PARKINGS: Final = frozenset(
    {
        ParkReason.LOAD_FAILED,
        ParkReason.INCOMPATIBLE_SCHEMA,
        ParkReason.WRONG_OPTIONS,
        ParkReason.BATCH_FAILED,
        ParkReason.GATE_RED,
        ParkReason.WAITS_FOR_MARKER,
        ParkReason.BYTES_LIMIT,
        ParkReason.LATE_ROWS,
    }
)
#: Reasons that wait for something expected soon: their pauses stay short.
_EXPECTED: Final = frozenset({ParkReason.GATE_RED, ParkReason.WAITS_FOR_MARKER, ParkReason.LATE_ROWS})
_EXPECTED_TRIES: Final = 2
#: The pause before the first retry. It doubles with each retry, up to the longest pause.
FIRST_PAUSE_MS: Final = 60_000
LAST_PAUSE_MS: Final = 3_600_000
#: A last try further in the future than this comes from a wrong clock, and delays nothing.
_SKEW_MS: Final = 60_000


def next_try_ms(tries: int, last_ms: int) -> int:
    """When the next retry is due, after ``tries`` failed ones; ``last_ms`` is the time of the stop or the last
    failure."""
    return last_ms + min(LAST_PAUSE_MS, FIRST_PAUSE_MS << min(tries, 16))


def is_due(tries: int, last_ms: int, now_ms: int) -> bool:
    """Whether a retry is due. A clock that jumps causes a retry, never an endless pause."""
    return now_ms >= next_try_ms(tries, last_ms) or now_ms < last_ms - _SKEW_MS


def may_restart(stop: Stop, settings: TopicSettings) -> bool:
    """Whether a stopped partition is retried automatically."""
    return stop.reason in STOPS and settings.extraction.restart == "auto"


def restarts_now(stop: Stop, settings: TopicSettings, now_ms: int) -> bool:
    """Whether a run that starts now retries a stopped partition. Never if the time is unknown (0)."""
    return now_ms > 0 and may_restart(stop, settings) and is_due(stop.tries, stop.last_ms, now_ms)


def parking_restarts(parked: Parked, now_ms: Callable[[], int]) -> bool:
    """Whether a load that runs now retries a parked table, if the topics of its files allow it. Calls ``now_ms`` only
    if the time matters.
    """
    return parked.reason in PARKINGS and is_due(_doublings(parked), parked.last_ms, now_ms())


def _doublings(parked: Parked) -> int:
    return min(parked.tries, _EXPECTED_TRIES) if parked.reason in _EXPECTED else parked.tries


def next_parking_try_ms(parked: Parked) -> int:
    """When a parked table is retried, if the topics of its files allow it; 0: never."""
    return next_try_ms(_doublings(parked), parked.last_ms) if parked.reason in PARKINGS else 0


def retry_in_words(tries: int, next_ms: int) -> str:
    """When the next automatic retry is due and how many failed, as text."""
    if next_ms <= LAST_PAUSE_MS:
        return "KBQ tries again in the next run"  # a version without times recorded the stop
    failed = f"; {tries} tries failed" if tries > 1 else "; a try failed" if tries else ""
    return (
        f"KBQ tries again after {datetime.fromtimestamp(next_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC{failed}"
    )
