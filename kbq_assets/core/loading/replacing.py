"""A table whose rows a replay replaces: no load starts until that has ended (PROTOCOL R3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class Replacing(Stored):
    """The replacement that a table waits for, as the swap that entered it says."""

    #: the replay's number
    replay: int
    #: the job of all of its tables
    job_id: str
    #: by how much it changes the rows per `rows_key`
    rows: Mapping[str, int] = field(default_factory=dict)
    #: rows that the table lacked although they count as loaded: it was dropped, and gets them back
    restored: int = 0


def replacing_words(found: Replacing) -> str:
    """Why a table is not loaded, and what continues."""
    return f"replay {found.replay} replaces rows of it; next: kbq replay continue {found.replay}"


def change_of(loaded: int, present: int, former: int, new: int) -> tuple[int, int]:
    """By how much a replacement changes the rows that count as loaded, and how many lost rows it restores.

    ``loaded`` rows count, ``present`` are in the table; ``new`` rows take the place of ``former`` ones. Rows that were
    lost with the table count already.
    """
    restored = min(max(0, loaded - present), max(0, new - former))
    return new - former - restored, restored
