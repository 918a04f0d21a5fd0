"""Parses positions that an operator gives as text, for records that a search cannot find, such as those of sealed error
rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kbq_assets.core.errors import ConfigurationError


class RecordPosition(NamedTuple):
    """The position of a record; ``epoch`` 0 means the present epoch."""

    partition: int
    offset: int
    epoch: int = 0


def parse_positions(text: str, topic: str) -> Iterator[RecordPosition]:
    """Parse lines of ``partition offset`` or ``partition offset epoch``, or JSON as printed by `kbq errors` and `kbq
    pii open`. Raises ConfigurationError that does not repeat any value."""
    for number, entry in enumerate(_entries(text), 1):
        try:
            found = RecordPosition(
                _whole(_named(entry, "partition")),
                _whole(_named(entry, "offset")),
                _whole(_named(entry, "epoch") or 0),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigurationError(
                f"entry {number} is not a position",
                next_step="PARTITION OFFSET on each line, or JSON with partition and offset",
            ) from None
        if (_named(entry, "topic") or topic) != topic:
            raise ConfigurationError(
                f"entry {number} is of another topic", next_step=f"give positions of {topic}"
            )
        if min(found) < 0:
            raise ConfigurationError(f"entry {number} is below 0", next_step="check the positions")
        yield found


def _entries(text: str) -> list[Any]:
    stripped = text.strip()
    if stripped[:1] not in ("[", "{"):
        names = ("partition", "offset", "epoch")
        lines = (line.split() for line in stripped.splitlines() if line.strip())
        return [dict(zip(names, line, strict=False)) if len(line) <= len(names) else None for line in lines]
    try:
        found = json.loads(stripped)
        if isinstance(found, dict):
            found = found.get("errors", [found])
        return found if isinstance(found, list) else [found]
    except ValueError:
        return [_parsed(line) for line in stripped.splitlines() if line.strip()]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _whole(found: Any) -> int:
    """A whole number. `int` would truncate other numbers, so they would mean another record."""
    if isinstance(found, bool) or not isinstance(found, (int, str)):
        raise TypeError(f"{type(found).__name__} is not a whole number")
    return int(found)


def _named(entry: Mapping[str, Any], name: str) -> Any:
    """A field, by KBQ's name or by the column's name."""
    column = f"_kbq_{name}" if name == "epoch" else f"_kafka_{name}"
    found = entry.get(name, entry.get(column))
    if found is None and name in ("partition", "offset"):
        raise KeyError(name)
    return found
