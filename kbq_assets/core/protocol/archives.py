"""Lists of a state object whose oldest entries move to archives: objects that never change, named by the number of
entries before theirs.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")


class ArchiveRule(NamedTuple):
    """A state with ``most`` entries moves the oldest ``chunk`` to an archive before its next swap."""

    most: int
    chunk: int

    def full_chunk(self, entries: tuple[T, ...]) -> tuple[T, ...]:
        """The entries to archive; empty while they fit."""
        return entries[: self.chunk] if len(entries) >= self.most else ()


#: Decisions of operators about batches.
DECISIONS: Final = ArchiveRule(40, 20)
