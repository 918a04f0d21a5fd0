"""Values of documents record their file and line, even if documents inherit from each other."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode, given, inherit, walk, without
from kbq_assets_tests.core.catalog.documents import documents


def node(text: str, path: str = "own") -> DocumentNode:
    return documents({path: text})[path]


DOCUMENT = node("a: 1\nb:\n  c: [x, y]\n  d: {e: true}\nf:\n")


def test_a_document_is_plain_without_its_places() -> None:
    assert DOCUMENT.plain() == {"a": 1, "b": {"c": ["x", "y"], "d": {"e": True}}, "f": None}


@pytest.mark.parametrize(
    ("dotted", "value", "line"),
    [("a", 1, 1), ("b.c", ["x", "y"], 3), ("b.d.e", True, 4), ("f", None, 5)],
)
def test_a_value_is_found_with_its_line(dotted: str, value: object, line: int) -> None:
    found = DOCUMENT.find(dotted)
    assert found is not None
    assert (found.plain(), found.line, found.path) == (value, line, "own")


@pytest.mark.parametrize("dotted", ["x", "a.b", "b.c.d", "b.x.y", "", "b."])
def test_a_value_that_is_not_there_is_none(dotted: str) -> None:
    assert DOCUMENT.find(dotted) is None
    assert DOCUMENT.fields_at(dotted) == {}


def test_fields_are_those_of_a_map_alone() -> None:
    assert list(DOCUMENT.fields_at("b")) == ["c", "d"]
    assert DOCUMENT.fields_at("a") == DOCUMENT.fields_at("b.c") == {}


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (CatalogProblem("p", 3, "a.b", "is wrong", "write c"), "p:3: a.b: is wrong (write c)"),
        (CatalogProblem("p", 3, "", "is wrong"), "p:3: is wrong"),
    ],
)
def test_a_mistake_has_place_message_and_correction(problem: CatalogProblem, words: str) -> None:
    assert str(problem) == words


@pytest.mark.parametrize(
    ("base", "own", "joined"),
    [
        ("a: 1", "b: 2", {"a": 1, "b": 2}),
        ("a: 1", "a: 2", {"a": 2}),
        ("a: {b: 1, c: 2}", "a: {c: 3}", {"a": {"b": 1, "c": 3}}),
        ("a: {b: 1}", "a: text", {"a": "text"}),
        ("a: text", "a: {b: 1}", {"a": {"b": 1}}),
        ("a: [1, 2]", "a: [3]", {"a": [3]}),
        ("a: 1", "a: null", {}),
        ("a: {b: 1, c: 2}", "a: {b: null}", {"a": {"c": 2}}),
        ("a: {b: 1}", "a: null", {}),
        ("a: null", "b: 1", {"b": 1}),
    ],
    ids=[
        "another key",
        "the same key",
        "maps merge",
        "a text replaces a map",
        "a map replaces a text",
        "lists are replaced whole",
        "null removes",
        "null removes within a map",
        "null removes a map",
        "null of the base",
    ],
)
def test_own_values_win_over_inherited_ones(base: str, own: str, joined: dict[str, object]) -> None:
    assert inherit(node(base, "base"), node(own)).plain() == joined


def test_what_is_inherited_keeps_its_file_and_line() -> None:
    found = inherit(node("x: 0\na: {b: 1}", "base"), node("a:\n  c: 2"))
    places = {where: (each.path, each.line) for where, each in walk(found)}
    assert places == {
        "": ("own", 1),
        "x": ("base", 1),
        "a": ("own", 1),
        "a.b": ("base", 2),
        "a.c": ("own", 2),
    }


def test_without_anything_to_inherit_a_document_is_its_own() -> None:
    assert inherit(None, DOCUMENT) is DOCUMENT


def test_keys_without_a_value_change_nothing_where_nothing_is_inherited() -> None:
    assert given(node("a: 1\nb:\nc: {d: null, e: [null]}")).plain() == {"a": 1, "c": {"e": [None]}}
    assert given(node("a: 1").fields["a"]).plain() == 1


@pytest.mark.parametrize(
    ("dotted", "left"),
    [
        ("a", {"b": {"c": 2, "d": {"e": 3}}}),
        ("b.c", {"a": 1, "b": {"d": {"e": 3}}}),
        ("b.d.e", {"a": 1, "b": {"c": 2, "d": {}}}),
        ("x", {"a": 1, "b": {"c": 2, "d": {"e": 3}}}),
        ("b.x", {"a": 1, "b": {"c": 2, "d": {"e": 3}}}),
        ("x.y", {"a": 1, "b": {"c": 2, "d": {"e": 3}}}),
        ("", None),
    ],
)
def test_a_value_can_be_taken_out(dotted: str, left: object) -> None:
    assert without(node("a: 1\nb: {c: 2, d: {e: 3}}"), dotted).plain() == left


def test_every_value_is_walked_with_its_path() -> None:
    assert [where for where, _ in walk(DOCUMENT)] == ["", "a", "b", "b.c", "b.d", "b.d.e", "f"]
