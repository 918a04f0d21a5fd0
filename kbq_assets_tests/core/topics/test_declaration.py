"""Options are declared once, with their names, places, help texts, and values as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.declaration import NO_PLACE, declared_in, option, text_of
from kbq_assets.core.topics.option_types import FLAG, TEXT, whole
from kbq_assets.core.topics.topic_settings import OPTIONS


@dataclass(frozen=True)
class Options:
    """Options for these tests."""

    plain: str = option("a", TEXT, "help with a [link](docs.md#a) and [another](b.md)")
    renamed: int = option("5", whole(), "help", name="other")
    placed: bool = option("true", FLAG, "help", place="elsewhere.key", shown_default="yes")
    derived: str = option("", TEXT, "help", place=NO_PLACE)


DECLARED = dict(declared_in(Options, "section"))


def test_fields_have_the_values_of_their_defaults() -> None:
    assert Options() == Options("a", 5, True, "")


@pytest.mark.parametrize(
    ("field", "name", "place"),
    [
        ("plain", "plain", "section.plain"),
        ("renamed", "other", "section.other"),
        ("placed", "placed", "elsewhere.key"),
        ("derived", "derived", ""),
    ],
)
def test_an_option_has_a_name_and_a_place_in_a_catalog(field: str, name: str, place: str) -> None:
    assert (DECLARED[field].name, DECLARED[field].place) == (name, place)


def test_help_for_a_terminal_has_no_links() -> None:
    assert DECLARED["plain"].plain_help == "help with a link and another"


def test_a_default_that_is_none_of_its_type_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(ConfigurationError, match="number=x"):
        option("x", whole(), "help", name="number")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        ("a b", "a b"),
        (5, "5"),
        (0.5, "0.5"),
        ([], ""),
        (["a", "b"], "a,b"),
        (("a",), "a"),
        ({"email": "drop", "name": "truncate:3"}, "email:drop,name:truncate:3"),
        ({}, ""),
    ],
)
def test_a_value_of_a_catalog_is_written_as_in_a_source_list(value: object, text: str) -> None:
    assert text_of(value) == text


def test_no_two_options_share_a_place_in_a_catalog() -> None:
    places = Counter(each.place for each in OPTIONS.values() if each.place)
    assert [place for place, count in places.items() if count > 1] == []


def test_every_option_explains_itself() -> None:
    assert [
        name for name, each in OPTIONS.items() if len(each.plain_help) < 10 or "](" in each.plain_help
    ] == []
