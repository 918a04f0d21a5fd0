"""Keys of pseudonyms rotate without losing old ones, and fields without a decision are found."""

from __future__ import annotations

import base64
import json

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.personal import (
    Decision,
    Pseudonyms,
    fields_of,
    parse_decisions,
    parse_keys,
    undecided,
    with_new_key,
)

KEYS = Pseudonyms("b", {"a": b"1" * 32, "b": b"2" * 32})
DECISIONS = parse_decisions("email:pseudonym,address:drop,_key:keep,_headers:keep")


def test_a_new_key_is_the_current_one_and_old_ones_stay() -> None:
    first = with_new_key("", "2025")
    second = with_new_key(first, "2026")
    keys, before = parse_keys(second), parse_keys(first)
    assert (before.current, keys.current) == ("2025", "2026")
    assert keys.keys["2025"] == before.keys["2025"]
    assert len(keys.keys["2026"]) == 32
    assert keys.keys["2026"] != keys.keys["2025"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("2025", "the key 2025 exists already"), ("a.b", "an id without dots"), ("", "an id without dots")],
)
def test_a_new_key_needs_an_id_of_its_own(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        with_new_key(with_new_key("", "2025"), name)


def test_a_document_that_is_none_gets_no_new_key() -> None:
    with pytest.raises(ConfigurationError, match="another form"):
        with_new_key("{}", "2026")


@pytest.mark.parametrize(
    "document",
    [
        {"current": "a", "keys": {"a": None}},
        {"current": "a", "keys": {"a": 5}},
        {"current": "a", "keys": [["a", "b"]]},
        {"keys": {"a": base64.b64encode(bytes(32)).decode()}},
        {"current": "b", "keys": {"a": base64.b64encode(bytes(32)).decode()}},
        {"current": "a", "keys": {"a": base64.b64encode(bytes(31)).decode()}},
        {"current": "", "keys": {"": base64.b64encode(bytes(32)).decode()}},
        ["a"],
        None,
    ],
)
def test_a_document_of_another_form_is_refused_as_a_setting(document: object) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_PII_KEYS cannot be used"):
        parse_keys(json.dumps(document))


def test_a_value_has_a_pseudonym_under_each_key() -> None:
    found = KEYS.under_each_key("email", b"a@b")
    assert found == {name: KEYS.of("email", b"a@b", name) for name in "ab"}
    assert KEYS.of("email", b"a@b") == found["b"]
    assert len({*found.values()}) == 2


def test_a_pseudonym_is_the_same_in_every_release() -> None:
    # As OpenSSL makes it: HMAC-SHA-256 of the context's length in four bytes, the context, and the value.
    assert KEYS.of("email", b"a@b") == "b.SWRgflm_-40hZuZSgMdeha-hIz4wY4AgDmxIcAtGUtQ"


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        ([], []),
        (["email", "name"], ["name"]),
        (["address", "address.city", "address.zip.code"], []),
        (["addresses", "addresses.city", "emails"], ["addresses", "addresses.city", "emails"]),
        (["a.email"], ["a.email"]),
    ],
)
def test_a_decision_is_about_a_field_and_all_within(paths: list[str], left: list[str]) -> None:
    assert undecided(paths, DECISIONS) == left


def test_keys_and_headers_are_no_fields() -> None:
    assert fields_of(DECISIONS) == ["email", "address"]


@pytest.mark.parametrize(
    ("decision", "context", "text"),
    [
        (Decision("email", "pseudonym"), "email", "email:pseudonym"),
        (Decision("a.b", "pseudonym", "customer"), "customer", "a.b:pseudonym:customer"),
        (Decision("born", "generalise", "year"), "year", "born:generalise:year"),
        (Decision("name", "drop"), "name", "name:drop"),
    ],
)
def test_a_decision_is_written_as_it_is_read(decision: Decision, context: str, text: str) -> None:
    assert (decision.context, str(decision)) == (context, text)
    assert parse_decisions(text) == (decision,)


@pytest.mark.parametrize(
    "text",
    [
        "a:truncate:1",
        "a:truncate:999",
        "a:generalise:10",
        "a:generalise:ip",
        "a:generalise:hour",
        "a:pseudonym:x:y",
    ],
)
def test_arguments_that_fit_are_taken(text: str) -> None:
    assert str(parse_decisions(text)[0]) == text


@pytest.mark.parametrize("argument", ["0", "-1", "1.5", "²", "٣", "9" * 5000, "decade"])
@pytest.mark.parametrize("action", ["truncate", "generalise"])
def test_arguments_that_do_not_are_refused_with_an_example(action: str, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{action} does not take this argument") as caught:
        parse_decisions(f"a:{action}:{argument}")
    assert f"{action}:" in caught.value.next_step
