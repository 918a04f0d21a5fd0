"""What was stopped or parked and may go on by itself, and when it is tried again (PROTOCOL E10, L5).

A try accepts nothing that stopped it: a stopped range is read anew by the same rules, a parked table's files fly again
under a new id. It may pass only because the cause, outside of KBQ, has gone. What else stops says that records are
missing, doubled or bad, or that a state contradicts the world: trying would not help, or would hide it.

Times are the store's, and hints: how long a pause is decides about work, never about data.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from kbq_assets.core.loading.table_state import Parked
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.topics.topic_settings import TopicSettings

#: Whether a parked table with files of these topics is tried again by itself.
MayRestart = Callable[[frozenset[str]], bool]
#: Why a partition stops that may go on once the registry is mended. A bad record or schema stays as it is, and a
#: share of bad records depends on where the window ends: tried again, a part of it could slip through unjudged.
STOPS: Final = frozenset({"unknown_schema"})
#: Why a table is parked that may go on once the table, its dataset or a permission is mended.
PARKINGS: Final = frozenset({"load_failed", "incompatible_schema"})
#: The pause before the first try; it doubles with each, up to the last.
FIRST_PAUSE_MS: Final = 60_000
LAST_PAUSE_MS: Final = 3_600_000
#: A last try this far in the future was written by a clock that was wrong: it holds nothing up.
_SKEW_MS: Final = 60_000


def next_try_ms(tries: int, last_ms: int) -> int:
    """When what stopped, and failed ``tries`` times since, is tried again; ``last_ms`` is when it last did either."""
    return last_ms + min(LAST_PAUSE_MS, FIRST_PAUSE_MS << min(tries, 16))


def is_due(tries: int, last_ms: int, now_ms: int) -> bool:
    """Whether it is time. A clock that jumped, forth or back, leads to a try, not to a pause without end."""
    return now_ms >= next_try_ms(tries, last_ms) or now_ms < last_ms - _SKEW_MS


def may_restart(stop: Stop, settings: TopicSettings) -> bool:
    """Whether a stopped partition is tried again by itself."""
    return stop.reason in STOPS and settings.extraction.restart == "auto"


def restarts_now(stop: Stop, settings: TopicSettings, now_ms: int) -> bool:
    """Whether a run that starts now tries a stopped partition again. Without the time (0) none does."""
    return now_ms > 0 and may_restart(stop, settings) and is_due(stop.tries, stop.last_ms, now_ms)


def parking_restarts(parked: Parked, now_ms: Callable[[], int]) -> bool:
    """Whether a load that runs now tries a parked table again, if the topics of its files let it.

    The time is asked of the store only where it decides.
    """
    return parked.reason in PARKINGS and is_due(parked.tries, parked.last_ms, now_ms())


def next_parking_try_ms(parked: Parked) -> int:
    """When a parked table is tried again if the topics of its files let it; 0: never."""
    return next_try_ms(parked.tries, parked.last_ms) if parked.reason in PARKINGS else 0


def retry_in_words(tries: int, next_ms: int) -> str:
    """When something is tried again by itself, and how often it failed."""
    if next_ms <= LAST_PAUSE_MS:
        return "is tried again by the next run"  # it stopped under a version that kept no times
    failed = f"; {tries} tries failed" if tries > 1 else "; a try failed" if tries else ""
    return f"is tried again after {datetime.fromtimestamp(next_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC{failed}"
