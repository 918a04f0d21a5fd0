"""Topics whose values are not Avro: a translator makes them so, before anything is validated and staged.

It gives each record a framed Avro value under a schema id of its own making, and is the registry of these. Keys,
headers, offsets and times stay; error rows show what was produced.
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

#: Schema ids from here on stand for the reason why a value is no row.
FIRST_REASON_ID: Final = 2**31 - 256
#: Different messages of one task, whose ids are those before; what more there is has the last one's id.
_MOST_MESSAGES: Final = 50
#: Ids from here on are ours: no registry gets so far, and what a producer writes has no schema.
FIRST_OWN_ID: Final = FIRST_REASON_ID - _MOST_MESSAGES
#: In the place of such an id.
_NO_SCHEMA: Final = -4
UNREADABLE: Final = {
    BAD_MAGIC: Reason.WRONG_MAGIC,
    SHORT: Reason.TOO_SHORT,
    _NO_SCHEMA: Reason.UNKNOWN_SCHEMA,
}


class ValueTranslator(SchemaRegistry, Protocol):
    """Guarantees: as many records as came, in their order; null stays null."""

    @property
    def business_time(self) -> BusinessTime | None:
        """Where the event date comes from in translated values, None for the Kafka time."""

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """What an id says of its records where it stands for a reason; None for a schema."""

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values. Raises Unavailable."""


def produced_ids(chunk: Chunk) -> Longs:
    """The schema id of each record as it was produced; below 0 for null, and for what `UNREADABLE` says."""
    ids = split_prefix(chunk)
    ids[ids >= FIRST_OWN_ID] = _NO_SCHEMA
    return ids


def framed(schema_id: int, body: bytes = b"") -> bytes:
    """A value in Confluent's framing."""
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def rejected(reason: Reason) -> bytes:
    """In the place of a value that is no row."""
    return framed(FIRST_REASON_ID + reason)


def problem(schema_id: int) -> RejectedSchema | None:
    """What an id says of its records where it stands for a reason; None for a schema."""
    if schema_id < FIRST_REASON_ID:
        return None
    reason = Reason(schema_id - FIRST_REASON_ID)
    return RejectedSchema(reason, reason.message)


class Messages:
    """Schema ids that stand for messages: why the records of a schema, or a single one, must not be staged."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    def id_of(self, message: str) -> int:
        """The id of a message."""
        if message not in self._messages and len(self._messages) < _MOST_MESSAGES:
            self._messages.append(message)
        known = message in self._messages
        return FIRST_REASON_ID - 1 - (self._messages.index(message) if known else _MOST_MESSAGES - 1)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """What an id says of its records, where it stands for a message or a reason; None for a schema."""
        index = FIRST_REASON_ID - 1 - schema_id
        if not 0 <= index < len(self._messages):
            return problem(schema_id)
        return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, self._messages[index])


def with_values(chunk: Chunk, values: list[bytes | None]) -> Chunk:
    """A chunk with other values."""
    spans = Spans.of(values)
    return dataclasses.replace(chunk, buffer=spans.buffer, starts=spans.starts, ends=spans.ends)
