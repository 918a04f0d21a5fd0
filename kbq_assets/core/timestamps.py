"""Points in time as operators write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from kbq_assets.core.errors import ConfigurationError

#: One digit less than the largest 64-bit number has.
_LONGEST: Final = 18


def parse_moment(text: str) -> int:
    """Milliseconds since 1970, from an ISO 8601 time (UTC if it names no zone) or from such a number. Eight digits are
    a date. Raises ConfigurationError.
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST
    if is_number and len(text) != len("20260131"):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{text!r} is neither ISO 8601 nor milliseconds since 1970", next_step="2026-01-31T00:00:00Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
