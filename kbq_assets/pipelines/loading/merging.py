"""Copies the blocks of a job's small files into larger ones, without decoding them (PROTOCOL L15).

A copy belongs to one job in flight. Commits, backlogs and marks keep the original files. A crash leaves an orphan (E6).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from kbq_assets.core.errors import StateError
from kbq_assets.core.loading.merging import MergedFile, plan_merges
from kbq_assets.core.loading.verification import damage
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.pipelines.loading.restaging import COPY
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

#: Files that are read at once.
_READS: Final = 32


def merge(
    store: ObjectStore, files: Sequence[StagedFile], least: int, attempt: Callable[[], str]
) -> tuple[MergedFile, ...]:
    """Merged copies for a job of these files, if at least ``least`` of them are small. Raises StateError for a file
    that differs from its commit's entry, NotFound, Unavailable."""
    return tuple(
        merged for group in plan_merges(files, least) for merged in _merged(store, files, group, attempt())
    )


def _merged(
    store: ObjectStore, files: Sequence[StagedFile], group: Sequence[int], attempt: str
) -> Iterator[MergedFile]:
    """Copies of a group: one per run of files with equal headers."""
    from kbq_assets.wire.files.join_blocks import header_in

    contents = ((place, data, header_in(data)) for place, data in _contents(store, files, group))
    for _, alike in groupby(contents, key=lambda each: each[2].entries):
        yield _written(store, files, ((place, data) for place, data, _ in alike), attempt)


def _written(
    store: ObjectStore, files: Sequence[StagedFile], contents: Iterable[tuple[int, bytes]], attempt: str
) -> MergedFile:
    from kbq_assets.wire.files.join_blocks import beginning, blocks, header_in

    contents = iter(contents)
    place, data = next(contents)
    first, header, parts = files[place], header_in(data), [place]
    name = dataclasses.replace(first.name, attempt=f"{first.name.attempt}{COPY}{attempt}")
    writer = store.open_write(name.format())
    try:
        writer.write(beginning(header))
        for block in blocks(data, header.sync_marker):
            writer.write(block)
        for place, data in contents:
            parts.append(place)
            for block in blocks(data, header.sync_marker):
                writer.write(block)
    except BaseException:
        writer.abort()
        raise
    stored = writer.close()
    file = dataclasses.replace(
        first,
        path=stored.path,
        rows=sum(files[place].rows for place in parts),
        bytes=stored.size,
        raw_bytes=sum(files[place].raw_bytes for place in parts),
        crc32c=stored.crc32c,
        dates=(),
        events=BusinessTimes(),
    )
    return MergedFile(file, tuple(parts))


def _contents(
    store: ObjectStore, files: Sequence[StagedFile], group: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    for begin in range(0, len(group), _READS):
        places = group[begin : begin + _READS]
        yield from zip(places, parallel(lambda place: _read(store, files[place]), places), strict=True)


def _read(store: ObjectStore, file: StagedFile) -> bytes:
    """The bytes of a small file. Raises StateError if it is damaged: the copy's own checksum would hide that (L11)."""
    from kbq_assets.wire.files.checksum import checksum_of

    with store.open_read(file.path) as stream:
        data = stream.read()
    if why := damage(file, *checksum_of(data)):
        raise StateError(why, next_step=f"kbq restage {file.path}")
    return data
