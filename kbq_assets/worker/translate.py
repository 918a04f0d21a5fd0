"""Translators turn values that are not Avro into Avro, before they are validated and staged.

A translator gives each record a framed Avro value under its own schema id, and is the registry of these ids. Keys,
headers, offsets and times stay. Error rows show the produced value.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Protocol

from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.ports.registry import SchemaRegistry
from kbq_assets.wire.chunk import Chunk, Longs, Spans
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.prefix import BAD_MAGIC, SHORT, split_prefix
from kbq_assets.wire.records.reasons import Reason

#: Schema ids from here on stand for the reason why a value cannot become a row.
FIRST_REASON_ID: Final = 2**31 - 256
#: Most different messages of one task; their ids come just before.
_MOST_MESSAGES: Final = 50
#: KBQ's own ids start here, for two `Messages`. No registry counts so far; a produced id in this range has no schema.
FIRST_OWN_ID: Final = FIRST_REASON_ID - 2 * _MOST_MESSAGES
#: Replaces a produced id in this range.
_NO_SCHEMA: Final = -4
UNREADABLE: Final = {
    BAD_MAGIC: Reason.WRONG_MAGIC,
    SHORT: Reason.TOO_SHORT,
    _NO_SCHEMA: Reason.UNKNOWN_SCHEMA,
}


class ValueTranslator(SchemaRegistry, Protocol):
    """Guarantees: the same number of records, in the same order; null stays null."""

    @property
    def business_time(self) -> BusinessTime | None:
        """Source of the event date in translated values; None for the Kafka time."""

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values. Raises Unavailable."""


def produced_ids(chunk: Chunk) -> Longs:
    """The produced schema id of each record; below 0 for null, and for the cases of `UNREADABLE`."""
    ids = split_prefix(chunk)
    ids[ids >= FIRST_OWN_ID] = _NO_SCHEMA
    return ids


def framed(schema_id: int, body: bytes = b"") -> bytes:
    """A value in Confluent's framing."""
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def rejected(reason: Reason) -> bytes:
    """Replaces a value that cannot become a row."""
    return framed(FIRST_REASON_ID + reason)


def problem(schema_id: int) -> RejectedSchema | None:
    """The rejection that an id stands for; None if the id is a schema's."""
    if schema_id < FIRST_REASON_ID:
        return None
    reason = Reason(schema_id - FIRST_REASON_ID)
    return RejectedSchema(reason, reason.message)


class Messages:
    """Schema ids that stand for messages: why records must not be staged. A translator around an ``inner`` one has
    ids of its own."""

    def __init__(self, *, inner: bool = True) -> None:
        self._found: list[RejectedSchema] = []
        self._last = FIRST_REASON_ID - 1 - (0 if inner else _MOST_MESSAGES)

    def id_of(self, message: str, reason: Reason = Reason.UNSTAGEABLE_SCHEMA) -> int:
        """The id of a message. One too many for a task has the id of its reason alone."""
        found = RejectedSchema(reason, message)
        if found not in self._found:
            if len(self._found) == _MOST_MESSAGES:
                return FIRST_REASON_ID + reason
            self._found.append(found)
        return self._last - self._found.index(found)

    def rejected(self, found: RejectedSchema) -> bytes:
        """Replaces a value that cannot become a row."""
        return framed(self.id_of(found.message, found.reason))

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        index = self._last - schema_id
        return self._found[index] if 0 <= index < len(self._found) else problem(schema_id)


def with_values(chunk: Chunk, values: list[bytes | None]) -> Chunk:
    """A chunk with other values."""
    spans = Spans.of(values)
    return dataclasses.replace(chunk, buffer=spans.buffer, starts=spans.starts, ends=spans.ends)
