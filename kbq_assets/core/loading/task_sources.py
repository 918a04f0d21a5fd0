"""Divides the files of a load job among tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kbq_assets.core.protocol.commits import StagedFile

#: Bytes of files per task. Smaller tasks would write more data files: one per task and partition of the table.
TASK_BYTES: Final = 128 << 20


def total_bytes(sources: Sequence[str], files: Mapping[str, StagedFile]) -> int:
    """The size of a job's files, 0 if the commit's entry of any file is not known."""
    return sum(files[uri].bytes for uri in sources) if all(uri in files for uri in sources) else 0


def split_sources(
    sources: Sequence[str], files: Mapping[str, StagedFile], most_bytes: int = TASK_BYTES
) -> list[tuple[str, ...]]:
    """A job's files in groups of at most ``most_bytes``; a larger file is its own group. Keeps files of one schema and
    hour together, because each task writes one data file per partition of its rows.
    """
    groups: list[tuple[str, ...]] = []
    taken: list[str] = []
    size = 0
    for uri in sorted(sources, key=lambda uri: (*_partition(files[uri]), uri)):
        if taken and size + files[uri].bytes > most_bytes:
            groups.append(tuple(taken))
            taken, size = [], 0
        taken.append(uri)
        size += files[uri].bytes
    return [*groups, tuple(taken)] if taken else groups


def _partition(file: StagedFile) -> tuple[int, int]:
    """The schema and the first hour of a file's rows."""
    hours = file.events.hours or {day * 24: 0 for day in file.dates[:1]}
    return file.name.schema_id, min(hours, default=0)
