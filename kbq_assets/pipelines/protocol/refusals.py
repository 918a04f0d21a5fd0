"""Objects that the store refuses: if it refuses one, that object has a problem; if it refuses all, this process has.

A refusal is a ConfigurationError: a missing permission, a hold, a retention policy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kbq_assets.core.errors import ConfigurationError

#: If the store refuses at least this many objects and grants none, the cause is this process.
MANY: Final = 20


def is_refusal(found: object) -> bool:
    """Whether a result is the store's refusal, and not the error of a bad name, option or format."""
    return type(found) is ConfigurationError


def end_if_all(found: Collection[object]) -> None:
    """Raise a single ConfigurationError if all of many results are refusals: one message is enough."""
    first = next(iter(found), None)
    if len(found) >= MANY and isinstance(first, ConfigurationError) and all(map(is_refusal, found)):
        raise ConfigurationError(
            f"{first.message}; {len(found) - 1} other objects are refused too", next_step=first.next_step
        )
