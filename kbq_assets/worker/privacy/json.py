"""JSON topics with personal data: documents and keys are redacted before any other step reads them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kbq_assets.core.errors import ConfigurationError, NotFound
from kbq_assets.core.topics.json.declared import declared
from kbq_assets.core.topics.personal import KEY, Decision, Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema
from kbq_assets.wire.chunk import Chunk, Longs, encode_bytes
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.json.rows import RepeatedKey
from kbq_assets.wire.privacy.hashes import ContextHash
from kbq_assets.wire.privacy.json import JsonRedactor, LostValues, UndecidedField, exact_text, parse_exact
from kbq_assets.wire.privacy.json_quick import QuickRedactor, RedactedDocuments
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.translate import Messages, framed, rejected, with_values

_PAYLOADS: Final = 1
_PAYLOAD_SCHEMA: Final = {
    "type": "record",
    "name": "Json",
    "fields": [{"name": "payload", "type": ["null", {"type": "string", "sqlType": "JSON"}]}],
}


class JsonPrivacy:
    """Redacts the documents of one topic; ``schema`` is a JSON Schema that applies to all of them.

    Raises ConfigurationError if a decision needs keys and there are none.
    """

    def __init__(
        self,
        settings: TopicSettings,
        pseudonyms: Pseudonyms | None,
        schema: Any = None,
        lost: LostValues | None = None,
    ) -> None:
        self.decisions = settings.privacy.decisions
        refuse_missing_keys(self.decisions, pseudonyms)
        self._pseudonyms = pseudonyms
        self._redactor = JsonRedactor(self.decisions, pseudonyms, settings.privacy.others, lost)
        self.messages = Messages()
        self.keeps_others = settings.privacy.others == "keep"
        self._quick: QuickRedactor | None = None
        # The catalog has already checked the tags of its schema.
        self.declare(schema)

    def declare(self, schema: Any) -> None:
        """Add the fields of a JSON Schema. All of its tags must have decisions."""
        self._redactor.declare(declared(schema))
        takes = QuickRedactor.takes(self._redactor, self._pseudonyms)
        self._quick = QuickRedactor(self._redactor, self._pseudonyms) if takes else None

    def quickly(self, chunk: Chunk, rows: Longs, limits: RecordLimits) -> RedactedDocuments | None:
        """The documents of ``rows`` without personal data, except those that need Python objects; None if all need
        them. Does not count lost values."""
        return None if self._quick is None else self._quick.redact(chunk, rows, limits)

    def count_lost(self, values: int) -> None:
        """Count values that were removed from documents."""
        self._redactor.lost.count += values

    def redacted(self, document: object) -> Any:
        """A document without its personal data. Raises UndecidedField."""
        return self._redactor(document)

    def refusal(self, error: UndecidedField | ValueError) -> bytes:
        """The replacement for a document that cannot be redacted."""
        if isinstance(error, UndecidedField):
            return framed(self.messages.id_of(f"pii says nothing about {error.place}"))
        return rejected(Reason.REPEATED_KEY if isinstance(error, RepeatedKey) else Reason.OUT_OF_RANGE)

    def without_keys(self, chunk: Chunk) -> Chunk:
        """A chunk whose keys and headers are safe to stage."""
        return without_keys(chunk, self.decisions, self._pseudonyms)


class Payloads:
    """Translates whole documents into the column `payload`."""

    business_time = None

    def __init__(self, settings: TopicSettings, privacy: JsonPrivacy | None) -> None:
        self._privacy = privacy
        self._messages = Messages() if privacy is None else privacy.messages
        self._limits = RecordLimits(max_bytes=settings.records.max_record_bytes)

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of documents. Raises NotFound."""
        if schema_id != _PAYLOADS:
            raise NotFound(f"documents have no schema {schema_id}", next_step="report a bug")
        return RegisteredSchema(schema_id, json.dumps(_PAYLOAD_SCHEMA))

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        return self._messages.problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values, redacted if the topic has decisions."""
        values: list[bytes | None] = [None] * len(chunk)
        reasons = validate_json(chunk, None, self._limits).reasons
        for row in np.flatnonzero(chunk.starts >= 0).tolist():
            reason = Reason(int(reasons[row]))
            values[row] = rejected(reason) if reason else self._redacted(chunk.value(row) or b"")
        made = with_values(chunk, values)
        return made if self._privacy is None else self._privacy.without_keys(made)

    def _redacted(self, value: bytes) -> bytes:
        if self._privacy is not None:
            try:
                value = exact_text(self._privacy.redacted(parse_exact(value.decode()))).encode()
            except (UndecidedField, ValueError) as error:
                return self._privacy.refusal(error)
        return framed(_PAYLOADS, b"\x02" + encode_bytes(value))


def refuse_missing_keys(decisions: Sequence[Decision], pseudonyms: Pseudonyms | None) -> None:
    """Raise ConfigurationError if pseudonyms are needed and there is no key for them."""
    if pseudonyms is None and any(decision.action == "pseudonym" for decision in decisions):
        raise ConfigurationError(
            "fields must become pseudonyms, but there is no key",
            next_step="run kbq pii new-key pseudonyms.json, then set KBQ_PII_KEYS=file:PATH on every worker",
        )


def without_keys(chunk: Chunk, decisions: Sequence[Decision], pseudonyms: Pseudonyms | None) -> Chunk:
    """The chunk with keys as decided, and without headers that no option requires."""
    keys = chunk.keys
    decision = next((each for each in decisions if each.path == KEY), None)
    if keys is not None and decision is not None and decision.action == "pseudonym":
        assert pseudonyms is not None  # checked when the unit began
        keys = ContextHash(pseudonyms, decision.context).texts(keys)
    return dataclasses.replace(chunk, keys=keys, late_headers=None)
