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
    """A writer schema. Avro's references are resolved: ``schema`` is one self-contained JSON document. For other
    types, ``references`` are pairs of a name, as the schema uses it, and its text. A schema with an id of KBQ's own
    has a ``label``: what people know it by."""

    schema_id: int
    schema: str
    schema_type: str = "AVRO"
    references: tuple[tuple[str, str], ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.label or str(self.schema_id)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal schemas. The layout of JSON does not matter: registries format it differently."""
        parts = (self.schema_type, _canonical(self.schema), self.references)
        return blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def _canonical(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


class SchemaRegistry(Protocol):
    """Guarantees: a registry that is down is Unavailable, never NotFound. An id should keep its schema for good; a
    registry that was emptied and filled anew breaks that, so KBQ remembers fingerprints (PROTOCOL E12)."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises NotFound, Unavailable."""


class WriterSchemas(SchemaRegistry, Protocol):
    """A registry that knows schemas by more than their ids. Guarantees: as above; a GUID never changes its schema."""

    def by_guid(self, guid: str) -> RegisteredSchema:
        """The schema of a GUID, with the id -1 and the GUID as its label. Raises NotFound, Unavailable."""

    def versions(self, subject: str) -> Mapping[int, int]:
        """The ids of a subject's versions, deleted ones included. Raises NotFound, Unavailable."""


@dataclass(frozen=True)
class LatestSchema:
    """A subject's latest version as registered, without the schemas that it refers to."""

    schema_type: str
    schema: str
    has_references: bool = False


class SubjectRegistry(Protocol):
    """Subjects, for the catalog's commands. Guarantees: queries change nothing."""

    def names(self) -> frozenset[str]:
        """All subjects. Raises Unavailable."""

    def latest(self, subject: str) -> LatestSchema:
        """A subject's latest version. Raises Unavailable, for an answer about this subject that cannot be used too."""

    def incompatibilities(self, subject: str, schema: str, schema_type: str) -> Sequence[str]:
        """Why a schema cannot become the subject's next version, or is invalid for its type; () if it can, or if there
        is no subject yet. ``schema_type`` is AVRO, JSON or PROTOBUF. Raises Unavailable."""

    def is_registered(self, subject: str, schema: str, schema_type: str) -> bool:
        """Whether one of the subject's versions is this schema; of the latest, spaces do not count. Raises
        Unavailable."""

    def register(self, subject: str, schema: str, schema_type: str) -> int:
        """Register a schema and return its id; a registered schema keeps its id. Raises Refused if it is not
        compatible, Unavailable."""
