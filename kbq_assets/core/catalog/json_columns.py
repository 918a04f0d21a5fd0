"""The columns declared by a JSON Schema of the catalog, as the Avro schema of the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kbq_assets.core.catalog.fields import PII_LEVELS
from kbq_assets.core.topics.column_names import AS_WRITTEN
from kbq_assets.core.topics.json.declared import declared, parts, tagged
from kbq_assets.core.topics.json.inference import InferredSchema, InferredType, avro_schema
from kbq_assets.core.topics.json.references import References
from kbq_assets.core.topics.personal import Decision, undecided


def rows_of_json(text: str, decisions: Iterable[Decision] = (), style: str = AS_WRITTEN) -> str:
    """The Avro schema of the rows, with each property's ``description`` and ``pii``; "" if the text is not JSON.
    ``style`` is that of the table's column names."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return ""  # `kbq catalog validate` reports it
    inferred = InferredSchema().grown_by(declared(schema), style)
    made = avro_schema(inferred, event_time=False)
    high = tagged(schema)
    _Notes(schema, high).write(made, inferred.root, [schema], "")
    # Values that do not fit their column go to the last column, the side column.
    if undecided(high, [decision for decision in decisions if decision.action != "keep"]):
        made["fields"][-1]["pii"] = "HIGH"
    return json.dumps(made)


class _Notes:
    """Descriptions and tags of a schema's properties, including those behind references, in alternatives, and with keys
    that are not column names."""

    def __init__(self, root: Any, high: Iterable[str]) -> None:
        self._references = References(root)
        self._high = tuple(high)

    def write(self, made: Any, inferred: InferredType, schemas: Iterable[Any], place: str) -> None:
        """Write descriptions and tags from ``schemas`` into the fields of a type."""
        known = self._parts(schemas)
        if inferred.kind == "LIST" and inferred.item is not None:
            self.write(made["items"], inferred.item, [part.get("items") for part in known], place)
        if inferred.kind != "RECORD":
            return
        for field, column in zip(made["fields"], inferred.fields, strict=False):  # KBQ's own come last
            path = f"{place}.{column.key}".lstrip(".")
            inner = [properties.get(column.key) for properties in map(_properties, known)]
            field.update(self._attributes(column.inferred, self._parts(inner), path))
            type_ = field["type"]
            self.write(type_[1] if isinstance(type_, list) else type_, column.inferred, inner, path)

    def _parts(self, schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
        return [*parts(schemas, self._references)]

    def _attributes(
        self, inferred: InferredType, schemas: Iterable[Mapping[str, Any]], path: str
    ) -> dict[str, str]:
        texts = [str(part["description"]) for part in schemas if part.get("description")]
        levels = [str(part["pii"]).upper() for part in schemas if part.get("pii")]
        levels += ["HIGH"] if self._is_high(inferred, path) else []
        doc = {"doc": texts[0]} if texts else {}
        return doc | ({"pii": max(levels, key=_rank)} if levels else {})

    def _is_high(self, inferred: InferredType, path: str) -> bool:
        """Whether a field is tagged. If a field has no columns inside, tags inside it count for the field."""
        is_record = "RECORD" in (inferred.kind, inferred.item.kind if inferred.item else "")
        inside = () if is_record else (f"{path}.",)
        return any(high == path or high.startswith(inside) for high in self._high)


def _rank(level: str) -> int:
    return PII_LEVELS.index(level) if level in PII_LEVELS else -1


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}
