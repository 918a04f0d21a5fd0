"""Archives of the lists in state objects. A chunk is written before the swap that drops its entries from the list."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from kbq_assets.core.errors import MissingState, NotFound, PreconditionFailed
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore

T = TypeVar("T")
S = TypeVar("S", bound=Stored)


def write_archive(store: ObjectStore, path: str, chunk: Stored) -> None:
    """Store a chunk. If the swap after it is lost, the next attempt writes the same chunk."""
    with contextlib.suppress(PreconditionFailed):
        state.create(store, path, chunk)


def read_archive(store: ObjectStore, cls: type[S], path: str) -> S:
    """Read a chunk. Raises MissingState, CorruptState."""
    try:
        return state.read(store, cls, path).value
    except NotFound as error:
        raise MissingState(f"{path} is missing", next_step=codec.RESTORE) from error


def archived_entries(count: int, read: Callable[[int], Sequence[T]]) -> list[T]:
    """The ``count`` archived entries, oldest first. ``read`` returns the chunk that begins at an entry's number."""
    found: list[T] = []
    while len(found) < count and (chunk := read(len(found))):
        found.extend(chunk)
    return found
