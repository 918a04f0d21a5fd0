"""Which staged files of a load job its warehouse reads as one (PROTOCOL L15): pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile

#: A job of at least this many small files reads copies.
MERGE_FILES: Final = 1_000
#: A file below this size is small. So many are read at once while they are copied.
SMALL_BYTES: Final = 4 << 20
#: The size of a merged file: large jobs of a lake are still divided into tasks.
MERGED_BYTES: Final = 128 << 20


@dataclass(frozen=True)
class MergedFile(codec.Stored):
    """A copy of the blocks of a job's files, which its warehouse reads in their place. ``parts`` are their places in
    the job. The copy has the name of its first part but for the attempt."""

    file: StagedFile
    parts: tuple[int, ...]


def plan_merges(files: Sequence[StagedFile], least: int) -> tuple[tuple[int, ...], ...]:
    """The places of files that become one each: small ones of one schema, if ``least`` or more can be copied; 0 copies
    none."""
    small: dict[tuple[int, str], list[int]] = defaultdict(list)
    for place, file in enumerate(files):
        if file.bytes < SMALL_BYTES:
            small[file.name.schema_id, file.fingerprint].append(place)
    groups = [group for places in small.values() for group in _packed(files, places) if len(group) > 1]
    return tuple(groups) if 0 < least <= sum(map(len, groups)) else ()


def _packed(files: Sequence[StagedFile], places: Sequence[int]) -> list[tuple[int, ...]]:
    groups: list[list[int]] = [[]]
    size = 0
    for place in places:
        if groups[-1] and size + files[place].bytes > MERGED_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(place)
        size += files[place].bytes
    return [tuple(group) for group in groups]
