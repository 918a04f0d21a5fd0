"""Headers of files: all readers accept them, whatever else a producer's schema contains."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any, Final

import fastavro
import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import canonical
from kbq_assets.core.avro.header import header_schema
from kbq_assets.core.avro.references import inline_references
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.loading.tables import columns_of
from kbq_assets_tests.wire import generate

ENUM: Final = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED: Final = {"type": "fixed", "name": "F", "size": 4}
DECIMAL: Final = {"logicalType": "decimal", "precision": 29, "scale": 14}
WIDE: Final = {"type": "fixed", "name": "W", "size": 16}


def with_field(type_: Any, /, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_, **more}]}


def within(type_: Any, *more: Any) -> dict[str, Any]:
    """A record in a namespace, with a field of each type."""
    fields = [{"name": f"f{n}", "type": each} for n, each in enumerate((type_, *more))]
    return {"type": "record", "name": "R", "namespace": "n", "fields": fields}


#: Each was in a header that Avro for Java, fastavro or Avro C++ refused.
REFUSED_AS_THEY_ARE: Final[list[dict[str, Any]]] = [
    with_field({**ENUM, "default": "C"}),
    with_field({**ENUM, "default": 5}),
    with_field("int", order="upward"),
    with_field("int", order=5),
    with_field("int", aliases="b"),
    with_field("int", aliases=[5]),
    with_field("int", aliases=["a-b"]),
    with_field("double", default=None),
    with_field(["null", "string"], default="x"),
    with_field("int", default="five"),
    with_field({"type": "array", "items": "int"}, default={}),
    with_field("bytes", default="\u1234"),
    with_field({**ENUM, "aliases": "X"}),
    {**with_field("int"), "aliases": {"a": 1}},
    {**with_field("int"), "doc": 5},
    with_field("int", doc={"en": "x"}),
    with_field({"type": {"type": "int"}}),
    with_field({"type": {"type": {"type": "string"}}, "pii": "LOW"}),
    with_field({"type": ["null", "int"]}),
    with_field({"type": WIDE, **DECIMAL}),
    with_field({"type": "record", "name": "int", "fields": [{"name": "x", "type": "int"}]}),
    with_field(["null", "int", {"type": "fixed", "name": "string", "size": 2}]),
    with_field({**FIXED, "size": True}),
    with_field("int", x=float("nan")),
    with_field({"type": "int", "x": [float("inf"), float("-inf")]}),
    with_field({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}),
    with_field({"type": "bytes", "logicalType": "decimal", "precision": 0}),
    with_field({"type": "bytes", "logicalType": "decimal", "precision": -3, "scale": -5}),
    with_field({"type": "bytes", "logicalType": "decimal", "precision": "4", "scale": 2}),
    with_field({"type": "bytes", "logicalType": "decimal"}),
    with_field({"type": "bytes", "logicalType": "decimal", "precision": 10**30}),
    with_field({**FIXED, "logicalType": "decimal", "precision": 40, "scale": 2}),
    with_field({**FIXED, "size": 1, "logicalType": "decimal", "precision": 10, "scale": 5}),
    with_field({"type": "string", **DECIMAL}),
    with_field({"type": "string", "logicalType": "date"}),
    with_field({"type": "long", "logicalType": "uuid"}),
    with_field({**FIXED, "logicalType": "duration"}),
    with_field({**WIDE, "logicalType": "uuid"}),
    with_field({"type": "int", "logicalType": 5}),
    with_field({"type": "int", "logicalType": ["date"]}),
    with_field({"type": "array", "items": "int", "logicalType": "date"}),
    with_field({**ENUM, "logicalType": "decimal", "precision": 3}),
    {"type": "error", "name": "R", "fields": [{"name": "a", "type": "int"}]},
    within({**FIXED, "namespace": ""}, "F"),
    within({**ENUM, "namespace": ""}, {"type": "array", "items": "E"}),
    within({**ENUM, "name": "Größe"}, "Größe"),
]  # fmt: skip


JUNK: Final[dict[str, list[Any]]] = {
    "aliases": ["b", [5], ["x y"], {}],
    "order": ["upward", None, 3],
    "default": [None, "C", -1, {}, [], "x", 1e400],
    "doc": [5, {"en": "x"}, "text", None],
    "logicalType": ["decimal", "uuid", "date", "duration", "no-such", 5, None],
    "precision": [0, -1, 2**40, "3", 2.5, 40],
    "scale": [50, -1, "x"],
    "namespace_": ["x"],
    "java-class": ["java.util.List"],
    "name_": [float("nan")],
}


def decorated(schema: Any, rng: random.Random) -> Any:
    """A schema with properties that producers write, and that readers dislike."""
    if isinstance(schema, list):
        return [decorated(each, rng) for each in schema]
    if not isinstance(schema, dict):
        return {"type": schema} if isinstance(schema, str) and rng.random() < 0.2 else schema
    made = {
        key: decorated(each, rng) if key != "symbols" and key not in ("name", "namespace") else each
        for key, each in schema.items()
    }
    if isinstance(schema.get("type"), str) and schema["type"] in avro.PRIMITIVES | {
        "record",
        "array",
        "map",
        "fixed",
        "enum",
    }:
        made["type"] = schema["type"]
    for key, values in JUNK.items():
        if rng.random() < 0.2:
            made[key] = rng.choice(values)
    return made


def random_schemas(count: int) -> list[Any]:
    made = []
    for seed in range(count):
        rng = random.Random(seed)
        made.append(decorated(generate.make_schema(rng), rng))
    return made


def test_random_schemas_with_disliked_properties_have_headers_that_are_read() -> None:
    for schema in random_schemas(200):
        fastavro.parse_schema(written(schema))


def written(schema: Any) -> Any:
    return json.loads(header_schema(json.dumps(schema)))


@pytest.mark.parametrize("schema", REFUSED_AS_THEY_ARE, ids=range(len(REFUSED_AS_THEY_ARE)))
def test_a_header_has_what_readers_need_and_loads_alike(schema: Any) -> None:
    made = written(schema)
    fastavro.parse_schema(made)
    assert columns_of(json.dumps(made)) == tuple(plain(columns_of(json.dumps(schema))))
    assert written(made) == made
    before, after = canonical(avro.parse(schema)), canonical(avro.parse(made))
    # Types that no reader would find, or take, get this namespace.
    assert json.loads(json.dumps(without_logical(after)).replace('"kbq.', '"')) == without_logical(before)


def plain(columns: Any) -> Any:
    """Columns without what stays in the stored schema: descriptions and levels of personal data."""
    for each in columns:
        yield dataclasses.replace(each, description="", pii="", fields=tuple(plain(each.fields)))


def without_logical(form: Any) -> Any:
    if isinstance(form, list):
        return [without_logical(each) for each in form]
    if not isinstance(form, dict):
        return form
    kept = {k: without_logical(v) for k, v in form.items() if k not in ("logicalType", "precision", "scale")}
    return kept["type"] if kept.keys() == {"type"} else kept


def test_valid_logical_types_stay() -> None:
    types = [
        {"type": "bytes", **DECIMAL},
        {**WIDE, **DECIMAL},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "string", "sqlType": "JSON"},
        {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
    ]
    made = written(within(*types))
    assert [
        {key: value for key, value in field["type"].items() if key != "namespace"} for field in made["fields"]
    ] == types


def test_uses_of_one_type_may_differ_in_their_logical_type() -> None:
    """As Avro for C# writes them: around the type, and around its name."""
    schema = within(
        {"type": WIDE, **DECIMAL}, "W", {"type": "n.W", **DECIMAL}, {"type": "W", **DECIMAL, "scale": 2}
    )
    types = ["BIGNUMERIC", "BYTES", "BIGNUMERIC", "NUMERIC"]
    assert [column.type for column in columns_of(json.dumps(schema))] == types
    made = written(schema)
    assert [column.type for column in columns_of(json.dumps(made))] == types
    assert made["fields"][2]["type"] == "n.W"
    fastavro.parse_schema(made)
    assert canonical(avro.parse(made)) != canonical(avro.parse(within(WIDE, "W", "W", "W")))


