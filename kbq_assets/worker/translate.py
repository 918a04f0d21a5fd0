"""Translators convert values to Avro before they are validated and staged.

A translator gives each record a framed Avro value with its own schema id, and is the registry of these ids. Keys,
headers, offsets and timestamps stay the same. Error rows show the produced value.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Protocol

import numpy as np

from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import Chunk, Longs, Spans
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.prefix import BAD_MAGIC, SHORT, split_prefix
from kbq_assets.wire.records.reasons import Reason

#: Schema ids from here on stand for a reason why a value cannot become a row.
FIRST_REASON_ID: Final = 2**31 - 256
#: Most distinct messages per `Messages`; their ids precede those of reasons.
_MOST_MESSAGES: Final = 500
#: KBQ's own ids start here, with room for four `Messages`. No registry assigns ids this high, so a produced id in this
#: range has no schema.
FIRST_OWN_ID: Final = FIRST_REASON_ID - 4 * _MOST_MESSAGES
#: Replaces a produced id in this range.
_NO_SCHEMA: Final = -4
UNREADABLE: Final = {
    BAD_MAGIC: Reason.WRONG_MAGIC,
    SHORT: Reason.TOO_SHORT,
    _NO_SCHEMA: Reason.UNKNOWN_SCHEMA,
}


class ValueTranslator(SchemaRegistry, Protocol):
    """Guarantees the same number of records in the same order. Null stays null."""

    @property
    def business_time(self) -> BusinessTime | None:
        """The source of the event date in translated values; None for the Kafka timestamp."""

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values. Raises Unavailable."""


def produced_ids(chunk: Chunk) -> Longs:
    """The produced schema id of each record; negative for null and for the cases in `UNREADABLE`."""
    ids = split_prefix(chunk)
    ids[ids >= FIRST_OWN_ID] = _NO_SCHEMA
    return ids


def framed(schema_id: int, body: bytes = b"") -> bytes:
    """A value in Confluent's framing."""
    return b"\x00" + schema_id.to_bytes(4, "big") + body


def rejected(reason: Reason) -> bytes:
    """The replacement for a value that cannot become a row."""
    return framed(FIRST_REASON_ID + reason)


def problem(schema_id: int) -> RejectedSchema | None:
    """The rejection that an id stands for; None if the id is a schema's."""
    if schema_id < FIRST_REASON_ID:
        return None
    reason = Reason(schema_id - FIRST_REASON_ID)
    return RejectedSchema(reason, reason.message)


class Messages:
    """Schema ids that stand for messages, which say why records must not be staged. Nested translators need disjoint
    ids: ``level`` is the number of translators inside this one."""

    def __init__(self, level: int = 0) -> None:
        self._found: dict[RejectedSchema, int] = {}
        self._last = FIRST_REASON_ID - 1 - level * _MOST_MESSAGES

    def id_of(self, message: str, reason: Reason = Reason.UNSTAGEABLE_SCHEMA) -> int:
        """The id of a message. Beyond the limit of messages, the id of only its reason."""
        found = RejectedSchema(reason, message)
        if found not in self._found and len(self._found) == _MOST_MESSAGES:
            return FIRST_REASON_ID + reason
        return self._last - self._found.setdefault(found, len(self._found))

    def rejected(self, found: RejectedSchema) -> bytes:
        """The replacement for a value that cannot become a row."""
        return framed(self.id_of(found.message, found.reason))

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        index = self._last - schema_id
        return [*self._found][index] if 0 <= index < len(self._found) else problem(schema_id)


def with_values(chunk: Chunk, values: list[bytes | None]) -> Chunk:
    """A chunk with other values."""
    spans = Spans.of(values)
    return dataclasses.replace(chunk, buffer=spans.buffer, starts=spans.starts, ends=spans.ends)


@dataclasses.dataclass(frozen=True)
class AsProduced:
    """Translates nothing: values are Avro behind Confluent's prefix."""

    registry: SchemaRegistry
    business_time: BusinessTime | None = None

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The registry's schema of an id. Raises NotFound, Unavailable."""
        return self.registry.schema(schema_id)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        return problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records. A record is rejected if its producer wrote one of KBQ's own ids."""
        ours = split_prefix(chunk) >= FIRST_OWN_ID
        if not ours.any():
            return chunk
        values = [chunk.value(row) for row in range(len(chunk))]
        for row in np.flatnonzero(ours).tolist():
            values[row] = rejected(Reason.UNKNOWN_SCHEMA)
        return with_values(chunk, values)


class Screen(SchemaRegistry, Protocol):
    """Checks values before they are translated."""

    def screened(self, chunk: Chunk) -> tuple[Chunk, dict[int, RejectedSchema]]:
        """The same records. A value that fails the check becomes null; the dict has the reason by row. Raises
        Unavailable."""


class ScreenedValues:
    """Translates the values that pass a screen with an ``inner`` translator, or leaves them as Avro if it is None. For
    ``level``, see `Messages`."""

    def __init__(
        self, screen: Screen, settings: TopicSettings, inner: ValueTranslator | None, level: int
    ) -> None:
        self._screen = screen
        self._inner = inner
        self._messages = Messages(level)
        self._business_time = settings.records.event_date

    @property
    def business_time(self) -> BusinessTime | None:
        """The source of the event date in translated values; None for the Kafka timestamp."""
        return self._business_time if self._inner is None else self._inner.business_time

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises NotFound, Unavailable."""
        return (self._inner or self._screen).schema(schema_id)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        found = self._messages.problem(schema_id)
        return self._inner.problem(schema_id) if found is None and self._inner is not None else found

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values. Raises Unavailable."""
        passed, refused = self._screen.screened(chunk)
        made = passed if self._inner is None else self._inner.translate(passed)
        if not refused:
            return made
        values = [made.value(row) for row in range(len(made))]
        for row, why in refused.items():
            values[row] = self._messages.rejected(why)
        return with_values(made, values)
