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
    """A completed streamed object. ``crc32c`` is base64, big-endian, as in GCS."""

    path: str
    size: int
    crc32c: str


@runtime_checkable
class ObjectWriter(Protocol):
    """A stream that writes one object. The object is visible only after `close`; `abort` or a crash leaves nothing
    visible."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes. Memory use does not grow with the object. Raises Unavailable. A store may already raise
        PreconditionFailed here if the path exists."""

    def close(self) -> StoredFile:
        """Make the object visible. Raises PreconditionFailed if the path exists, UnknownOutcome, Unavailable."""

    def abort(self) -> None:
        """Discard the object. Never raises."""


class ObjectStore(Protocol):
    """Guarantees (PROTOCOL, Objects):

    1. *Atomic visibility*: readers see an object completely or not at all, never part of a write.
    2. *Mutual exclusion*: of several creates of a path, or swaps from one generation, exactly one wins;
       the others raise PreconditionFailed.
    3. *Consistent listing*: a listing has all objects created before it began, and none deleted before.
    4. *Durability*: an acknowledged write survives kill -9 and power loss.
    5. *Generations* never repeat for a path, even if the object is deleted and created again.

    If the outcome of a write is unknown, it raises UnknownOutcome: the write may apply now, later or never. Paths are
    relative and separated by '/', without '.', '..' or empty parts.
    """

    def get(self, path: str) -> StoredObject:
        """Read an object. Raises NotFound, Unavailable."""

    def create(self, path: str, data: bytes) -> int:
        """Write an object that must not exist; return its generation. Raises PreconditionFailed, UnknownOutcome."""

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Create empty objects unless they exist; return the failures by path. A failure does not stop the others."""

    def swap(self, path: str, data: bytes, generation: int) -> int:
        """Replace an object of exactly this generation; return the new one. Raises PreconditionFailed (also if
        the object is gone), UnknownOutcome."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        """Objects with this path prefix, in path order, beginning after ``start_after``. Leaves out objects of other
        programs whose names are not valid paths here."""

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        """The paths that `list` has, for less: a local directory need not look at each file."""

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        """Size and CRC32C of the bytes now stored in the objects with this path prefix, in path order. Cloud Storage
        needs one listing; a local directory reads the files. Raises Unavailable."""

    def delete(self, path: str) -> None:
        """Delete an object; succeeds if it does not exist. Raises Unavailable, UnknownOutcome."""

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Delete objects; return the failures by path. A failure does not stop the others."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object. Keeps an existing target, because copies have equal content. Raises NotFound."""

    def open_write(self, path: str) -> ObjectWriter:
        """Stream a new object. Its path must not exist when the writer closes."""

    def open_read(self, path: str) -> BinaryIO:
        """Stream an object. Raises NotFound."""

    def uri(self, path: str) -> str:
        """The object's address for the warehouse: ``file:///…`` or ``gs://…``."""

    def now_ms(self) -> int:
        """The store's own time, in ms since 1970. Ages are always measured by this clock, never by a local one (L7)."""

    def sweep_temporary(self) -> int:
        """Delete the temporary files of dead local writers; return their number. Never deletes an object."""
