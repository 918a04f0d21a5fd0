"""The options for small data: when a partition waits for more records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import FLAG, whole

#: A partition with fewer new records is quiet. At the usual cadence, waiting saves nine of twelve files an hour.
QUIET_RECORDS: Final = 100


@dataclass(frozen=True)
class WaitOptions:
    """How much unread data a partition needs to be read, and how long it waits at most."""

    min_records: int = option(
        "0",
        whole(),
        "a partition with fewer records to read waits (estimated from the share of positions that had records so "
        "far)",
        place="extraction.min_records",
    )
    min_bytes: int = option(
        "0",
        whole(),
        "the same in bytes of values; if both are set, reaching one is enough",
        place="extraction.min_bytes",
    )
    max_wait_seconds: int = option(
        "3600",
        whole(),
        "such a partition waits until its oldest unread record is this old by its Kafka time",
        place="extraction.max_wait_seconds",
    )
    quiet_seconds: int = option(
        "0",
        whole(),
        f"without a minimum, a partition that was read before and has fewer than {QUIET_RECORDS} new records "
        "[waits](tuning.md#small-data-may-wait) until the oldest is this old; 0: it does not wait",
        shown_default="`KBQ_QUIET_SECONDS`",
        place="extraction.quiet_seconds",
    )

    close_hours: bool = option(
        "false",
        FLAG,
        "small data waits no longer than the end of its hour by the topic's [data "
        "clock](tuning.md#small-data-may-wait), so that [hours are complete](completeness.md) earlier",
        place="extraction.close_hours",
    )

    @property
    def has_minimum(self) -> bool:
        """Whether the topic sets a minimum."""
        return bool(self.min_records or self.min_bytes)

    @property
    def longest_seconds(self) -> int:
        """The longest time that a record waits for more."""
        return self.max_wait_seconds if self.has_minimum else self.quiet_seconds
