"""Stores records in temporary files by a hash of their keys, so comparing a table needs only the memory of one part."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from typing import IO, Final, Generic, TypeVar

#: Most files that are open at once.
_MOST_PARTS: Final = 512
_BUFFERED: Final = 200
RecordT = TypeVar("RecordT")


class Spill(Generic[RecordT]):
    """Parts of records. All records of one key are in one part."""

    def __init__(self, records: int, per_part: int) -> None:
        """Make as many parts as ``records`` records need."""
        self.parts = range(max(1, min(_MOST_PARTS, -(-records // per_part))))
        self._buffers: list[list[RecordT]] = [[] for _ in self.parts]
        self._files: list[IO[bytes]] = []
        self._open = ExitStack()

    def __enter__(self) -> Spill[RecordT]:
        self._files = [self._open.enter_context(tempfile.TemporaryFile()) for _ in self.parts]  # noqa: SIM115
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, key: Hashable, record: RecordT) -> None:
        part = hash(key) % len(self.parts)
        self._buffers[part].append(record)
        if len(self._buffers[part]) >= _BUFFERED:
            self._write(part)

    def read(self, part: int) -> Iterator[RecordT]:
        self._write(part)
        file = self._files[part]
        end = file.tell()
        file.seek(0)
        while file.tell() < end:
            yield from pickle.load(file)

    def _write(self, part: int) -> None:
        if self._buffers[part]:
            pickle.dump(self._buffers[part], self._files[part], pickle.HIGHEST_PROTOCOL)
            self._buffers[part].clear()
