"""A table whose rows a replay replaces, or an erasure deletes: no load starts until that has ended (PROTOCOL R3,
X3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class Replacing(Stored):
    """The replacement that a table waits for, as the swap that entered it says."""

    #: the replay's number; 0 for an erasure
    replay: int
    #: the job of all of its tables
    job_id: str
    #: by how much it changes the rows per `rows_key`
    rows: Mapping[str, int] = field(default_factory=dict)
    #: rows that the table lacked although they count as loaded: it was dropped, and gets them back
    restored: int = 0
    #: the erasure's number; 0 for a replay
    erasure: int = 0
    #: rows that it leaves out of files that are not loaded yet, per `rows_key`
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
    """Why a table is not loaded, and what continues."""
    return f"{found.what} rows of it; next: {found.next_step}"


def change_of(loaded: int, present: int, former: int, new: int) -> tuple[int, int]:
    """The change in loaded rows by a replacement, and the number of lost rows that it restores.

    ``loaded`` rows count, ``present`` are in the table; ``new`` rows take the place of ``former`` ones. Rows that were
    lost with the table count already.
    """
    restored = min(max(0, loaded - present), max(0, new - former))
    return new - former - restored, restored
