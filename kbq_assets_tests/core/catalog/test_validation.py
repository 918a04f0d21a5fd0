"""The JSON Schema and the validator agree."""

from __future__ import annotations

import json
from pathlib import Path

from kbq_assets.core.catalog.fields import ENTRY, CatalogField
from kbq_assets.core.catalog.validation import json_schema

PUBLISHED = Path(__file__).parents[3] / "docs" / "catalog.schema.json"


def test_the_published_schema_is_today_s() -> None:
    assert json.loads(PUBLISHED.read_text("utf-8")) == json_schema(), (
        "kbq catalog schema > docs/catalog.schema.json"
    )


def test_sections_and_choices_are_the_validator_s() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(ENTRY)
    assert schema["additionalProperties"] is False
    records = schema["properties"]["records"]
    assert set(records["properties"]) == set(ENTRY["records"].fields)
    assert records["properties"]["tombstones"]["enum"] == ["skip", "error_table", "row", None]
    assert schema["properties"]["extraction"]["properties"]["priority"]["type"] == [
        "string",
        "integer",
        "null",
    ]


def test_every_key_is_explained() -> None:
    def missing(fields: dict[str, CatalogField], where: str = "") -> list[str]:
        found = [f"{where}{key}" for key, each in fields.items() if not each.doc]
        return found + [
            m for key, each in fields.items() for m in missing(dict(each.fields), f"{where}{key}.")
        ]

    assert missing(dict(ENTRY)) == []
