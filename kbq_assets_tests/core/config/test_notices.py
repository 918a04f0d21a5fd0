"""Parsing of `KBQ_NOTIFY`. None of its secrets is shown."""

from __future__ import annotations

import pytest

from kbq_assets.core.config.notices import NotifierSpec, parse_notifiers
from kbq_assets.core.errors import ConfigurationError

HOOK = "https://hooks.example:8443/services/hunter2?token=hunter2"


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("", ()),
        (" , ,", ()),
        ("slack:env:HOOK", (NotifierSpec("slack", "env:HOOK"),)),
        ("apprise:file:/a b", (NotifierSpec("apprise", "file:/a b"),)),
        (f"webhook:{HOOK}", (NotifierSpec("webhook", HOOK),)),
        ("webhook:gsm:a/versions/1", (NotifierSpec("webhook", "gsm:a/versions/1"),)),
        ("webhook:plugin:vault:a", (NotifierSpec("webhook", "plugin:vault:a"),)),
        ("Team A.1-x=slack:env:A", (NotifierSpec("slack", "env:A", "Team A.1-x"),)),
        (" a = slack:env:A".replace("= ", "="), (NotifierSpec("slack", "env:A", "a"),)),
        (
            "slack:env:A, a=slack:env:A , slack:env:B,",
            (NotifierSpec("slack", "env:A"), NotifierSpec("slack", "env:A", "a"), NotifierSpec("slack", "env:B")),
        ),
    ],
)  # fmt: skip
def test_words_are_notifiers(text: str, specs: tuple[NotifierSpec, ...]) -> None:
    assert parse_notifiers(text) == specs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hunter2", "entry 1 of KBQ_NOTIFY is not a notifier"),
        ("slack:env:A,pager:hunter2", "entry 2 of KBQ_NOTIFY is not a notifier"),
        ("slack:", "entry 1 of KBQ_NOTIFY is not a notifier"),
        ("slack", "entry 1 of KBQ_NOTIFY is not a notifier"),
        ("a=", "entry 1 of KBQ_NOTIFY is not a notifier"),
        ("=slack:env:A", "entry 1 of KBQ_NOTIFY is not a notifier"),
        ("ä/b=slack:env:A", "entry 1 of KBQ_NOTIFY is not a notifier"),
        ("slack:https://hooks.slack.com/hunter2", "entry 1 of KBQ_NOTIFY: a Slack webhook's URL is a secret"),
        ("slack:env:", "entry 1 of KBQ_NOTIFY: a Slack webhook's URL is a secret"),
        ("apprise:mailtos://me:hunter2@host", "entry 1 of KBQ_NOTIFY: an Apprise URL contains secrets"),
        ("webhook:hunter2", "entry 1 of KBQ_NOTIFY: a webhook needs a URL"),
        ("webhook:ftp://hunter2", "entry 1 of KBQ_NOTIFY: a webhook needs a URL"),
        ("webhook:https://", "entry 1 of KBQ_NOTIFY: a webhook needs a URL"),
        ("slack:env:A,slack:env:A", "KBQ_NOTIFY has a duplicate notifier"),
        ("a=slack:env:A,a=slack:env:A", "KBQ_NOTIFY has a duplicate notifier"),
    ],
)
def test_a_mistake_is_named_by_its_place_without_a_secret(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_notifiers(text)
    assert caught.value.message == message
    assert caught.value.next_step
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (NotifierSpec("slack", "env:HOOK"), "slack:env:HOOK"),
        (NotifierSpec("slack", "env:HOOK", "a"), "a=slack:env:HOOK"),
        (NotifierSpec("webhook", HOOK), "webhook:https://hooks.example/***"),
        (NotifierSpec("webhook", "http://me:hunter2@host/x", "a"), "a=webhook:http://host/***"),
        (NotifierSpec("webhook", "hunter2"), "webhook:***"),
    ],
)
def test_a_notifier_is_shown_without_its_secrets(spec: NotifierSpec, shown: str) -> None:
    assert spec.shown == shown
    assert "hunter2" not in repr(spec) + spec.name


def test_another_target_or_team_has_another_name() -> None:
    specs = [
        NotifierSpec("slack", "env:A"),
        NotifierSpec("slack", "env:B"),
        NotifierSpec("slack", "env:A", "a"),
        NotifierSpec("slack", "env:A", "b"),
        NotifierSpec("webhook", "env:A"),
    ]
    assert len({spec.name for spec in specs}) == len(specs)
    assert all(spec.name.startswith(f"{spec.kind}-") for spec in specs)
