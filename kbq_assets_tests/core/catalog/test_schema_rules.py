"""Rules for the fields of schemas: required fields, names, and fields that must be times."""

from __future__ import annotations

import pytest

from kbq_assets.core.catalog.schema_rules import SchemaField, SchemaRules, check_rules, parse_rules
from kbq_assets_tests.core.catalog.documents import documents


def schema(**kinds: str) -> list[SchemaField]:
    """Fields by path, `__` for a point, with the kinds of their values."""
    return [SchemaField(path.replace("__", "."), frozenset(kind.split())) for path, kind in kinds.items()]


FIELDS = schema(id="text", at="number time", customer="any", customer__eMail="text")


@pytest.mark.parametrize(
    ("rules", "broken"),
    [
        (SchemaRules(), []),
        (SchemaRules({"id": "any", "at": "time", "customer.eMail": "text"}), []),
        (SchemaRules({"at": "number"}), []),
        (SchemaRules({"idd": "any"}), [("idd", "is mandatory and missing", "did you mean 'id'?")]),
        (
            SchemaRules({"zzz": "any"}),
            [("zzz", "is mandatory and missing", "schema_rules.mandatory requires it")],
        ),
        (SchemaRules({"id": "time"}), [("id", "must be of kind time, but has another type", "long")]),
        (SchemaRules({"id": "number"}), [("id", "must be of kind number, but has another type", "")]),
        (
            SchemaRules(names="[a-z]+"),
            [("customer.eMail", "'eMail' breaks the rule for names of fields", "[a-z]+")],
        ),
        (SchemaRules(names="[a-zA-Z]+"), []),
        (
            SchemaRules(times="at|id"),
            [("id", "is named like a time, but does not have a time's type", "long")],
        ),
        (SchemaRules(times="i"), []),
    ],
    ids=[
        "no rules",
        "all are there",
        "one of its kinds",
        "nearly spelled",
        "missing",
        "no time",
        "no number",
        "a name",
        "all names",
        "the name of a time",
        "a rule is for the whole name",
    ],
)
def test_a_schema_breaks_a_rule_with_place_reason_and_correction(
    rules: SchemaRules, broken: list[tuple[str, str, str]]
) -> None:
    assert list(rules.broken(FIELDS, "long")) == broken


def test_mandatory_paths_begin_at_a_root() -> None:
    fields = schema(after="any", after__id="text")
    assert list(SchemaRules({"id": "text"}).broken(fields, "long", "after.")) == []
    [(path, _, _)] = SchemaRules({"at": "text"}).broken(fields, "long", "after.")
    assert path == "after.at"


def test_a_key_has_no_mandatory_field() -> None:
    rules = SchemaRules({"zzz": "any"}, "[a-z]+", "id")
    assert rules.of_keys() == SchemaRules({}, "[a-z]+", "id")


@pytest.mark.parametrize(
    ("document", "rules"),
    [
        ({}, SchemaRules(times="at")),
        ({"schema_rules": None}, SchemaRules(times="at")),
        ({"schema_rules": {"mandatory": None, "names": None}}, SchemaRules(times="at")),
        ({"schema_rules": {"mandatory": {"id": "any"}, "names": "x"}}, SchemaRules({"id": "any"}, "x", "at")),
    ],
)
def test_an_entry_without_rules_requires_nothing_but_times(
    document: dict[str, object], rules: SchemaRules
) -> None:
    assert parse_rules(document, "at") == rules


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("schema_rules: {mandatory: {a: any, b.c: time}, names: '[a-z]+'}", []),
        ("description: x", []),
        (
            "schema_rules:\n  mandatory:\n    a: string\n",
            [
                "e:3: schema_rules.mandatory.a: 'string' is not a kind of field (one of any, text, number, time)"
            ],
        ),
        ("schema_rules:\n  names: '('\n", ["e:2: schema_rules.names: '(' is not a regular expression: "]),
    ],
    ids=["right", "none", "an unknown kind", "no expression"],
)
def test_a_mistake_in_the_rules_has_its_line(text: str, problems: list[str]) -> None:
    found = list(map(str, check_rules(documents({"e": text})["e"])))
    assert len(found) == len(problems)
    assert all(each.startswith(words) for each, words in zip(found, problems, strict=True))
