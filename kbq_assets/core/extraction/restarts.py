"""Which stopped partitions and parked tables are tried again automatically, and when (PROTOCOL E10, L5).

A try accepts nothing that stopped it: a stopped range is read again by the same rules, and a parked table's files are
submitted under a new job id. So it succeeds only if the cause, outside of KBQ, is gone. Every other stop means that
records are missing, doubled or bad, or that a state contradicts the world: a try would not help, or would hide the
fault.

Times are the store's, and only hints: the length of a pause decides when work happens, never what happens to data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kbq_assets.core.loading.table_state import Parked
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.waits import ParkReason, StopReason
from kbq_assets.core.topics.topic_settings import TopicSettings

#: Whether a parked table with files of these topics is tried again automatically.
MayRestart = Callable[[frozenset[str]], bool]
#: Stops that end once the registry or a setting is fixed, or another replica leads. A bad record or schema stays bad. A
#: share of bad records depends on the window's end: a new try could pass a part of it unjudged.
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
#: Parkings that end once the table, its dataset, a permission or the topic's options are fixed.
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
#: Parkings that wait for something that is due: their pauses stay short.
_EXPECTED: Final = frozenset({ParkReason.GATE_RED, ParkReason.WAITS_FOR_MARKER, ParkReason.LATE_ROWS})
_EXPECTED_TRIES: Final = 2
#: The pause before the first try; it doubles with each, up to the last.
FIRST_PAUSE_MS: Final = 60_000
LAST_PAUSE_MS: Final = 3_600_000
#: A last try this far in the future comes from a wrong clock; it delays nothing.
_SKEW_MS: Final = 60_000


def next_try_ms(tries: int, last_ms: int) -> int:
    """When the next try is due, after ``tries`` that failed; ``last_ms`` is when it stopped or last failed."""
    return last_ms + min(LAST_PAUSE_MS, FIRST_PAUSE_MS << min(tries, 16))


def is_due(tries: int, last_ms: int, now_ms: int) -> bool:
    """Whether a try is due. A clock that jumped leads to a try, never to an endless pause."""
    return now_ms >= next_try_ms(tries, last_ms) or now_ms < last_ms - _SKEW_MS


def may_restart(stop: Stop, settings: TopicSettings) -> bool:
    """Whether a stopped partition is tried again automatically."""
    return stop.reason in STOPS and settings.extraction.restart == "auto"


def restarts_now(stop: Stop, settings: TopicSettings, now_ms: int) -> bool:
    """Whether a run that starts now tries a stopped partition again. Never if the time is unknown (0)."""
    return now_ms > 0 and may_restart(stop, settings) and is_due(stop.tries, stop.last_ms, now_ms)


def parking_restarts(parked: Parked, now_ms: Callable[[], int]) -> bool:
    """Whether a load that runs now tries a parked table again, if the topics of its files allow it.

    Reads the store's time only if it matters.
    """
    return parked.reason in PARKINGS and is_due(_doublings(parked), parked.last_ms, now_ms())


def _doublings(parked: Parked) -> int:
    return min(parked.tries, _EXPECTED_TRIES) if parked.reason in _EXPECTED else parked.tries


def next_parking_try_ms(parked: Parked) -> int:
    """When a parked table is tried again, if the topics of its files allow it; 0: never."""
    return next_try_ms(_doublings(parked), parked.last_ms) if parked.reason in PARKINGS else 0


def retry_in_words(tries: int, next_ms: int) -> str:
    """When something is tried again automatically, and how often it failed, as text."""
    if next_ms <= LAST_PAUSE_MS:
        return "KBQ tries again in the next run"  # it stopped under a version that kept no times
    failed = f"; {tries} tries failed" if tries > 1 else "; a try failed" if tries else ""
    return (
        f"KBQ tries again after {datetime.fromtimestamp(next_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC{failed}"
    )
