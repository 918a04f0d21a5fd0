"""Chooses small staged files of a load job to merge before the warehouse reads them (PROTOCOL L15). Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile

#: A job with at least this many small files reads merged copies.
MERGE_FILES: Final = 1_000
#: A file below this size is small. While small files are copied, many are read at once.
SMALL_BYTES: Final = 4 << 20
#: The size of a merged file. It still lets a lake's large jobs be divided into tasks.
MERGED_BYTES: Final = 128 << 20


@dataclass(frozen=True)
class MergedFile(codec.Stored):
    """A copy of the blocks of several files of a job, which the warehouse reads instead of them. ``parts`` are their
    indexes in the job. The copy's name differs from its first part's only in the attempt."""

    file: StagedFile
    parts: tuple[int, ...]


def plan_merges(files: Sequence[StagedFile], least: int) -> tuple[tuple[int, ...], ...]:
    """Groups of indexes of small files to merge, each of one schema; empty if fewer than ``least`` files could be
    merged, or ``least`` is 0."""
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
