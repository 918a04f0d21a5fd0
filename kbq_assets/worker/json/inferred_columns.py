"""JSON topics as tables with columns: documents become Avro records of an inferred schema, which only grows.

A version of this schema takes the place of a schema id, so later stages see only Avro. The inferred schema grows by
compare-and-swap *before* anything is staged with its next version. So two tasks that find new fields at the same time
add both, and the version of a zombie task is stored as well. Fields that a version lacks go to the side column, so no
version loses data.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kbq_assets.core.errors import NotFound, PreconditionFailed, UnknownOutcome, UnstageableSchema
from kbq_assets.core.protocol import codec
from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.json.declared import declared, tagged, tags_any_name
from kbq_assets.core.topics.json.inference import EVENT_TIME, SHAPES, InferredSchema, avro_schema
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import Chunk, Longs, Spans
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.json.encode import DocumentEncoder
from kbq_assets.wire.json.layout import layout_of
from kbq_assets.wire.json.rows import RepeatedKey, RowEncoder, event_time, parse, scalar_at
from kbq_assets.wire.privacy.json import UndecidedField
from kbq_assets.wire.privacy.tags import refuse_undecided
from kbq_assets.wire.records.encoded import EncodedRecords, with_encoded
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.json.needed_columns import NeededColumn, Needs
from kbq_assets.worker.privacy.json import JsonPrivacy
from kbq_assets.worker.translate import UNREADABLE, Messages, framed, produced_ids, rejected, with_values


@dataclass(frozen=True)
class _Version:
    """A version with its encoders. ``generation`` is that of the stored schema, None if nothing is stored yet."""

    inferred: InferredSchema
    rows: RowEncoder
    documents: DocumentEncoder
    needed: tuple[NeededColumn, ...]
    generation: int | None


class JsonColumns:
    """Translates the values of one topic, and is the registry of its versions.

    With ``registry``, values have Confluent's prefix and a JSON Schema, which declares columns up front. With
    ``schema``, only the columns that it declares exist. ``chosen_by`` names the fields that choose a document's table.
    ``fixed`` has a value for each field whose type no document decides.
    """

    def __init__(
        self,
        topic: str,
        settings: TopicSettings,
        store: ObjectStore,
        registry: SchemaRegistry | None = None,
        privacy: JsonPrivacy | None = None,
        schema: Any = None,
        chosen_by: Sequence[str] = (),
        fixed: Mapping[str, object] | None = None,
    ) -> None:
        self._fixed = fixed
        self._needs = Needs.of(settings)
        self._chosen_by = tuple(tuple(path.split(".")) for path in chosen_by)
        self._registry = registry
        self._privacy = privacy
        self._decisions = privacy.decisions if privacy is not None else ()
        self._messages = privacy.messages if privacy is not None else Messages()
        self._declared: dict[int, bytes] = {}
        self._path = f"{SHAPES}{topic}.json"
        self._business_time = settings.records.event_date
        self._limits = RecordLimits(max_bytes=settings.records.max_record_bytes)
        self._store = store
        self._versions: dict[int, InferredSchema] = {}
        self._current = self._read()
        self._is_closed = schema is not None
        if schema is not None:
            seen = declared(schema)
            self._grow(lambda inferred: inferred.grown_by(seen, self._needs.style))

    @property
    def business_time(self) -> BusinessTime | None:
        """The staged field that holds the event date; None for the Kafka timestamp."""
        return BusinessTime((EVENT_TIME,)) if self._business_time else None

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The Avro schema of a version that this task has used. Raises NotFound."""
        if schema_id not in self._versions:
            raise NotFound(f"{self._path} has no version {schema_id} here", next_step="report a bug")
        schema = avro_schema(self._versions[schema_id], event_time=self._business_time is not None)
        return RegisteredSchema(schema_id, json.dumps(schema))

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a version's."""
        return self._messages.problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values. A value that is not a JSON document gets the id of the reason. Null
        stays null. Raises Unavailable."""
        bare, good, values = self._bare(chunk)
        quick = self._quick(bare, good)
        slow = good if quick is None else good[~quick.done]
        reasons = validate_json(bare, slow, self._limits).reasons
        bad = (reasons != Reason.GOOD) & (reasons != Reason.OUT_OF_RANGE)  # numbers out of range become text
        for row, reason in zip(slow[bad].tolist(), reasons[bad].tolist(), strict=True):
            values[row] = rejected(Reason(reason))
        leftover: dict[int, object] = {}
        choices: list[list[bytes | None]] = [[None] * len(chunk) for _ in self._chosen_by]
        for row in slow[~bad].tolist():
            text = (bare.value(row) or b"").decode()
            try:
                document = self._parsed(text)
            except (UndecidedField, ValueError) as error:
                values[row] = self._unparsed(text, error)
                continue
            for path, found in zip(self._chosen_by, choices, strict=True):
                found[row] = scalar_at(document, path)
            encoded, whole = self._current.rows.encode(document)
            values[row] = self._framed(encoded, document)
            if not whole:
                leftover[row] = document
        has_grown = leftover and not self._is_closed and self._grow(partial(self._grown, leftover.values()))
        for row, document in leftover.items():
            if unfit := next((each for each in self._current.needed if each.misfits(document)), None):
                values[row] = self._messages.rejected(RejectedSchema(Reason.UNFIT_VALUE, unfit.problem))
            elif has_grown:
                values[row] = self._framed(self._current.rows.encode(document)[0], document)
        made = with_values(chunk, values)
        if quick is not None:
            made = with_encoded(made, quick, good)
        if choices:
            made = dataclasses.replace(made, chosen_by=tuple(map(Spans.of, choices)))
        return made if self._privacy is None else self._privacy.without_keys(made)

    def _parsed(self, text: str) -> object:
        document = parse(text)
        return document if self._privacy is None else self._privacy.redacted(document)

    def _unparsed(self, text: str, error: UndecidedField | ValueError) -> bytes:
        """The row of a document that Python cannot parse: a repeated key, or a number with thousands of digits."""
        if self._privacy is not None:
            return self._privacy.refusal(error)
        if self._needs.paths:
            return rejected(Reason.REPEATED_KEY if isinstance(error, RepeatedKey) else Reason.OUT_OF_RANGE)
        return self._framed(self._current.rows.raw(text), None)

    def _bare(self, chunk: Chunk) -> tuple[Chunk, Longs, list[bytes | None]]:
        """Values without their prefix, the rows of readable values, and the replacements for values of refused
        schemas."""
        values: list[bytes | None] = [None] * len(chunk)
        good = np.flatnonzero(chunk.starts >= 0)
        if self._registry is None:
            return chunk, good, values
        ids = produced_ids(chunk)
        bare = dataclasses.replace(chunk, starts=np.where(ids >= 0, chunk.starts + PREFIX, chunk.starts))
        for schema_id in np.unique(ids[good]).tolist():
            refusal = self._refusal(schema_id)
            if refusal:
                for row in good[ids[good] == schema_id].tolist():
                    values[row] = refusal
        return bare, np.array([row for row in good.tolist() if values[row] is None], np.int64), values

    def _quick(self, bare: Chunk, rows: Longs) -> EncodedRecords | None:
        """The documents encoded without Python objects; None if not possible, as when fields choose the table."""
        if self._chosen_by:
            return None
        limits, documents = self._limits, self._current.documents
        if self._privacy is None:
            return documents.encode(bare, rows, limits.max_bytes, limits.max_json_depth)
        redacted = self._privacy.quickly(bare, rows, limits)
        if redacted is None:
            return None
        starts, ends = np.full((2, len(bare)), -1, np.int64)
        starts[rows], ends[rows] = redacted.starts, redacted.ends
        without = dataclasses.replace(bare, buffer=redacted.buffer, starts=starts, ends=ends)
        found = documents.encode(without, rows, limits.max_bytes, limits.max_json_depth)
        self._privacy.count_lost(int(redacted.lost[found.done].sum()))
        return found

    def _refusal(self, schema_id: int) -> bytes:
        """The replacement for documents with a schema id; b"" if they are readable and all columns exist."""
        if schema_id < 0:
            return rejected(UNREADABLE[schema_id])
        if schema_id not in self._declared:
            self._declared[schema_id] = self._declare(schema_id)
        return self._declared[schema_id]

    def _declare(self, schema_id: int) -> bytes:
        assert self._registry is not None
        try:
            found = self._registry.schema(schema_id)
        except NotFound as error:
            return framed(self._messages.id_of(error.message, Reason.UNKNOWN_SCHEMA))
        why = f"its type is {found.schema_type}, not JSON"
        try:
            schema = json.loads(found.schema) if found.schema_type == "JSON" else None
        except (ValueError, RecursionError) as error:
            schema, why = None, f"it cannot be read as JSON ({type(error).__name__})"
        if schema is None:
            return framed(self._messages.id_of(f"schema {found.name}: {why}"))
        try:
            refuse_undecided(tagged(schema), self._decisions)
            self._refuse_any_name(schema)
        except UnstageableSchema as error:
            return framed(self._messages.id_of(f"schema {found.name}: {error.message}"))
        if self._privacy is not None:
            self._privacy.declare(schema)
        seen = declared(schema)
        self._grow(lambda inferred: inferred.grown_by(seen, self._needs.style))
        return b""

    def _refuse_any_name(self, schema: Any) -> None:
        if tags_any_name(schema) and (self._privacy is None or self._privacy.keeps_others):
            raise UnstageableSchema(
                "fields of any name are tagged as personal data, and would be kept",
                next_step="set pii, and pii_others=drop or pii_others=stop",
            )

    def _framed(self, encoded: bytes, document: object) -> bytes:
        time = event_time(document, self._business_time) if self._business_time else b""
        return framed(self._current.inferred.version, encoded + time)

    def _grow(self, grow: Callable[[InferredSchema], InferredSchema]) -> bool:
        """Add columns for new fields. Returns whether there are more columns than before."""
        before = self._current.inferred.version
        while True:
            grown = grow(self._current.inferred)
            if grown == self._current.inferred:
                return self._current.inferred.version > before
            try:
                self._current = self._used(grown, self._write(grown))
            except (PreconditionFailed, UnknownOutcome):
                self._current = self._read()  # lost the race, or outcome unknown: read again

    def _grown(self, documents: Collection[object], inferred: InferredSchema) -> InferredSchema:
        kinds = self._needs.kinds(inferred, documents)
        return inferred.grown(documents, self._fixed, kinds, self._needs.style)

    def _write(self, inferred: InferredSchema) -> int:
        data, generation = codec.dumps(inferred), self._current.generation
        if generation is None:
            return self._store.create(self._path, data)
        return self._store.swap(self._path, data, generation)

    def _read(self) -> _Version:
        try:
            found = self._store.get(self._path)
        except NotFound:
            return self._used(InferredSchema(), None)
        return self._used(codec.loads(InferredSchema, found.data, self._path), found.generation)

    def _used(self, inferred: InferredSchema, generation: int | None) -> _Version:
        self._versions[inferred.version] = inferred
        needed = self._needs.columns(inferred)
        layout = layout_of(inferred, self._business_time, [each.keys for each in needed])
        documents = DocumentEncoder(layout, inferred.version)
        return _Version(inferred, RowEncoder(inferred), documents, needed, generation)
