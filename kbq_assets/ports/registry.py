"""The schema registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RegisteredSchema:
    """A writer schema. Avro's references are resolved: ``schema`` is one self-contained JSON document. Those of other
    types are beside it: ``references`` are names, as the schema uses them, and texts."""

    schema_id: int
    schema: str
    schema_type: str = "AVRO"
    references: tuple[tuple[str, str], ...] = ()


class SchemaRegistry(Protocol):
    """Guarantees: an id never changes its schema; a registry that is down is Unavailable, never NotFound."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises NotFound, Unavailable."""


@dataclass(frozen=True)
class LatestSchema:
    """A subject's latest version, as it was registered: what it refers to is elsewhere."""

    schema_type: str
    schema: str
    has_references: bool = False


class SubjectRegistry(Protocol):
    """Subjects, as the catalogue's commands need them. Guarantees: what is asked changes nothing."""

    def subjects(self) -> Mapping[str, LatestSchema]:
        """Each subject's latest version. Raises Unavailable."""

    def incompatibilities(self, subject: str, schema: str, schema_type: str) -> Sequence[str]:
        """Why a schema cannot become the subject's next version, or is none of its type; () when it can, or when there
        is no subject yet. ``schema_type`` is AVRO, JSON or PROTOBUF. Raises Unavailable."""

    def is_registered(self, subject: str, schema: str, schema_type: str) -> bool:
        """Whether a subject has a schema in one of its versions. Raises Unavailable."""

    def register(self, subject: str, schema: str, schema_type: str) -> int:
        """Register a schema, and return its id; one that is registered keeps its id. Raises Refused when it is not
        compatible, Unavailable."""
