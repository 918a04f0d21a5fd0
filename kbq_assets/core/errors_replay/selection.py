"""Selects the error rows that can be replayed, with reasons for the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, TypeVar

#: Most records, and bytes of values, to parse at once.
BATCH_ROWS: Final = 5_000
BATCH_BYTES: Final = 32 << 20
#: Reasons for records that arrived without a value.
_NULL: Final = frozenset({"NULL_VALUE", "TOMBSTONE"})

T = TypeVar("T")


class Left(StrEnum):
    """The reason that an error row is not replayed."""

    STILL_BAD = "today's parser refuses them too"
    SKIPPED = "today's options skip them"
    WITHHELD = "their bytes were not kept: personal data, or more than 16 MB"
    SEALED = "they are sealed"
    READ_AGAIN = "a reset has read them again since"
    UNKNOWN = "the source list no longer selects the topic, or it was never extracted here"
    NOT_REPAIRED = "the function failed or returned nothing"


def why_left(*, reason: str, size: int | None, epoch: int, since: int | None) -> Left | None:
    """The reason that a row cannot be replayed, judged without its value; None if it can. ``since`` is the epoch in
    which its partition began, None if unknown."""
    if since is None:
        return Left.UNKNOWN
    if epoch < since:
        return Left.READ_AGAIN
    return Left.WITHHELD if size is None and reason not in _NULL else None


def batches(rows: Sequence[T], sizes: Sequence[int]) -> Iterator[Sequence[T]]:
    """Rows in order, in batches of at most `BATCH_ROWS` and `BATCH_BYTES`. A larger row is a separate batch."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and (index - start == BATCH_ROWS or total + size > BATCH_BYTES):
            yield rows[start:index]
            start, total = index, 0
        total += size
    if rows:
        yield rows[start:]
