"""Rewrites JSON documents without their personal data, from bytes to bytes.

The kernel rewrites documents with simple edits: a field is removed, set to null, truncated, or replaced by a pseudonym.
It leaves rare cases to `JsonRedactor`, which uses Python objects: an escape in a key or in a text to hide, a value
whose type does not fit its decision, an undecided field that stops its partition, any value to generalise.
`JsonRedactor` defines the result; tests compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.topics.personal import Decision, Pseudonyms
from kbq_assets.wire.chunk import PADDING, Bytes, Chunk, Longs, Spans
from kbq_assets.wire.json.layout import FIELD, TYPE, bytes_of, key_table
from kbq_assets.wire.json.object_columns import SPARE
from kbq_assets.wire.privacy import json_edits as edits
from kbq_assets.wire.privacy.hashes import ContextHash
from kbq_assets.wire.privacy.json import JsonRedactor, KnownField
from kbq_assets.wire.records.verdicts import RecordLimits

_MODES: Final = {
    "keep": edits.COPIED,
    "drop": edits.DROPPED,
    "null": edits.NULLED,
    "pseudonym": edits.HASHED,
    "truncate": edits.SHORTENED,
    "generalise": edits.LEAVING,
}
_OTHERS: Final = {"stop": edits.STOP, "keep": edits.KEEP, "drop": edits.DROP}
#: Most edits at a time. A document with more is left to `JsonRedactor`.
_MOST_EDITS: Final = 1 << 16
#: Most bytes of a text with escapes that the kernel decodes.
_ROOM: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class RedactedDocuments:
    """Documents of some rows as spans of ``buffer``, -1 for a row that is left to `JsonRedactor`. ``lost`` is the
    number of values removed from each document by `pii_others=drop`."""

    buffer: Bytes
    starts: Longs
    ends: Longs
    lost: Longs


@dataclass
class _PlaceArrays:
    """Known fields as arrays for `find`, and the contexts of pseudonyms."""

    types: list[list[int]] = field(default_factory=list)
    fields: list[list[int]] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    keys: bytearray = field(default_factory=bytearray)
    contexts: list[str] = field(default_factory=list)

    def place(self, known: KnownField) -> int:
        """The number of a place."""
        number, decision = len(self.types), known.decision
        made = [0] * TYPE
        made[0] = edits.DECIDED if known.decided else edits.WALKED
        self.types.append(made)
        if decision is not None:
            made[0], made[5] = _MODES[decision.action], self._argument(decision)
        first, inner = len(self.fields), known.fields
        self.fields += [[0] * FIELD for _ in inner]
        keys = [bytes_of(key) for key in inner]
        table = key_table(keys, first)
        made[1:5] = first, len(inner), len(self.tables), len(table) - 1
        self.tables += table
        for index, (key, each) in enumerate(zip(keys, inner.values(), strict=True)):
            start = len(self.keys)
            self.keys += key
            self.fields[first + index] = [start, start + len(key), self.place(each), 0, 0, -1]
        return number

    def _argument(self, decision: Decision) -> int:
        if decision.action == "truncate":
            return int(decision.argument)
        if decision.action == "pseudonym":
            self.contexts.append(decision.context)
            return len(self.contexts) - 1
        return 0

    def layout(self) -> tuple[Longs, Longs, NDArray[np.int32], Bytes]:
        """The arrays."""
        return (
            np.array(self.types, np.int64).ravel(),
            np.array(self.fields or [[0] * FIELD], np.int64).ravel(),
            np.array(self.tables, np.int32),
            np.frombuffer(self.keys + bytes(PADDING), np.uint8),
        )


class QuickRedactor:
    """Redacts as ``redactor`` would now. Create a new one after a schema was declared. Not thread-safe, because it has
    its own work areas."""

    def __init__(self, redactor: JsonRedactor, pseudonyms: Pseudonyms | None) -> None:
        places = _PlaceArrays()
        places.place(redactor.root)
        self._layout = places.layout()
        self._others = _OTHERS[redactor.others]
        self._hashes = [ContextHash(pseudonyms, context) for context in places.contexts] if pseudonyms else []
        self._seen = np.zeros(len(places.fields) + 1, np.int64)
        self._counted = np.zeros(2, np.int64)
        self._names = np.empty(2 * edits.MOST_NAMES, np.int64)
        self._scratch = np.empty(_ROOM + SPARE, np.uint8)

    @staticmethod
    def takes(redactor: JsonRedactor, pseudonyms: Pseudonyms | None) -> bool:
        """Whether the kernel can apply the decisions: no known field is recursive, and pseudonyms need no escapes."""
        if any(place.like for place in _all(redactor.root)):
            return False
        name = "" if pseudonyms is None else pseudonyms.current
        return json.dumps(name, ensure_ascii=False) == f'"{name}"'

    def redact(self, chunk: Chunk, rows: Longs, limits: RecordLimits) -> RedactedDocuments:
        """Redact the documents of ``rows`` that the kernel can redact."""
        starts, ends = np.full((2, len(rows)), -1, np.int64)
        firsts, lasts = np.full((2, len(rows)), -1, np.int64)
        lost = np.zeros(len(rows), np.int64)
        noted = np.empty((min(_MOST_EDITS, 16 * len(rows) + 256), edits.EDIT), np.int64)
        frames = np.empty((limits.max_json_depth + 2) * edits.FRAME, np.int64)
        buffers: list[Bytes] = []
        at = base = 0
        while at < len(rows):
            reached = edits.find_edits(
                self._layout,
                self._others,
                (chunk.buffer, chunk.starts, chunk.ends, rows, at),
                (limits.max_bytes, limits.max_json_depth),
                (frames, self._seen, self._names, self._scratch, self._counted),
                (noted, firsts, lasts, lost),
            )
            found = noted[: self._counted[1]]
            texts, places, size = self._pseudonyms(chunk, found)
            batch = rows[at:reached]
            most = int((chunk.ends[batch] - chunk.starts[batch]).sum()) + (size + 4) * len(found)
            out = np.empty(most, np.uint8)
            edits.write_edited(
                (chunk.buffer, chunk.starts, chunk.ends, rows, at, reached),
                (found, firsts, lasts),
                (texts, places, size),
                (out, starts, ends, base),
            )
            buffers.append(out)
            base += len(out)
            at = reached
        return RedactedDocuments(np.concatenate([*buffers, np.zeros(PADDING, np.uint8)]), starts, ends, lost)

    def _pseudonyms(self, chunk: Chunk, found: NDArray[np.int64]) -> tuple[Bytes, Longs, int]:
        """The pseudonyms for the edits, the position of each edit's pseudonym, and their common size."""
        places = np.zeros(len(found), np.int64)
        texts: list[Bytes] = [np.zeros(PADDING, np.uint8)]
        base, size = PADDING, 0
        for context, hashes in enumerate(self._hashes):
            chosen = np.flatnonzero(found[:, 2] == context)
            if not len(chosen):
                continue
            spans = Spans(
                chunk.buffer, np.ascontiguousarray(found[chosen, 0]), np.ascontiguousarray(found[chosen, 1])
            )
            made = hashes.texts(spans)
            size = int(made.ends[0] - made.starts[0])  # one key, so one size
            places[chosen] = made.starts + base
            texts.append(made.buffer)
            base += len(made.buffer)
        return np.concatenate(texts), places, size


def _all(place: KnownField) -> Iterator[KnownField]:
    yield place
    for each in place.fields.values():
        yield from _all(each)
