"""The options of a topic's checks: the fourth part, next to those of options.py."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.observation.check_names import BLOCKABLE, CONTIGUOUS
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import CHECKS, SHARE, whole


@dataclass(frozen=True)
class CheckOptions:
    """When a check of the topic fails, and which checks block its loads (core/observation/check_names.py)."""

    max_lag_records: int = option(
        "0",
        whole(),
        "[checked](operations.md#checks): most positions of the topic that may be unread; 0, here and below: not "
        "checked",
    )
    max_lag_seconds: int = option(
        "7200",
        whole(),
        "the longest that a record may be unread, by its Kafka time; plus `max_wait_seconds` where small data may wait",
    )
    max_age_seconds: int = option(
        "14400", whole(), "the longest that a record may be missing from its table, unread or not yet loaded"
    )
    complete_after_seconds: int = option(
        "900",
        whole(),
        "an hour of its tables is [complete](completeness.md) when all partitions are this far beyond its end, by "
        "business time; 0 does not wait for the topic",
    )
    max_error_share: float = option(
        "0.05",
        SHARE,
        "the share of bad records among the last ones read; of at least `error_share_records` records",
    )
    blocking: frozenset[str] = option(
        CONTIGUOUS,
        CHECKS,
        "checks that block loads of the topic's files while they fail, `a,b`: "
        + ", ".join(map("`{}`".format, BLOCKABLE))
        + "; or `none`",
    )
