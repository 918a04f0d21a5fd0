"""Types of rewritten records: each use is written out under a name of its own, and keeps what protects it."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import visit
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.privacy.forms import Forms


def rewritten(schema: Any) -> Any:
    found = visit(avro.parse(schema), Forms())
    fastavro.parse_schema(json.loads(json.dumps(found)))
    return found


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        {"type": "int", "logicalType": "date"},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "fixed", "name": "F", "size": 16},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "array", "items": "long"},
        {"type": "map", "values": ["null", "string"]},
        ["null", "int", "string"],
        record({"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}),
        record(),
    ],
    ids=str,
)
def test_a_type_that_is_used_once_is_written_as_it_is(schema: Any) -> None:
    assert rewritten(schema) == schema


def test_each_use_of_a_named_type_has_a_name_of_its_own() -> None:
    inner = record({"name": "n", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}, name="I")
    found = rewritten(
        record(
            {"name": "a", "type": inner},
            {"name": "b", "type": "I"},
            {"name": "c", "type": {"type": "array", "items": "I"}},
        )
    )
    types = [found["fields"][0]["type"], found["fields"][1]["type"], found["fields"][2]["type"]["items"]]
    assert [each["name"] for each in types] == ["I", "I_2", "I_3"]
    assert [each["fields"][0]["type"]["name"] for each in types] == ["E", "E_2", "E_3"]


def test_a_free_name_is_not_the_one_of_another_type() -> None:
    forms = Forms()
    names = [forms.free_name(name) for name in ("A", "A_2", "A", "A", "A_2", "A_2_2")]
    assert names == ["A", "A_2", "A_3", "A_4", "A_2_2", "A_2_2_2"]
    assert len(set(names)) == len(names)


def test_names_are_counted_and_many_uses_are_refused() -> None:
    forms = Forms()
    for _ in range(10_001):
        forms.free_name("A")
    with pytest.raises(UnstageableSchema, match="uses its types more than 10000 times") as raised:
        forms.free_name("A")
    assert raised.value.next_step == "change the schema"


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        ({"doc": "what it is"}, {"doc": "what it is"}),
        (
            {"doc": "d", "pii": "LOW", "default": 1, "aliases": ["b"], "order": "ignore"},
            {"doc": "d", "pii": "LOW"},
        ),
        ({"pii": "HIGH"}, {"pii": "HIGH"}),
        ({"type": {"type": "int", "pii": "high"}}, {"pii": "HIGH"}),
        ({"type": ["null", {"type": "int", "pii": "HIGH"}], "pii": "LOW"}, {"pii": "HIGH"}),
    ],
    ids=str,
)
def test_a_field_keeps_its_description_and_the_tag_of_its_column(
    field: dict[str, Any], kept: dict[str, Any]
) -> None:
    [found] = rewritten(record({"name": "a", "type": "int", **field}))["fields"]
    assert {key: found[key] for key in found if key not in ("name", "type")} == kept
