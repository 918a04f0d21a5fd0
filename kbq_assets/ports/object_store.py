"""The object store that holds staged data and all state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable


@dataclass(frozen=True)
class StoredObject:
    """An object as read: its bytes and the generation that a swap must name. ``updated_ms`` is the store's time."""

    data: bytes
    generation: int
    updated_ms: int


@dataclass(frozen=True)
class ObjectEntry:
    """An object as listed. What was read at this ``generation`` need not be read again."""

    path: str
    size: int
    updated_ms: int
    generation: int


@dataclass(frozen=True)
class StoredFile:
    """A streamed object that is complete. ``crc32c`` is base64, big-endian, as GCS prints it."""

    path: str
    size: int
    crc32c: str


@runtime_checkable
class ObjectWriter(Protocol):
    """One object being streamed. Nothing is visible before `close`; `abort`, or a crash, leaves nothing visible."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes. Memory held is bounded whatever the object's size. Raises Unavailable; a store may raise
        PreconditionFailed already here when it sees that the path exists."""

    def close(self) -> StoredFile:
        """Make the object visible whole. Raises PreconditionFailed if the path exists, UnknownOutcome, Unavailable."""

    def abort(self) -> None:
        """Give the object up. Never raises."""


class ObjectStore(Protocol):
    """Guarantees (PROTOCOL, Objects):

    1. *Atomic visibility*: an object is seen whole or not at all; readers never see part of a write.
    2. *Mutual exclusion*: of several creates of a path, or swaps from one generation, exactly one wins;
       the others raise PreconditionFailed.
    3. *Consistent listing*: an object created before a listing began is in it; a deleted one is not.
    4. *Durability*: what a call has acknowledged survives kill -9 and power loss.
    5. *Generations* never repeat for a path, not even after delete and re-creation.

    A write whose outcome is not known raises UnknownOutcome: it may be applied now, later or never.
    Paths are '/'-separated, relative, without '.', '..' or empty parts.
    """

    def get(self, path: str) -> StoredObject:
        """Read an object. Raises NotFound, Unavailable."""

    def create(self, path: str, data: bytes) -> int:
        """Write an object that must not exist; return its generation. Raises PreconditionFailed, UnknownOutcome."""

    def swap(self, path: str, data: bytes, generation: int) -> int:
        """Replace an object of exactly this generation; return the new one. Raises PreconditionFailed (also when
        the object is gone), UnknownOutcome."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        """Objects whose path starts with ``prefix``, in path order, from the first one after ``start_after``."""

    def delete(self, path: str) -> None:
        """Delete an object. Deleting what is not there succeeds. Raises Unavailable, UnknownOutcome."""

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Delete objects; return the failures, per path. A failure does not stop the others."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object; an existing target is kept as it is (copies are content-equal). Raises NotFound."""

    def open_write(self, path: str) -> ObjectWriter:
        """Stream a new object; the path must not exist when it is closed."""

    def open_read(self, path: str) -> BinaryIO:
        """Stream an object. Raises NotFound."""

    def uri(self, path: str) -> str:
        """The object's address for the warehouse: ``file:///…`` or ``gs://…``."""

    def now_ms(self) -> int:
        """The store's own time, in ms since 1970: ages are never measured by a local clock (L7)."""

    def sweep_temporary(self) -> int:
        """Remove what dead local writers left behind; return how many files. Objects are never touched."""
