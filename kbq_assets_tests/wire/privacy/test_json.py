"""Documents without their personal data: whatever a producer sends, what is decided about does not stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.topics.json.declared import declared, tagged, undeclared
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions
from kbq_assets.wire.json.rows import RepeatedKey
from kbq_assets.wire.privacy.json import JsonRedactor, UndecidedField, exact_text, parse_exact

KEYS = Pseudonyms("k", {"k": b"k" * 32})


def redactor(pii: str, others: str = "keep") -> JsonRedactor:
    return JsonRedactor(parse_decisions(pii), KEYS, others)


@pytest.mark.parametrize(
    ("pii", "before", "after"),
    [
        ("a:drop", {"a": 1, "b": 2}, {"b": 2}),
        ("a:null", {"a": [1]}, {"a": None}),
        ("a.b:drop", {"a": [{"b": 1, "c": 2}, {"b": 3}]}, {"a": [{"c": 2}, {}]}),
        ("a.b:drop", {"a.b": 1, "a": {"c": 2}}, {"a": {"c": 2}}),
        ("a:truncate:2", {"a": ["xyz", None]}, {"a": ["xy", None]}),
        ("a:generalise:10", {"a": [57, -1, 12.5]}, {"a": [50, -10, 10.0]}),
        ("a:generalise:ip", {"a": "192.0.2.77"}, {"a": "192.0.2.0/24"}),
        ("a:generalise:year", {"a": "1990-05-17"}, {"a": "1990-01-01"}),
        ("a:generalise:month", {"a": "2024-01-01T00:30:00+01:00"}, {"a": "2023-12-01T00:00:00Z"}),
        ("a:generalise:hour", {"a": "2024-01-01T10:30:00"}, {"a": "2024-01-01T10:00:00"}),
        ("a:pseudonym", {"a": "x"}, {"a": KEYS.of("a", b"x")}),
        ("a:pseudonym:c", {"a": [True, 7, 0.5]}, {"a": [KEYS.of("c", v) for v in (b"true", b"7", b"0.5")]}),
        ("a:pseudonym", [{"a": "x"}, 5], [{"a": KEYS.of("a", b"x")}, None]),
        ("a:keep", {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_each_action_does_what_it_says(pii: str, before: Any, after: Any) -> None:
    assert redactor(pii)(before) == after


@pytest.mark.parametrize(
    "pii", ["a:pseudonym", "a:truncate:2", "a:generalise:10", "a:generalise:year", "a.b:drop"]
)
@pytest.mark.parametrize("value", [{"x": "canary"}, [{"x": "canary"}], {"y": {"b": "canary"}}])
def test_a_value_of_another_type_does_not_stay(pii: str, value: Any) -> None:
    if pii == "a.b:drop":
        value = "canary"
    assert "canary" not in json.dumps(redactor(pii)({"a": value}))


@pytest.mark.parametrize(
    ("pii", "value"),
    [
        ("a:truncate:9", 123456), ("a:truncate:9", True), ("a:generalise:10", "canary"), ("a:generalise:10", True),
        ("a:generalise:year", 1_700_000_000), ("a:generalise:year", "canary"), ("a:generalise:ip", 5),
        ("a:generalise:10", float("inf")), ("a.b:keep", "canary"),
    ],
)  # fmt: skip
def test_a_scalar_of_another_type_is_null_or_nothing(pii: str, value: Any) -> None:
    assert redactor(pii)({"a": value})["a"] in (None, "")


@pytest.mark.parametrize("document", [{"a": 1, "new": 2}, {"a": {}, "o": {"new": 2}}, 5])
def test_what_nobody_knows_stops_goes_or_stays(document: Any) -> None:
    with pytest.raises(UndecidedField):
        redactor("a:keep", "stop")(document)
    assert "2" not in json.dumps(redactor("a:keep", "drop")(document))


def test_a_message_shows_no_key_that_may_be_a_value() -> None:
    with pytest.raises(UndecidedField, match=r"^the field 'phone' in customer$"):
        redactor("customer.email:drop", "stop")({"customer": {"phone": 1}})
    with pytest.raises(UndecidedField, match=r"^a field in customer whose name is not a word$"):
        redactor("customer.email:drop", "stop")({"customer": {"me@example.com": 1}})


SCHEMA = {
    "$defs": {
        "home": {"properties": {"street": {"type": "string", "pii": "high"}, "city": {"type": "string"}}}
    },
    "properties": {
        "id": {"type": "integer"},
        "homes": {"type": "array", "items": {"$ref": "#/$defs/home"}},
        "any": {},
    },
}


def test_declared_fields_are_known() -> None:
    made = redactor("homes.street:drop", "stop")
    made.declare(declared(SCHEMA))
    document = {"id": 5, "homes": [{"street": "x", "city": "y"}], "any": "z"}
    assert made(document) == {"id": 5, "homes": [{"city": "y"}], "any": "z"}
    with pytest.raises(UndecidedField, match="'zip' in homes"):
        made({"homes": [{"zip": 1}]})
    with pytest.raises(UndecidedField, match="'more' in any"):
        made({"any": {"more": 1}})


@pytest.mark.parametrize("document", [{"home.street": "canary"}, {"home": {"street": "canary"}}])
def test_a_declared_key_with_dots_is_the_path_of_its_decision(document: dict[str, Any]) -> None:
    street = {"type": "string", "pii": "HIGH"}
    made = redactor("home.street:drop", "stop")
    made.declare(
        declared({"properties": {"home.street": street, "home": {"properties": {"street": street}}}})
    )
    assert "canary" not in json.dumps(made(document))


def test_a_declared_object_with_dots_in_its_key_has_its_other_fields() -> None:
    made = redactor("user.home.street:drop", "stop")
    made.declare(declared({"properties": {"user.home": {"properties": {"street": {}, "city": {}}}}}))
    assert made({"user.home": {"street": "canary", "city": "x"}}) == {"user.home": {"city": "x"}}


def test_a_decision_applies_to_a_key_with_dots_inside_a_field_that_contains_itself() -> None:
    made = redactor("next.home.street:drop", "stop")
    made.declare(declared({"properties": {"home.street": {}, "next": {"$ref": "#"}}}))
    assert made({"home.street": "x", "next": {"home.street": "canary"}}) == {"home.street": "x", "next": {}}


def test_a_field_that_contains_itself_is_known_at_any_depth() -> None:
    node = {"properties": {"v": {}, "inner": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    made = redactor("root.v:drop", "stop")
    made.declare(declared({"$defs": {"node": node}, "properties": {"root": {"$ref": "#/$defs/node"}}}))
    document: Any = {"v": 5}
    for _ in range(20):
        document = {"v": 5, "inner": [document]}
    assert json.dumps(made({"root": document})).count("5") == 20
    for unknown in ({"x": 1}, {"inner": [{"inner": [{"x": 1}]}]}):
        with pytest.raises(UndecidedField, match="'x' in root"):
            made({"root": unknown})


def test_a_tag_in_a_field_that_contains_itself_is_that_field_s() -> None:
    node = {"properties": {"v": {"pii": "HIGH"}, "next": {"$ref": "#"}}}
    assert tagged(node) == ["v", "next"]


def test_tags_of_a_schema_are_found_through_lists_and_references() -> None:
    assert tagged(SCHEMA) == ["homes.street"]


@pytest.mark.parametrize(
    "inner",
    [
        {"additionalProperties": {"pii": "HIGH"}},
        {"patternProperties": {"^x": {"properties": {"y": {"pii": "high"}}}}},
        {"items": [{}, {"pii": "HIGH"}]},
        {"prefixItems": [{"pii": "HIGH"}]},
        {"not": {"properties": {"y": {"pii": "HIGH"}}}},
    ],
)
def test_a_tag_that_no_path_leads_to_is_its_container_s(inner: dict[str, Any]) -> None:
    assert tagged({"properties": {"a": inner, "b": {"default": {"pii": "HIGH"}}}}) == ["a"]


def test_a_path_leads_somewhere_where_an_object_says_what_it_has() -> None:
    assert undeclared(SCHEMA, ["id", "homes.street", "any.deep", "homes.zip", "x"]) == ["homes.zip", "x"]
    assert undeclared({"type": "object"}, ["x.y"]) == []
    dotted: dict[str, Any] = {"properties": {"home.street": {}, "a.b": {"properties": {"c.d": {}}}}}
    assert undeclared(dotted, ["home.street", "a.b.c.d", "home", "a.b.c", "a.bc.d"]) == [
        "home",
        "a.b.c",
        "a.bc.d",
    ]


@pytest.mark.parametrize(
    "text", ['{"a":1.10,"b":[1e400,-0.0],"c":"é\\"\\n","d":null,"e":true}', "[]", '"x"', "1.50"]
)
def test_documents_that_stay_texts_keep_their_numbers(text: str) -> None:
    assert exact_text(parse_exact(text)) == text


def test_a_repeated_key_is_no_object() -> None:
    with pytest.raises(RepeatedKey):
        parse_exact('{"a":1,"a":2}')


VALUES = st.recursive(
    st.sampled_from(["canary", 5, None, True, 1.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(
    VALUES,
    st.sampled_from(["a", "a.b", "a.b.c"]),
    st.sampled_from(["pseudonym", "null", "drop", "generalise:10"]),
)
def test_below_a_decided_path_nothing_stays(value: Any, path: str, action: str) -> None:
    document: Any = value
    for key in reversed(path.split(".")):
        document = {key: document}
    assert "canary" not in json.dumps(redactor(f"{path}:{action}")(document))


@given(
    st.dictionaries(st.sampled_from(["a", "a.b", "b", "b.c", "c"]), st.booleans(), min_size=1),
    st.sampled_from([["a", "b", "c"], ["a.b", "c"], ["a", "b.c"], ["a.b.c"]]),
    st.sampled_from(["a", "a.b", "a.b.c"]),
)
def test_a_decision_applies_however_keys_with_dots_are_nested_and_declared(
    outer: dict[str, bool], keys: list[str], path: str
) -> None:
    inner = {"properties": {key: {"type": "string"} for key in ("a", "b", "c", "b.c", "a.b.c")}}
    made = redactor(f"{path}:null")
    made.declare(declared({"properties": {key: inner if nests else {} for key, nests in outer.items()}}))
    document: Any = "canary"
    for key in reversed(keys):
        document = {key: document}
    assert "canary" not in json.dumps(made(document))
