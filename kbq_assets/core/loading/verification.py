"""Verifies by size and CRC32C that a stored object is still the file that the commit lists (PROTOCOL L11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.waits import ParkReason

#: The error reason of a job with a source whose bytes differ from the commit's entry.
DAMAGED: Final = "damaged"


@dataclass(frozen=True)
class Unsound:
    """Files of a job that are missing in the store, and those that differ, with the difference as text."""

    missing: tuple[str, ...] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    def without(self, paths: Iterable[str]) -> Unsound:
        """The same without the files in ``paths``."""
        known = frozenset(paths)
        damaged = {path: why for path, why in self.damaged.items() if path not in known}
        return Unsound(tuple(path for path in self.missing if path not in known), damaged)

    def __bool__(self) -> bool:
        return bool(self.missing or self.damaged)

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.missing, *self.damaged)

    @property
    def reason(self) -> ParkReason:
        return ParkReason.MISSING_FILES if self.missing else ParkReason.DAMAGED_FILES

    @property
    def message(self) -> str:
        """A text with the number of files and the first one."""
        if self.missing:
            return (
                f"{counted(len(self.missing), 'staged file is', 'staged files are')} gone: {self.missing[0]}"
            )
        first = next(iter(self.damaged.values()))
        return f"{counted(len(self.damaged), 'staged file is', 'staged files are')} damaged: {first}"


def damage(file: StagedFile, size: int, crc32c: str) -> str:
    """How a stored object differs from the commit's entry; "" if it does not. If either has no checksum, compares only
    sizes.
    """
    if size != file.bytes:
        return f"{file.path} has {size:,} bytes, the commit lists {file.bytes:,}"
    if file.crc32c and crc32c and crc32c != file.crc32c:
        return f"{file.path} has the CRC32C {crc32c}, the commit lists {file.crc32c}"
    return ""


def unsound(files: Iterable[StagedFile], stored: Mapping[str, tuple[int, str]]) -> Unsound:
    """Compare files with stored objects: their size and checksum by path."""
    missing: list[str] = []
    damaged: dict[str, str] = {}
    for file in files:
        if (found := stored.get(file.path)) is None:
            missing.append(file.path)
        elif why := damage(file, *found):
            damaged[file.path] = why
    return Unsound(tuple(sorted(missing)), dict(sorted(damaged.items())))
