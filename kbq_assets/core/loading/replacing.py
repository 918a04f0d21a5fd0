"""The pending replay or erasure of a table's rows. No load starts until it has ended (PROTOCOL R3, X3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class Replacing(Stored):
    """The replacement for which a table waits, as recorded when it began."""

    #: the replay's number; 0 for an erasure
    replay: int
    #: the id of the job over all of its tables
    job_id: str
    #: the change in rows, by `rows_key`
    rows: Mapping[str, int] = field(default_factory=dict)
    #: rows that count as loaded but were lost with a dropped table, and that it restores
    restored: int = 0
    #: the erasure's number; 0 for a replay
    erasure: int = 0
    #: rows that it removes from files that are not loaded yet, by `rows_key`
    waiting: Mapping[str, int] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The operation that changes the table's rows, for messages."""
        return f"erasure {self.erasure} deletes" if self.erasure else f"replay {self.replay} replaces"

    @property
    def next_step(self) -> str:
        """The command that ends it."""
        if self.erasure:
            return f"kbq erase resume {self.erasure}"
        return f"kbq replay continue {self.replay}"


def replacing_words(found: Replacing) -> str:
    """Why a table is not loaded, and the next command."""
    return f"{found.what} rows of it; next: {found.next_step}"


def change_of(loaded: int, present: int, former: int, new: int) -> tuple[int, int]:
    """The change in loaded rows by a replacement, and the number of lost rows that it restores. ``loaded`` rows are
    counted as loaded, ``present`` rows are in the table; ``new`` rows replace ``former`` ones. Rows lost with the table
    are already counted as loaded.
    """
    restored = min(max(0, loaded - present), max(0, new - former))
    return new - former - restored, restored
