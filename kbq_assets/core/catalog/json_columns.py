"""The columns that a JSON Schema of the catalogue declares, as the Avro schema of the rows that are made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kbq_assets.core.json_declared import declared
from kbq_assets.core.json_shape import TopicShape, avro_schema


def rows_of_json(text: str) -> str:
    """The Avro schema, with each property's ``description`` and ``pii``; "" for a text that declares no column."""
    try:
        schema = json.loads(text)
    except ValueError:
        return ""  # `kbq catalog validate` says why
    made = avro_schema(TopicShape().grown_by(declared(schema)), event_time=False)
    _tell(made, schema)
    return json.dumps(made)


def _tell(made: Any, schema: Any) -> None:
    """Write what properties say of themselves into the fields of the same names."""
    if isinstance(made, list):
        for branch in made:
            _tell(branch, schema)
    elif isinstance(made, Mapping) and isinstance(schema, Mapping):
        _tell(made.get("items"), schema.get("items"))
        properties = schema.get("properties")
        for field in made.get("fields", ()):
            said = properties.get(field["name"]) if isinstance(properties, Mapping) else None
            if isinstance(said, Mapping):
                field.update({"doc": str(said["description"])} if said.get("description") else {})
                field.update({"pii": str(said["pii"])} if said.get("pii") else {})
                _tell(field["type"], said)
