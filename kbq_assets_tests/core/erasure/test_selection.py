"""An erasure needs an explicit selection, and no message shows a value."""

from __future__ import annotations

import pytest

from kbq_assets.core.erasure.positions import RecordPosition
from kbq_assets.core.erasure.selection import PersonRecords, common_name, parse_column, pseudonyms_in
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.personal import Pseudonyms, parse_decisions

KEYS = Pseudonyms("b", {"a": b"1" * 32, "b": b"2" * 32})


@pytest.mark.parametrize(
    "chosen",
    [
        PersonRecords(keys=frozenset({b"k"})),
        PersonRecords(columns=(("a", ""),)),
        PersonRecords(tombstones="t"),
        PersonRecords(positions=frozenset({RecordPosition(0, 0)})),
    ],
    ids=["a key", "a column with an empty value", "tombstones", "a position"],
)
def test_one_way_to_choose_is_enough(chosen: PersonRecords) -> None:
    assert chosen


@pytest.mark.parametrize(
    ("keys", "columns", "advice"),
    [
        (frozenset[bytes](), (), "--key-file"),
        (frozenset({b"k", b""}), (), "check the input"),
        (frozenset({b"k"}), (("", "v"),), "check the input"),
    ],
    ids=["nothing", "an empty key", "a column without a name"],
)
def test_a_selection_of_nobody_is_refused(
    keys: frozenset[bytes], columns: tuple[tuple[str, str], ...], advice: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PersonRecords(keys, columns)
    assert advice in refused.value.next_step


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("a=1", ("a", "1")), ("a=", ("a", "")), (" a.b =x=y", ("a.b", "x=y")), ("a= 1 ", ("a", " 1 "))],
)
def test_a_value_is_everything_behind_the_first_equals_sign(text: str, parsed: tuple[str, str]) -> None:
    assert parse_column(text) == parsed


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("eMail", "e_mail"),
        ("customer.eMail", "customer.e_mail"),
        ("_kafka_key", "_key"),
        ("_key", "_key"),
        ("customer._kafka_key", "customer._kafka_key"),
    ],
)
def test_a_field_and_its_column_have_one_name(column: str, name: str) -> None:
    assert common_name(column) == name


def test_fields_of_one_name_with_several_contexts_have_the_pseudonyms_of_all() -> None:
    decisions = parse_decisions("eMail:pseudonym:person,e_mail:pseudonym:contact")
    found = list(pseudonyms_in([("e_mail", "anna")], decisions, KEYS))
    assert found == [
        ("e_mail", KEYS.of(context, b"anna", key)) for context in ("contact", "person") for key in ("a", "b")
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [("a:pseudonym,b:drop,c:pseudonym", "columns with pseudonyms: a, c;"), ("b:drop", "pseudonyms: none;")],
)
def test_a_column_without_pseudonyms_is_refused_with_those_that_have_some(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match="no pseudonyms of the column b") as refused:
        list(pseudonyms_in([("b", "anna")], parse_decisions(text), KEYS))
    assert named in refused.value.next_step
    assert "anna" not in str(refused.value)
