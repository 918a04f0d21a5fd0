"""The object store that holds staged data and all state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable


@dataclass(frozen=True)
class StoredObject:
    """An object's bytes, and the generation that a swap must name. ``updated_ms`` is the store's time."""

    data: bytes
    generation: int
    updated_ms: int


@dataclass(frozen=True)
class ObjectEntry:
    """A listed object. If ``generation`` is unchanged, so is the content."""

    path: str
    size: int
    updated_ms: int
    generation: int


@dataclass(frozen=True)
class StoredFile:
    """A completed streamed object. ``crc32c`` is base64, big-endian, as GCS prints it."""

    path: str
    size: int
    crc32c: str


@runtime_checkable
class ObjectWriter(Protocol):
    """One object being streamed. Nothing is visible before `close`; `abort`, or a crash, leaves nothing visible."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes. Memory is bounded for any size of the object. Raises Unavailable; a store that sees that the
        path exists may raise PreconditionFailed already here."""

    def close(self) -> StoredFile:
        """Make the whole object visible. Raises PreconditionFailed if the path exists, UnknownOutcome, Unavailable."""

    def abort(self) -> None:
        """Give the object up. Never raises."""


class ObjectStore(Protocol):
    """Guarantees (PROTOCOL, Objects):

    1. *Atomic visibility*: readers see an object whole or not at all, never part of a write.
    2. *Mutual exclusion*: of several creates of a path, or swaps from one generation, exactly one wins;
       the others raise PreconditionFailed.
    3. *Consistent listing*: an object created before a listing began is in it; a deleted one is not.
    4. *Durability*: an acknowledged write survives kill -9 and power loss.
    5. *Generations* never repeat for a path, not even after delete and re-creation.

    If the outcome of a write is unknown, it raises UnknownOutcome: it may be applied now, later or never.
    Paths are '/'-separated, relative, without '.', '..' or empty parts.
    """

    def get(self, path: str) -> StoredObject:
        """Read an object. Raises NotFound, Unavailable."""

    def create(self, path: str, data: bytes) -> int:
        """Write an object that must not exist; return its generation. Raises PreconditionFailed, UnknownOutcome."""

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Create objects without bytes, unless they exist; return the failures, per path. A failure does not stop the
        others."""

    def swap(self, path: str, data: bytes, generation: int) -> int:
        """Replace an object of exactly this generation; return the new one. Raises PreconditionFailed (also if
        the object is gone), UnknownOutcome."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        """Objects with this path prefix, in path order, beginning after ``start_after``. Those of somebody else, whose
        names no operation takes, are left out."""

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        """The paths that `list` has, for less: a local directory need not look at each file."""

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        """Size and CRC32C of the objects with this path prefix, in path order: of their bytes as they are stored now.
        Cloud Storage answers from one listing; a local directory reads the files. Raises Unavailable."""

    def delete(self, path: str) -> None:
        """Delete an object; succeeds if it does not exist. Raises Unavailable, UnknownOutcome."""

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Delete objects; return the failures, per path. A failure does not stop the others."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object; an existing target stays (copies have equal content). Raises NotFound."""

    def open_write(self, path: str) -> ObjectWriter:
        """Stream a new object; its path must not exist when the writer closes."""

    def open_read(self, path: str) -> BinaryIO:
        """Stream an object. Raises NotFound."""

    def uri(self, path: str) -> str:
        """The object's address for the warehouse: ``file:///…`` or ``gs://…``."""

    def now_ms(self) -> int:
        """The store's own time, in ms since 1970: ages are never measured by a local clock (L7)."""

    def sweep_temporary(self) -> int:
        """Delete the temporary files of dead local writers; return their number. Never deletes an object."""
