"""Variables: what each type takes, and errors that name the variable and never a value that may be secret."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.config.variables import (
    Parser,
    Variable,
    choice,
    credentials,
    declared_in,
    folder,
    kms_key,
    parse_part,
    parts_in,
    place,
    reference,
    text,
    url,
    variable,
    whole,
)
from kbq_assets.core.errors import ConfigurationError

KEY = "projects/p/locations/eu/keyRings/r/cryptoKeys/k"


def parsed(parser: Parser, value: str) -> Any:
    return parser(Variable("KBQ_X", "what it is for", "d", parser), value)


@pytest.mark.parametrize(
    ("parser", "value", "expected"),
    [
        (whole(), "0", 0),
        (whole(), "007", 7),
        (whole(5), "5", 5),
        (whole(1, 59), "59", 59),
        (whole(-7, 19), "-7", -7),
        (whole(-7, 19), "-0", 0),
        (whole(), str(sys.maxsize), sys.maxsize),
        (choice("a", "b"), "b", "b"),
        (choice("", "A"), "", ""),
        (text, " as it is ", " as it is "),
        (url, "", ""),
        (url, "http://host", "http://host"),
        (url, "https://host.example:8443/a/b-c/", "https://host.example:8443/a/b-c"),
        (url, "http://[::1]:80", "http://[::1]:80"),
        (kms_key, "", ""),
        (kms_key, KEY, KEY),
        (reference, "", ""),
        (reference, "env:NAME", "env:NAME"),
        (credentials, "", ""),
        (credentials, "anonymous", "anonymous"),
        (credentials, "file:a", "file:a"),
        (credentials, "impersonate:a@b", "impersonate:a@b"),
        (folder, "/a/b", Path("/a/b")),
        (folder, "a", Path("a").absolute()),
        (place, "", ""),
        (place, "gs://bucket/prefix", "gs://bucket/prefix"),
        (place, "/data", "/data"),
    ],
)
def test_a_value_of_its_type_is_taken(parser: Parser, value: str, expected: Any) -> None:
    assert parsed(parser, value) == expected


@pytest.mark.parametrize(
    ("parser", "value", "problem"),
    [
        (whole(), "", "is not a whole number"),
        (whole(), "-1", "is not a whole number"),
        (whole(), "1.0", "is not a whole number"),
        (whole(), "1_000", "is not a whole number"),
        (whole(), " 1", "is not a whole number"),
        (whole(), "٣", "is not a whole number"),
        (whole(), "²", "is not a whole number"),
        (whole(-7, 19), "-", "is not a whole number"),
        (whole(-7, 19), "--1", "is not a whole number"),
        (whole(5), "4", "is out of bounds: expected 5 or more"),
        (whole(1, 59), "60", "is out of bounds: expected 1 to 59"),
        (whole(-7, 19), "-8", "is out of bounds: expected -7 to 19"),
        (whole(), str(sys.maxsize + 1), "is out of bounds"),
        (whole(), "9" * 5000, "is out of bounds"),
        (url, "host", "is not an http or https URL"),
        (url, "ftp://host", "is not an http or https URL"),
        (url, "http://", "is not an http or https URL"),
        (url, "http://user@host", "is not an http or https URL"),
        (url, "http://host?a=1", "is not an http or https URL"),
        (url, "http://host\n", "is not an http or https URL"),
        (kms_key, "k", "must be projects/P/locations/L/keyRings/R/cryptoKeys/K"),
        (kms_key, f"{KEY}/cryptoKeyVersions/1", "must be projects/P/"),
        (credentials, "impersonate:", "is not a reference to credentials"),
        (credentials, "env:NAME", "is not a reference to credentials"),
    ],
)
def test_another_value_is_refused_with_the_variable_and_its_meaning(
    parser: Parser, value: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^KBQ_X {problem}") as caught:
        parsed(parser, value)
    assert caught.value.next_step == "what it is for (d)"


@pytest.mark.parametrize(
    ("parser", "value", "message", "next_step"),
    [
        (choice("a", "b", "c"), "d", "KBQ_X: unknown value 'd'", "use a, b or c"),
        (choice("a"), "A", "KBQ_X: unknown value 'A'", "use a"),
        (place, "s3://b", "KBQ_X: staging at s3:// is not supported", "a folder, file:///folder or gs://bucket/prefix"),
    ],
)  # fmt: skip
def test_a_choice_names_what_there_is(parser: Parser, value: str, message: str, next_step: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parsed(parser, value)
    assert (caught.value.message, caught.value.next_step) == (message, next_step)


@pytest.mark.parametrize("parser", [reference, credentials, url, whole(), kms_key])
def test_a_value_that_may_be_secret_is_not_in_the_error(parser: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parsed(parser, "hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "meaning"),
    [
        (Variable("X", "help", "d", text), "help (d)"),
        (Variable("X", "help", "", text), "help"),
        (Variable("X", "help", 0, text), "help (0)"),
        (Variable("X", "help", True, text), "help (true)"),
        (Variable("X", "help", "", text, shown_default="none"), "help (none)"),
        (Variable("X", "help", 2, text, on_bigquery=120), "help (2; BigQuery: 120)"),
    ],
)
def test_the_meaning_has_the_default_as_people_write_it(declared: Variable, meaning: str) -> None:
    assert declared.meaning == meaning


def test_a_variable_without_a_default_has_none_in_its_meaning() -> None:
    _, declared = next(declared_in(Needed))
    assert declared.meaning == "help"


@dataclass(frozen=True)
class Needed:
    """A part whose variable has no default."""

    name: str = variable("KBQ_NAME", "help")


@dataclass(frozen=True)
class Inner:
    """A part."""

    number: int = variable("KBQ_NUMBER", "a number", 5, whole())
    secret: str = variable("KBQ_SECRET", "a secret", "", secret=True)
    hidden: str = variable("KBQ_HIDDEN", "hidden", "", repr=False)


@dataclass(frozen=True)
class Outer:
    """A part with a part."""

    name: str = variable("KBQ_NAME", "a name", "n")
    plain: int = 1
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize(
    ("environ", "defaults", "expected"),
    [
        ({}, {}, Outer()),
        ({"KBQ_NUMBER": "7", "OTHER": "x"}, {}, Outer(inner=Inner(7))),
        ({"KBQ_NAME": "m"}, {"name": "k", "plain": 2}, Outer("m", 2)),
        ({}, {"name": "k"}, Outer("k")),
        ({"KBQ_NUMBER": "7"}, {"inner": Inner(9)}, Outer(inner=Inner(9))),
    ],
)
def test_a_part_is_its_variables_then_the_caller_s_defaults_then_its_own(
    environ: dict[str, str], defaults: dict[str, Any], expected: Outer
) -> None:
    assert parse_part(Outer, environ, **defaults) == expected


def test_a_part_knows_its_variables_and_its_parts() -> None:
    assert [(name, each.name) for name, each in declared_in(Outer)] == [("name", "KBQ_NAME")]
    assert list(parts_in(Outer)) == [("inner", Inner)]


def test_secrets_are_not_in_the_representation() -> None:
    assert repr(Inner(1, "hunter2", "hunter3")) == "Inner(number=1)"
