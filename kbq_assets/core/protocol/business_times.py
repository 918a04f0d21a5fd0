"""The business times of a staged file's rows, as stored in the commit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored, stored_as


@dataclass(frozen=True)
class BusinessTimes(Stored):
    """The business times of a file's rows."""

    #: rows by hour since 1970 (UTC), for the `commits.MOST_HOURS` hours with the most rows; empty in older files
    hours: Mapping[int, int] = field(default_factory=dict, metadata=stored_as("event_hours"))
    #: the latest business time; 0 if no record has one (error rows, tombstones, older files)
    newest_ms: int = field(default=0, metadata=stored_as("newest_event_ms"))
    #: rows that lack a business time although their topic defines one, so they use the Kafka time
    fallbacks: int = field(default=0, metadata=stored_as("event_time_fallbacks"))
