"""Decisions about personal data, and pseudonyms."""

from __future__ import annotations

import base64
import json

import pytest

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.personal import Decision, Pseudonyms, parse_decisions, parse_keys
from kbq_assets.core.topics.topic_settings import TopicSettings

KEYS = Pseudonyms("k2", {"k1": b"1" * 32, "k2": b"2" * 32})


def test_decisions_are_read() -> None:
    assert parse_decisions("email:pseudonym,a.b:generalise:year,_key:pseudonym:customer,") == (
        Decision("email", "pseudonym"),
        Decision("a.b", "generalise", "year"),
        Decision("_key", "pseudonym", "customer"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("email", "is not a decision"),
        (":drop", "is not a decision"),
        ("email:hash", "is not a decision"),
        ("email:truncate", "truncate does not take this argument"),
        ("email:truncate:0", "truncate does not take this argument"),
        ("email:generalise:decade", "generalise does not take this argument"),
        ("email:drop:3", "drop does not take this argument"),
        ("_key:drop", "_key can be keep or pseudonym"),
        ("_headers:drop", "_headers can be keep"),
        ("a:drop,a:null", "two decisions about a"),
        ("a:drop,a.b:null", "two decisions about a"),
    ],
)
def test_a_decision_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_decisions(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keys": True}, "does not decide about keys"),
        ({"tombstones": "row"}, "does not decide about keys"),
        ({"headers": True}, "does not decide about headers"),
    ],
)
def test_what_could_leave_unseen_needs_a_decision(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TopicSettings.of(pii="email:drop", **settings)
    TopicSettings.of(pii="email:drop,_key:keep,_headers:keep", keys=True, headers=True, tombstones="row")


def test_equal_values_of_one_context_are_equal_and_no_others() -> None:
    one = KEYS.of("email", b"a@example.com")
    assert one == KEYS.of("email", b"a@example.com")
    others = [
        KEYS.of("email", b"b@example.com"),
        KEYS.of("mail", b"a@example.com"),
        KEYS.of("emaila", b"@example.com"),
        KEYS.of("email", b"a@example.com", "k1"),
    ]
    assert len({one, *others}) == 5
    assert one.startswith("k2.") and len(one) == 3 + 43


def test_keys_are_read_and_never_shown() -> None:
    secret = base64.b64encode(b"s" * 32).decode()
    keys = parse_keys(json.dumps({"current": "a", "keys": {"a": secret}}))
    assert keys.keys == {"a": b"s" * 32}
    assert "ssss" not in repr(keys) and secret not in repr(keys)


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[]", '{"current": "a", "keys": {"a": "c2hvcnQ="}}', '{"current": "b", "keys": {}}',
        '{"current": "a", "keys": {"a": "not base64 s3cr3t"}}', '{"current": "a", "keys": "s3cr3t"}',
        json.dumps({"current": "a.b", "keys": {"a.b": base64.b64encode(b"s" * 32).decode()}}),
    ],
)  # fmt: skip
def test_keys_that_cannot_be_used_are_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ConfigurationError, match="KBQ_PII_KEYS") as raised:
        parse_keys(text)
    assert "s3cr3t" not in str(raised.value)
    assert raised.value.__cause__ is None
