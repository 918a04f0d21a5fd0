"""Finds the first copy at or after a time, like a broker's offsets for times (PROTOCOL R9)."""

from __future__ import annotations

from collections.abc import Iterable

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.protocol.commits import StagedFile, Window
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets.wire.files.read_container import DamagedFile


def offset_at(store: ObjectStore, windows: Iterable[Window], time_ms: int) -> int | None:
    """The first offset with a timestamp at or after a time; None if there is none. Reads only files of windows that may
    have such a record, up to the record. Raises Refused if a file is damaged or gone."""
    for window in windows:
        if 0 < window.newest_ms < time_ms:
            continue
        for file in window.files:
            if (found := _offset_in(store, file, time_ms)) is not None:
                return found
    return None


def _offset_in(store: ObjectStore, file: StagedFile, time_ms: int) -> int | None:
    name = BackupFileName.parse(file.path)
    try:
        with store.open_read(file.path) as stream:
            for chunk, _ in read_chunks(stream, name.epoch, name.range):
                late = (chunk.timestamps >= time_ms).nonzero()[0]
                if len(late):
                    return int(chunk.offsets[late[0]])
    except (DamagedFile, NotFound) as error:
        raise Refused(
            f"{store.uri(file.path)}: {error.message}",
            next_step="kbq backup verify shows the damage; if you give offsets instead of times, no file is read",
        ) from error
    return None
