"""References are followed in every form in which JSON Schema refers to parts of the same document."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.topics.json.declared import declared, tagged, undeclared
from kbq_assets.core.topics.json.references import References, pointed

PERSON = {"type": "object", "properties": {"email": {"type": "string", "pii": "HIGH"}}}
#: The reference, and the rest of the document.
FORMS: list[Any] = [
    pytest.param("#/$defs/person", {"$defs": {"person": PERSON}}, id="pointer"),
    pytest.param("#/$defs/a%20person", {"$defs": {"a person": PERSON}}, id="escaped as a URL"),
    pytest.param("#/$defs/caf%C3%A9", {"$defs": {"café": PERSON}}, id="escaped UTF-8"),
    pytest.param("#/$defs/a~1b~0c", {"$defs": {"a/b~c": PERSON}}, id="escaped as a pointer"),
    pytest.param("#/$defs/~01", {"$defs": {"~1": PERSON}}, id="escaped in order"),
    pytest.param("#/$defs/all/allOf/1", {"$defs": {"all": {"allOf": [{}, PERSON]}}}, id="item of a list"),
    pytest.param("#person", {"$defs": {"p": {**PERSON, "$anchor": "person"}}}, id="anchor"),
    pytest.param("#person", {"$defs": {"p": {**PERSON, "$dynamicAnchor": "person"}}}, id="dynamic anchor"),
    pytest.param("#person", {"definitions": {"p": {**PERSON, "$id": "#person"}}}, id="id of draft 6"),
    pytest.param("#person", {"definitions": {"p": {**PERSON, "id": "#person"}}}, id="id of draft 4"),
    pytest.param(
        "http://a.org/b.json#/$defs/p", {"$id": "http://a.org/b.json", "$defs": {"p": PERSON}}, id="address"
    ),
    pytest.param("b.json#/$defs/p", {"$id": "http://a.org/b.json#", "$defs": {"p": PERSON}}, id="relative"),
    pytest.param("b.json#/$defs/p", {"id": "http://a.org/b.json", "$defs": {"p": PERSON}}, id="old id"),
]


@pytest.mark.parametrize(("reference", "rest"), FORMS)
def test_a_tag_is_found_however_the_field_refers_to_it(reference: str, rest: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"who": {"$ref": reference}}, **rest}
    assert tagged(schema) == ["who.email"]
    assert declared(schema).fields["who"].fields["email"].kinds == {"STRING"}
    assert undeclared(schema, ["who.email", "who.phone"]) == ["who.phone"]


@pytest.mark.parametrize("key", ["$ref", "$dynamicRef", "$recursiveRef"])
def test_each_kind_of_reference_is_followed(key: str) -> None:
    schema = {"properties": {"who": {key: "#/$defs/person"}}, "$defs": {"person": PERSON}}
    assert tagged(schema) == ["who.email"]
    tree = {"properties": {"email": {"type": "string", "pii": "HIGH"}, "child": {key: "#"}}}
    assert tagged(tree) == ["email", "child"]


@pytest.mark.parametrize(
    "reference",
    [
        "other.json",
        "other.json#/$defs/p",
        "http://[",
        "#nobody",
        "#/$defs/nobody",
        "#/$defs/p/properties/email/type/x",
        "#/list/2",
        "#/list/-1",
        "#/list/first",
        "#/list/" + "9" * 5000,
    ],
)
def test_a_part_that_is_not_there_is_none(reference: str) -> None:
    assert References({"$defs": {"p": PERSON}, "list": [1, 2]}).target(reference) is None


@pytest.mark.parametrize("reference", ["", "#"])
def test_the_whole_document_is_a_part(reference: str) -> None:
    assert References(PERSON).target(reference) is PERSON


@pytest.mark.parametrize("root", [{"$id": 5, "$defs": {"p": PERSON}}, {"$id": None, "$defs": {"p": PERSON}}])
def test_an_id_that_is_no_text_names_no_document(root: Any) -> None:
    assert References(root).target("#/$defs/p") is PERSON
    assert References(root).target("a.json#/$defs/p") is None


@pytest.mark.parametrize("root", [True, None, [], "text", 5])
def test_a_document_that_is_no_object_has_no_parts(root: Any) -> None:
    assert References(root).target("#/a") is None
    assert References(root).target("#a") is None
    assert References(root).target("a.json") is None


def test_the_first_of_two_anchors_of_one_name_counts() -> None:
    outer = {"$anchor": "a", "properties": {"x": {"$anchor": "a"}}}
    assert References(outer).target("#a") is outer


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("", {"a": [{"": 1}, 2], "0": "x"}),
        ("/a/1", 2),
        ("/a/0/", 1),
        ("/0", "x"),
        ("/a/2", None),
        ("/a/1/b", None),
        ("/", None),
    ],
)
def test_a_pointer_leads_through_objects_and_lists(pointer: str, found: Any) -> None:
    assert pointed({"a": [{"": 1}, 2], "0": "x"}, pointer) == found
