"""The schema for a file's header. It has what readers need, and nothing that some reader may refuse.

It leaves out producers' docs, defaults, aliases, orders and other properties, because Avro for Java, fastavro and Avro
C++ (BigQuery) refuse a file if a default or an alias is invalid for them. Columns get their descriptions from the
stored schema.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import named_types, shared_records
from kbq_assets.core.avro.visitor import SchemaWriter, visit

#: The valid primitive type of each logical type; readers refuse others. ``uuid`` is left out, because its columns are
#: strings and fastavro refuses text that is not a UUID.
_KIND: Final[Mapping[str, str]] = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    **{
        f"{local}timestamp-{unit}": "long"
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}
_DURATION: Final = 12
_SQL_TYPES: Final = frozenset({"JSON", "GEOGRAPHY"})
#: The namespace for types that need one but have none.
_SPACE: Final = "kbq"


@lru_cache(maxsize=1024)
def header_schema(schema: str) -> str:
    """The text of the schema for a file's header, with names, types, symbols, sizes and valid logical types."""
    root = avro.parse(avro.load_schema(schema))
    return json.dumps(visit(root, _HeaderWriter(root)), separators=(",", ":"))


class _HeaderWriter(SchemaWriter):
    def __init__(self, root: avro.AvroType) -> None:
        self._names = named_types(root)
        self._shared = shared_records(root)
        self._has_spaces = any("." in name or name in avro.PRIMITIVES for name in self._names)
        self._written: dict[tuple[str, avro.Logical], str] = {}

    def primitive(self, node: avro.Primitive) -> Any:
        kept = _kept(node, node.kind)
        return {"type": node.kind, **kept} if kept else node.kind

    def fixed(self, node: avro.Fixed) -> Any:
        return {"type": "fixed", **self._named(node), "size": int(node.size), **_kept(node, "fixed")}

    def enum(self, node: avro.Enum) -> Any:
        return {"type": "enum", **self._named(node), "symbols": list(node.symbols)}

    def before_record(self, node: avro.RecordType) -> None:
        self._named(node)

    def record(self, node: avro.RecordType, fields: Sequence[Any]) -> Any:
        return {"type": "record", **self._named(node), "fields": list(fields)}

    def field(self, field: avro.Field, result: Any) -> Any:
        return {"name": field.name, "type": result}

    def again(self, node: avro.NamedType, result: Any) -> Any:
        return self._written[node.name, node.logical]

    def inside_itself(self, node: avro.RecordType) -> Any:
        return self._written[node.name, node.logical]

    def _named(self, node: avro.NamedType) -> dict[str, str]:
        key = node.name, node.logical
        if key not in self._written:
            self._written[key] = self._full_name(node.name)
        space, _, name = self._written[key].rpartition(".")
        return {"name": name, "namespace": space} if space or self._has_spaces else {"name": name}

    def _full_name(self, known: str) -> str:
        """The name for a definition. Keeps the last part, because columns may be named after it. Adds a namespace where
        readers need one: inside a namespace, only Java finds a name without one, and no reader accepts a type with the
        name of a primitive."""
        wanted, _, name = known.rpartition(".")
        is_lost = name in avro.PRIMITIVES or (self._has_spaces and known in self._shared)
        wanted = wanted or (_SPACE if is_lost else "")
        for number in itertools.count(1):
            space = wanted if number == 1 else f"{wanted}.use{number}".lstrip(".")
            full = avro.full_name(name, space)
            if full not in self._written.values() and (full == known or full not in self._names):
                return full
        raise AssertionError(known)


def _kept(node: avro.Primitive | avro.Fixed, kind: str) -> dict[str, str | int]:
    """The logical attributes of this type that all readers accept."""
    logical, sql_type = node.attribute("logicalType"), node.attribute("sqlType")
    if (digits := avro.decimal_of(node)) is not None:
        return {"logicalType": "decimal", "precision": digits[0], "scale": digits[1]}
    if kind == "string" and sql_type in _SQL_TYPES:
        return {"sqlType": str(sql_type)}
    is_valid = _KIND.get(str(logical)) == kind or (
        logical == "duration" and isinstance(node, avro.Fixed) and node.size == _DURATION
    )
    return {"logicalType": str(logical)} if is_valid else {}
