"""The schema registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class RegisteredSchema:
    """A writer schema, references resolved: ``schema`` is one self-contained Avro JSON document."""

    schema_id: int
    schema: str
    schema_type: str = "AVRO"


class SchemaRegistry(Protocol):
    """Guarantees: an id never changes its schema; a registry that is down is Unavailable, never NotFound."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises NotFound, Unavailable."""
