"""The options of a topic's checks."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.observation.check_names import BLOCKABLE, CONTIGUOUS
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import CHECKS, SHARE, whole


@dataclass(frozen=True)
class CheckOptions:
    """Limits of the topic's checks, and the checks that block its loads (core/observation/check_names.py)."""

    max_lag_records: int = option(
        "0",
        whole(),
        "[check](operations.md#checks): the most positions of the topic that may be unread; 0, here and below: no "
        "check",
    )
    max_lag_seconds: int = option(
        "7200",
        whole(),
        "the longest time that a record may be unread, by its Kafka time; plus `max_wait_seconds` if small data may "
        "wait",
    )
    max_age_seconds: int = option(
        "14400",
        whole(),
        "the longest time that a record may be missing from its table, unread or not yet loaded",
    )
    complete_after_seconds: int = option(
        "900",
        whole(),
        "an hour of its tables is [complete](completeness.md) once all partitions are this far past its end, by "
        "business time; 0: do not wait for the topic",
    )
    max_error_share: float = option(
        "0.05",
        SHARE,
        "the highest share of bad records among the last ones read, of at least `error_share_records` records",
    )
    blocking: frozenset[str] = option(
        CONTIGUOUS,
        CHECKS,
        "checks that block loads of the topic's files while they fail, `a,b`: "
        + ", ".join(map("`{}`".format, BLOCKABLE))
        + "; or `none`",
    )
