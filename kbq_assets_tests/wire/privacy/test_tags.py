"""Fields that a schema tags as personal data: found wherever they are, unless a decision covers them."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.personal import parse_decisions
from kbq_assets.wire.privacy.tags import check_decided, is_personal, undeclared

TAGGED = {"type": "string", "pii": "HIGH"}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def named(schema: Any, decisions: str = "") -> list[str]:
    """The fields that lack a decision."""
    try:
        check_decided(schema, parse_decisions(decisions))
    except UnstageableSchema as error:
        assert "set a decision for each in the option pii" in error.next_step
        return error.message.partition("personal data: ")[2].split(", ")
    return []


PERSON = record(field("email", "string", pii="HIGH"), field("age", "int"), name="P")


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        (record(), []),
        (record(field("a", "string")), []),
        (record(field("a", "string", pii="HIGH")), ["a"]),
        (record(field("a", "string", pii="high")), ["a"]),
        (record(field("a", "string", pii="LOW"), field("b", "string", pii=None)), []),
        (record(field("a", TAGGED), field("b", "string", pii="HIGH")), ["a", "b"]),
        (record(field("a", ["null", TAGGED])), ["a"]),
        (record(field("a", {"type": "array", "items": TAGGED})), ["a"]),
        (record(field("a", {"type": "map", "values": TAGGED})), ["a"]),
        (record(field("a", {"type": "array", "items": ["null", {"type": "map", "values": TAGGED}]})), ["a"]),
        (record(field("p", PERSON)), ["p.email"]),
        (record(field("p", ["null", {"type": "array", "items": PERSON}])), ["p.email"]),
        (record(field("p", PERSON), field("q", "P")), ["p.email", "q.email"]),
        (record(field("p", PERSON, pii="HIGH")), ["p", "p.email"]),
        (record(field("p", {**PERSON, "pii": "HIGH"})), ["p", "p.email"]),
        (record(field("e", {"type": "enum", "name": "E", "symbols": ["A"], "pii": "HIGH"})), ["e"]),
        (record(field("next", ["null", "R"]), field("a", TAGGED)), ["a"]),
        (record(field("in", record(field("up", ["null", "R"]), field("b", TAGGED), name="I"))), ["in.b"]),
    ],
)
def test_tags_are_found_by_the_paths_of_their_fields(schema: Any, paths: list[str]) -> None:
    assert named(schema) == paths


@pytest.mark.parametrize(
    ("decisions", "left"),
    [
        ("p.email:drop", ["q.email"]),
        ("p.email:keep,q.email:pseudonym", []),
        ("p:null,q:drop", []),
        ("p.age:null", ["p.email", "q.email"]),
        ("email:drop", ["p.email", "q.email"]),
    ],
)
def test_a_decision_covers_its_field_and_those_inside(decisions: str, left: list[str]) -> None:
    assert named(record(field("p", PERSON), field("q", "P")), decisions) == left


def test_a_schema_of_a_hundred_levels_without_tags_is_walked_once() -> None:
    inner: Any = record(field("a", "string"), name="R0")
    for level in range(1, 100):
        inner = record(field("x", inner), field("y", f"R{level - 1}"), name=f"R{level}")
    check_decided(inner, ())


@pytest.mark.parametrize("schema", [{"type": "recrd"}, "nonsense", record(field("a", "Unknown"))], ids=str)
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(UnstageableSchema):
        check_decided(schema, ())
    with pytest.raises(UnstageableSchema):
        undeclared(schema, parse_decisions("a:drop"))


@pytest.mark.parametrize(
    ("decisions", "missing"),
    [
        ("p.email:drop", []),
        ("list.email:drop,maybe.age:null", []),
        ("p.none:drop,none:null", ["p.none", "none"]),
        ("p.email.more:drop", ["p.email.more"]),
        ("map.email:drop", ["map.email"]),
        ("_key:pseudonym,_headers:keep", []),
    ],
)
def test_decisions_about_no_field_are_named(decisions: str, missing: list[str]) -> None:
    schema = record(
        field("p", PERSON),
        field("list", {"type": "array", "items": "P"}),
        field("maybe", ["null", "P"]),
        field("map", {"type": "map", "values": "P"}),
    )
    assert undeclared(schema, parse_decisions(decisions)) == missing


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("string", False),
        (TAGGED, True),
        (["null", "int"], False),
        (["null", TAGGED], True),
        ({"type": "array", "items": {"type": "array", "items": TAGGED}}, True),
        ({"type": "map", "values": "int", "pii": "HIGH"}, True),
        (record(field("a", TAGGED)), False),
        (record(field("a", "string", pii="HIGH")), False),
        ({**record(field("a", "string")), "pii": "HIGH"}, True),
    ],
)
def test_a_type_is_personal_by_itself_and_its_items_not_by_its_fields(schema: Any, expected: bool) -> None:
    assert is_personal(avro.parse(schema)) is expected
