"""Archives of a state object's lists: immutable objects that take the oldest entries. An archive's name is the number
of entries before its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")


class ArchiveRule(NamedTuple):
    """A list that has ``most`` entries moves its oldest ``chunk`` entries to an archive before the next swap."""

    most: int
    chunk: int

    def full_chunk(self, entries: tuple[T, ...]) -> tuple[T, ...]:
        """The entries to archive; empty while all fit."""
        return entries[: self.chunk] if len(entries) >= self.most else ()


#: For operators' decisions about batches.
DECISIONS: Final = ArchiveRule(40, 20)
