"""Encodes JSON documents as Avro records of an inferred schema, from bytes to bytes in one pass.

The kernel encodes documents whose keys are columns and whose values are simple. It leaves rare cases to `RowEncoder`,
which uses Python objects: an escape in a key, a repeated or new key, an object or a list in a column of another type, a
number of many digits. `RowEncoder` defines the record of a document; tests compare the two.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.topics.json.numbers import Number, parse_fraction
from kbq_assets.wire.chunk import PADDING, Bytes, Chunk, Longs
from kbq_assets.wire.json.kernel import ASKS, DONE, FRAME, LEFT, MOST_UNKNOWN, encode_documents
from kbq_assets.wire.json.layout import FIELD, DocumentLayout
from kbq_assets.wire.json.object_columns import CAPTURE, SLOT, SPARE
from kbq_assets.wire.records.encoded import EncodedRecords

#: Bytes for the parts of one document; larger documents are left to `RowEncoder`.
_ROOM: Final = 1 << 20
#: Average of numbers per document that only Python can convert.
_MOST_NUMBERS: Final = 4


class DocumentEncoder:
    """Encodes documents by one version of an inferred schema, framed with ``schema_id``. Not thread-safe, because it
    has its own work areas."""

    def __init__(self, layout: DocumentLayout, schema_id: int) -> None:
        slots = (len(layout.fields) // FIELD + 1) * SLOT
        self._layout = (layout.types, layout.fields, layout.tables, layout.keys)
        self._time = (layout.captures, layout.unit, int(layout.has_time))
        self._levels = layout.levels
        doubled = np.empty(len(layout.captures) + 1)
        self._frame = np.frombuffer(
            bytearray(b"\0" + schema_id.to_bytes(4, "big") + bytes(PADDING)), np.uint8
        )
        self._work = (
            np.empty((layout.levels + 2) * FRAME, np.int64),
            np.empty(slots, np.int64),
            np.empty(len(layout.captures) * CAPTURE, np.int64),
            doubled,
            doubled.view(np.uint64),
            np.empty(2 * MOST_UNKNOWN, np.int64),
        )
        self._areas = tuple(np.empty(_ROOM + SPARE, np.uint8) for _ in range(3))

    def encode(self, chunk: Chunk, rows: Longs, max_bytes: int, max_depth: int) -> EncodedRecords:
        """Encode the documents of ``rows`` that the kernel can encode."""
        if self._levels > max_depth:
            return EncodedRecords(np.zeros(PADDING, np.uint8), *_spans(0), np.zeros(len(rows), np.bool_))
        verdicts = np.zeros(len(rows), np.uint8)
        starts, ends = _spans(len(rows))
        numbers = np.empty((_MOST_NUMBERS * (len(rows) + 1), 3), np.int64)
        doubles, first = np.empty(0), np.zeros(len(rows), np.int64)
        buffers: list[Bytes] = []
        asked, todo = 0, np.arange(len(rows))
        for known in (0, 1):
            at = 0
            while at < len(todo):
                base = sum(map(len, buffers))
                size = int((chunk.ends[rows[todo[at:]]] - chunk.starts[rows[todo[at:]]]).sum())
                out = np.empty(2 * size + 64 * len(todo) + _ROOM, np.uint8)
                counted = np.array([asked, 0], np.int64)
                at = encode_documents(
                    self._layout,
                    self._time,
                    (chunk.buffer, chunk.starts, chunk.ends, rows, todo, at),
                    (max_bytes, self._frame),
                    self._work,
                    self._areas,
                    (numbers, doubles, first, known, counted),
                    (out, base, starts, ends, verdicts),
                )
                asked, used = int(counted[0]), int(counted[1])
                buffers.append(out[:used])
                at += not used and at < len(todo)  # skip a record that never fits: its verdict is LEFT
            if known or not asked:
                break
            todo, doubles = _judged(chunk, numbers[:asked], verdicts, first)
        joined = np.concatenate([*buffers, np.zeros(PADDING, np.uint8)])
        return EncodedRecords(joined, starts, ends, verdicts == DONE)


def _spans(count: int) -> tuple[Longs, Longs]:
    return np.full(count, -1, np.int64), np.full(count, -1, np.int64)


def _judged(
    chunk: Chunk, numbers: NDArray[np.int64], verdicts: NDArray[np.uint8], first: Longs
) -> tuple[Longs, NDArray[np.float64]]:
    """Rows whose numbers are all exact doubles, and the doubles in order. Sets ``first`` to the index of each row's
    first double."""
    doubles = np.empty(len(numbers))
    for index, (row, start, end) in enumerate(numbers.tolist()):
        found = parse_fraction(chunk.buffer[start:end].tobytes().decode())
        if isinstance(found, Number):
            verdicts[row] = LEFT
        else:
            doubles[index] = found
        if not index or numbers[index - 1, 0] != row:
            first[row] = index
    return np.flatnonzero(verdicts == ASKS), doubles
