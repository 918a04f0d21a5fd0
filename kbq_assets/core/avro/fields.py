"""Fields of records in a schema, at any depth, by dotted path."""

from __future__ import annotations

from collections.abc import Sequence

from kbq_assets.core.avro.tree import AvroType, Field, RecordType
from kbq_assets.core.avro.visitor import SchemaVisitor, visit


def fields_in(root: AvroType) -> list[tuple[str, AvroType]]:
    """All fields with their dotted paths. Fields of a named type are listed only at its first use."""
    fields = _Fields()
    visit(root, fields)
    return fields.found


def field_paths(root: AvroType) -> list[str]:
    return [path for path, _ in fields_in(root)]


class _Fields(SchemaVisitor[None]):
    """Collects fields of records with their dotted paths, at the first use of each type."""

    def __init__(self) -> None:
        self.found: list[tuple[str, AvroType]] = []
        self._path: list[str] = []

    def other(self, node: AvroType, inside: Sequence[None]) -> None:
        pass

    def inside_itself(self, node: RecordType) -> None:
        pass

    def before_step(self, step: Field | str) -> None:
        if isinstance(step, Field):
            self._path.append(step.name)
            self.found.append((".".join(self._path), step.type))

    def after_step(self, step: Field | str) -> None:
        if isinstance(step, Field):
            self._path.pop()
