"""Objects that the store refuses to this process: a fault of one object is its own, of all objects the process's.

A refusal is a ConfigurationError: a missing permission, a hold, a retention policy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kbq_assets.core.errors import ConfigurationError

#: If so many objects were asked for and all of them are refused, the store refuses this process.
MANY: Final = 20


def is_refusal(found: object) -> bool:
    """Whether a result is a refusal, rather than a name, an option or a format that KBQ cannot take."""
    return type(found) is ConfigurationError


def end_if_all(found: Collection[object]) -> None:
    """Raise one ConfigurationError if each of many results is a refusal: a message per object would say no more."""
    first = next(iter(found), None)
    if len(found) >= MANY and isinstance(first, ConfigurationError) and all(map(is_refusal, found)):
        raise ConfigurationError(
            f"{first.message}; {len(found) - 1} other objects are refused, too", next_step=first.next_step
        )
