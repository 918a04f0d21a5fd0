"""Schemas for the unchanged parts of a rewritten record, with a separate name for each use of a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaWriter
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.privacy.tags import is_personal

#: Most named types in a rewritten schema, which has one per use. A table has at most 10,000 columns.
_MOST_TYPES: Final = 10_000


class Forms(SchemaWriter):
    """Schemas of unchanged types. Each use of a type is a separate definition, because there may be a decision about
    only one of them."""

    once = False

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._open: list[str] = []

    def primitive(self, node: avro.Primitive) -> Any:
        """A primitive type as JSON values."""
        return {"type": node.kind, **dict(node.logical)} if node.logical else node.kind

    def fixed(self, node: avro.Fixed) -> Any:
        """A fixed type as JSON values."""
        return {"type": "fixed", "name": self.free_name(node.name), "size": node.size, **dict(node.logical)}

    def enum(self, node: avro.Enum) -> Any:
        """An enum as JSON values."""
        own = {"name": self.free_name(node.name), "symbols": list(node.symbols)}
        return {"type": "enum", **own, **dict(node.logical)}

    def before_record(self, node: avro.RecordType) -> None:
        """Name a record before the types inside it."""
        self._open.append(self.free_name(node.name))

    def record(self, node: avro.RecordType, fields: Sequence[Any]) -> Any:
        """A record as JSON values."""
        return {"type": "record", "name": self._open.pop(), "fields": list(fields)}

    def field(self, field: avro.Field, result: Any) -> Any:
        """A field, with its description and the tag that protects its column."""
        kept = {key: field.attributes[key] for key in ("doc", "pii") if key in field.attributes}
        if is_personal(field.type):
            kept["pii"] = "HIGH"  # from its type, which is written without the tag
        return {"name": field.name, "type": result, **kept}

    def free_name(self, name: str) -> str:
        """An unused name of a type. Raises UnstageableSchema for more types than a table can have columns."""
        if len(self._names) > _MOST_TYPES:
            raise UnstageableSchema(
                f"the schema uses its types more than {_MOST_TYPES} times", next_step="change the schema"
            )
        found, number = name, self._numbers.get(name, 2)
        while found in self._names:
            found, number = f"{name}_{number}", number + 1
        self._names.add(found)
        self._numbers[name] = number
        return found
