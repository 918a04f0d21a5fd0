"""The schema registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Protocol


@dataclass(frozen=True)
class RegisteredSchema:
    """A writer schema. For Avro, references are resolved: ``schema`` is one self-contained JSON document. For other
    types, ``references`` are pairs of the name that the schema uses and the referenced schema's text. If the id is
    KBQ's own, ``label`` is the schema's name for people."""

    schema_id: int
    schema: str
    schema_type: str = "AVRO"
    references: tuple[tuple[str, str], ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """The name to display."""
        return self.label or str(self.schema_id)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for equal schemas. It ignores the layout of JSON, which differs between registries."""
        parts = (self.schema_type, _canonical(self.schema), self.references)
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


class SchemaRegistry(Protocol):
    """Guarantees: if the registry is down, calls raise Unavailable, never NotFound. An id should keep its schema
    forever. A registry that was emptied and refilled breaks that rule, so KBQ stores fingerprints (PROTOCOL E12)."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises NotFound, Unavailable."""


class WriterSchemas(SchemaRegistry, Protocol):
    """A registry that also finds schemas by GUID and subject. Guarantees: as above; a GUID never changes its schema."""

    def by_guid(self, guid: str) -> RegisteredSchema:
        """The schema with a GUID. Its id is -1, its label the GUID. Raises NotFound, Unavailable."""

    def versions(self, subject: str) -> Mapping[int, int]:
        """Schema ids by version of a subject, including deleted versions. Raises NotFound, Unavailable."""


@dataclass(frozen=True)
class LatestSchema:
    """A subject's latest version as registered, without referenced schemas."""

    schema_type: str
    schema: str
    has_references: bool = False


class SubjectRegistry(Protocol):
    """Subjects, for the catalog's commands. Guarantees: queries change nothing."""

    def names(self) -> frozenset[str]:
        """All subjects. Raises Unavailable."""

    def latest(self, subject: str) -> LatestSchema:
        """A subject's latest version. Raises Unavailable, including if the answer about this subject is unusable."""

    def incompatibilities(self, subject: str, schema: str, schema_type: str) -> Sequence[str]:
        """Reasons that a schema cannot become the subject's next version, or is invalid for its type. Empty if it can,
        or if the subject does not exist yet. ``schema_type`` is AVRO, JSON or PROTOBUF. Raises Unavailable."""

    def is_registered(self, subject: str, schema: str, schema_type: str) -> bool:
        """Whether one of the subject's versions is this schema. Spaces are ignored in the comparison with the latest
        version. Raises Unavailable."""

    def register(self, subject: str, schema: str, schema_type: str) -> int:
        """Register a schema and return its id. If it is registered already, returns the existing id. Raises Refused if
        it is not compatible, Unavailable."""
