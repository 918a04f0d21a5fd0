"""The business times of a staged file's rows, as the commit lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored, stored_as


@dataclass(frozen=True)
class BusinessTimes(Stored):
    """The business times of a file's rows."""

    #: rows per hour since 1970 (UTC), for the `commits.MOST_HOURS` hours with most rows; older files list none
    hours: Mapping[int, int] = field(default_factory=dict, metadata=stored_as("event_hours"))
    #: the highest of a record; 0 if no record has one (error rows, tombstones, older files)
    newest_ms: int = field(default=0, metadata=stored_as("newest_event_ms"))
    #: rows without the business time that their topic has: they use the Kafka time
    fallbacks: int = field(default=0, metadata=stored_as("event_time_fallbacks"))
