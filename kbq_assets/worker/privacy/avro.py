"""Topics with personal data: fields with a decision are replaced before records are validated, routed or stored.

A value that cannot be rewritten is never stored in the clear. Error rows of such topics show position and reason.
Only the holder of the private key can read the value.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import ConfigurationError, NotFound, UnstageableSchema
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.json.declared import has_tag
from kbq_assets.core.topics.personal import HEADERS, KEY, Decision, Pseudonyms, in_avro
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import PADDING, Chunk, Longs, Spans
from kbq_assets.wire.files.encode import RejectedSchema, Rejects
from kbq_assets.wire.privacy.avro import Rewriter, empty_of, rewriter
from kbq_assets.wire.privacy.hashes import ContextHash, replaced
from kbq_assets.wire.privacy.tags import check_decided
from kbq_assets.wire.records.compile import compile_program, takes_no_bytes
from kbq_assets.wire.records.prefix import PREFIX, split_prefix
from kbq_assets.wire.records.program import Program
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.privacy.json import refuse_missing_keys, without_keys
from kbq_assets.worker.translate import (
    FIRST_OWN_ID,
    UNREADABLE,
    ValueTranslator,
    framed,
    problem,
    produced_ids,
    rejected,
    with_values,
)

if TYPE_CHECKING:
    from kbq_assets.wire.privacy.sealing import SealKey


@dataclass(frozen=True)
class _RewrittenSchema:
    """The validator and the rewriter for records of one schema id."""

    program: Program
    rewrite: Rewriter
    label: str
    #: replacements for the fields that the program captures; None if the rewriter must run
    instead: Sequence[ContextHash | bytes] | None = None


#: Rows of a chunk, and their rewritten values.
_Part: TypeAlias = tuple[Longs, Spans]


def _merged(chunk: Chunk, parts: Sequence[_Part]) -> Chunk:
    """The chunk with the values of ``parts``. All other rows are null."""
    starts, ends = np.full((2, len(chunk)), -1, np.int64)
    size = 0
    for rows, spans in parts:
        starts[rows], ends[rows] = spans.starts + size, spans.ends + size
        size += len(spans.buffer)
    buffers = [spans.buffer for _, spans in parts]
    buffer = buffers[0] if len(buffers) == 1 else np.concatenate([*buffers, np.zeros(PADDING, np.uint8)])
    return dataclasses.replace(chunk, buffer=buffer, starts=starts, ends=ends)


class PersonalData:
    """Redacts Avro values, or those of an ``inner`` translator. Raises ConfigurationError if a decision needs keys
    and there are none."""

    def __init__(
        self,
        settings: TopicSettings,
        registry: SchemaRegistry,
        pseudonyms: Pseudonyms | None,
        inner: ValueTranslator | None = None,
    ) -> None:
        self.business_time = settings.records.event_date if inner is None else inner.business_time
        self._registry = registry if inner is None else inner
        self._inner = inner
        self._decisions = in_avro(settings.privacy.decisions)
        refuse_missing_keys(self._decisions, pseudonyms)
        self._pseudonyms = pseudonyms
        self._limits = RecordLimits(max_bytes=settings.records.max_record_bytes)
        self._versions: dict[int, _RewrittenSchema | NotFound | UnstageableSchema] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of rewritten records. Raises NotFound, Unavailable, or UnstageableSchema if a decision is missing
        or impossible."""
        version = self._version(schema_id)
        if isinstance(version, Exception):
            raise version
        return RegisteredSchema(schema_id, json.dumps(version.rewrite.schema), label=version.label)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records without personal data. If a schema cannot be rewritten, its records get an id that prevents
        staging. Raises Unavailable."""
        source = chunk if self._inner is None else self._inner.translate(chunk)
        ids = produced_ids(source) if self._inner is None else split_prefix(source)
        parts: list[_Part] = []
        for schema_id in np.unique(ids).tolist():
            rows = np.flatnonzero((ids == schema_id) & (source.starts >= 0))
            if len(rows):
                parts += self._rewrite(source, schema_id, rows)
        return without_keys(_merged(source, parts), self._decisions, self._pseudonyms)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        return problem(schema_id) if self._inner is None else self._inner.problem(schema_id)

    def _rewrite(self, source: Chunk, schema_id: int, rows: Longs) -> list[_Part]:
        if schema_id < 0:
            return [(rows, Spans.of([rejected(UNREADABLE[schema_id])] * len(rows)))]
        if schema_id >= FIRST_OWN_ID or isinstance(version := self._version(schema_id), Exception):
            return [(rows, Spans.of([framed(schema_id)] * len(rows)))]
        validation = validate_avro(source, version.program, rows, self._limits)
        good = validation.reasons == Reason.GOOD
        reasons = validation.reasons[~good].tolist()
        bad = rows[~good], Spans.of([rejected(Reason(reason)) for reason in reasons])
        kept = rows[good]
        if version.instead is not None:
            captures = validation.captures.take(good)
            made = replaced(source.buffer, source.starts[kept], source.ends[kept], captures, version.instead)
            return [(kept, made), bad]
        bodies = [(source.value(row) or b"")[PREFIX:] for row in kept.tolist()]
        return [(kept, Spans.of([framed(schema_id, version.rewrite(body)) for body in bodies])), bad]

    def _version(self, schema_id: int) -> _RewrittenSchema | NotFound | UnstageableSchema:
        if schema_id not in self._versions:
            try:
                self._versions[schema_id] = self._made(schema_id)
            except (NotFound, UnstageableSchema) as error:
                self._versions[schema_id] = error
        return self._versions[schema_id]

    def _made(self, schema_id: int) -> _RewrittenSchema:
        found = self._registry.schema(schema_id)
        if found.schema_type != "AVRO":
            raise UnstageableSchema(
                f"schema {schema_id} is {found.schema_type}, not Avro", next_step="set format"
            )
        schema = avro.load_schema(found.schema)
        try:
            check_decided(schema, self._decisions)
            made = rewriter(schema, self._decisions, self._pseudonyms)
        except UnstageableSchema as error:
            named = f"{found.label}: {error.message}" if found.label else error.message
            raise UnstageableSchema(named, next_step=error.next_step) from error
        record = avro.parse(schema)
        assert isinstance(record, avro.RecordType)  # the rewriter guarantees it
        fast = quickly(record, self._decisions, self._pseudonyms)
        if fast is not None:
            return _RewrittenSchema(fast[0], made, found.label, fast[1])
        return _RewrittenSchema(compile_program(record, []), made, found.label)


def quickly(
    record: avro.RecordType, decisions: Iterable[Decision], pseudonyms: Pseudonyms | None
) -> tuple[Program, Sequence[ContextHash | bytes]] | None:
    """A program that captures the fields with decisions, and their replacements. Returns None if a field is inside a
    list, or if a decision is anything but drop, null, or the pseudonym of a string."""
    decided = [each for each in decisions if each.path not in (KEY, HEADERS) and each.action != "keep"]
    hashed = [each for each in decided if each.action == "pseudonym"]
    others = [each for each in decided if each.action != "pseudonym"]
    constants = [_instead(record, each) for each in others]
    try:
        program = compile_program(record, [], [d.path for d in hashed], [d.path for d in others])
    except UnstageableSchema:
        return None
    known = [each for each in constants if each is not None]
    if len(known) < len(others) or any(routed.kind != "string" for routed in program.routed):
        return None
    if pseudonyms is None:
        return program, known  # nothing is hashed: without keys, the rewriter has refused pseudonyms
    return program, [*(ContextHash(pseudonyms, each.context) for each in hashed), *known]


def _instead(record: avro.RecordType, decision: Decision) -> bytes | None:
    """The bytes that replace a field; None if they differ between records."""
    if decision.action == "drop":
        return b""
    if decision.action != "null":
        return None
    node: avro.AvroType = record
    for name in decision.path.split("."):
        if isinstance(node, avro.Union):
            branches = [branch for branch in node.branches if not avro.is_null(branch)]
            node = branches[0] if len(branches) == 1 else node
        if not isinstance(node, avro.RecordType):
            return None
        if name not in node.fields:
            return b""  # no such field, so nothing is captured
        node = node.fields[name].type
    return None if takes_no_bytes(node) else empty_of(node)


@dataclass(frozen=True)
class ErrorCopies:
    """Contents of error rows for bad records that may be personal.

    Such records belong to a topic with decisions about personal data, or have a schema with undecided tags.
    """

    are_dropped: bool = False
    #: seals the contents; if None, they are withheld
    key: SealKey | None = None
    #: finds the schemas with tags; if None, any record may be personal
    registry: SchemaRegistry | None = None
    #: whether records name their schemas with Confluent's prefix
    has_prefix: bool = True
    _tagged: dict[int, bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls, settings: TopicSettings, seal_key: Callable[[], SealKey | None], registry: SchemaRegistry
    ) -> ErrorCopies:
        """The error copies of a topic. Raises ConfigurationError if they must be sealed and there is no key."""
        asked = None if settings.privacy.decisions else registry
        has_prefix = settings.records.framing == "prefix" and not settings.keys.are_decoded
        if settings.privacy.error_rows != "seal":
            are_dropped = settings.privacy.error_rows == "drop"
            return cls(are_dropped=are_dropped, registry=asked, has_prefix=has_prefix)
        key = seal_key()
        if key is None and settings.privacy.decisions:
            raise ConfigurationError(
                "error rows must be sealed, but there is no key",
                next_step="set KBQ_PII_SEAL_KEY on every worker: `kbq pii keygen` makes one",
            )
        return cls(key=key, registry=asked, has_prefix=has_prefix)

    def are_personal(self, chunk: Chunk, rejects: Rejects) -> NDArray[np.bool_]:
        """Which of the bad records may be personal. Raises Unavailable."""
        if self.registry is None:
            return np.ones(len(rejects), np.bool_)
        if not self.has_prefix:  # the record's schema is unknown here, and its tags may be undecided
            return np.equal(rejects.reasons, Reason.UNSTAGEABLE_SCHEMA)
        ids = produced_ids(chunk)[rejects.rows]
        ids[rejects.reasons != Reason.UNSTAGEABLE_SCHEMA] = -1
        tagged = [schema_id for schema_id in np.unique(ids).tolist() if self._is_tagged(schema_id)]
        return np.isin(ids, tagged)

    def of_records(self, chunk: Chunk, rows: NDArray[np.int64], tp: TopicPartition) -> Chunk:
        """A chunk whose ``rows`` are safe to show."""
        values: list[bytes | None] = [None] * len(chunk)
        if self.key is not None and len(rows):
            from kbq_assets.wire.privacy.sealed_rows import seal_row

            for row in rows.tolist():
                values[row] = seal_row(chunk, row, self.key, tp.topic, tp.partition)
        return dataclasses.replace(with_values(chunk, values), keys=None, headers=None, late_headers=None)

    def _is_tagged(self, schema_id: int) -> bool:
        if schema_id < 0:
            return False
        if schema_id not in self._tagged:
            assert self.registry is not None
            try:
                found = self.registry.schema(schema_id)
                texts = [found.schema, *(text for _, text in found.references)]
                self._tagged[schema_id] = any(has_tag(text) for text in texts)
            except NotFound:
                self._tagged[schema_id] = False
            except UnstageableSchema:  # unreadable, so its tags are unknown
                self._tagged[schema_id] = True
        return self._tagged[schema_id]