def test_a_definition_s_own_logical_type_is_stronger_than_one_around_it() -> None:
    inner = {"type": "long", "logicalType": "timestamp-micros"}
    [column] = columns_of(json.dumps(with_field({"type": inner, "logicalType": "timestamp-millis"})))
    assert column.type == "TIMESTAMP"
    assert written(with_field({"type": inner, "logicalType": "x"}))["fields"][0]["type"] == inner


def test_names_beyond_ascii_become_names_of_columns() -> None:
    inner = {"type": "record", "name": "Maße", "fields": [{"name": "höhe", "type": "int", "doc": "In cm."}]}
    fields = [
        {"name": "größe", "type": inner},
        {"name": "名前", "type": ["null", "int", "läden.Maße"]},
        {"name": "gro_e", "type": "läden.Maße"},
    ]
    schema = {"type": "record", "name": "Läden", "namespace": "läden", "fields": fields}
    first, second, third = columns_of(json.dumps(schema))
    assert [each.name for each in (first, second, third)] == ["gr_u00f6_u00dfe", "_u540d_u524d", "gro_e"]
    assert [each.description for each in (first, second)] == [
        "(In the schema: größe.)",
        "(In the schema: 名前.)",
    ]
    assert first.fields[0].description == "In cm. (In the schema: höhe.)"
    assert [each.name for each in second.fields] == ["int_value", "Ma_u00dfe_value"]
    made = written(schema)
    fastavro.parse_schema(made)
    assert header_schema(json.dumps(made)).isascii()
    assert [each.name for each in columns_of(json.dumps(made))] == [
        each.name for each in (first, second, third)
    ]
    split = {**schema, "fields": [{"name": "größe", "type": "Maße"}, *fields[1:]]}
    whole = inline_references(split, [{**inner, "namespace": "läden"}])
    assert written(whole) == made


@pytest.mark.parametrize("name", ["1é", "é-b", "é b", "", "\U0001f600"])
def test_names_that_java_refuses_are_refused(name: str) -> None:
    with pytest.raises(UnstageableSchema, match="not a valid Avro name"):
        avro.parse({"type": "record", "name": "R", "fields": [{"name": name, "type": "int"}]})


def test_a_symbol_is_a_value_and_keeps_its_name() -> None:
    with pytest.raises(UnstageableSchema, match="not a valid Avro name"):
        avro.parse(with_field({**ENUM, "symbols": ["grün"]}))
