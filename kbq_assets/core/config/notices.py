"""Settings of notices: who receives them, and how."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.config.variables import url, variable, whole
from kbq_assets.core.errors import ConfigurationError

_KINDS: Final = ("slack", "webhook", "apprise")
_TEAM = re.compile(r"([\w .-]+)=")
_URL = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class NotifierSpec:
    """One entry of `KBQ_NOTIFY`, ``kind:target`` or ``team=kind:target``. A target may contain a secret, so no repr,
    log or message shows it. A notifier with a ``team`` only gets notices about that team's topics."""

    kind: str
    target: str = field(repr=False)
    team: str = ""

    @property
    def name(self) -> str:
        """A name without secrets that identifies the ledger of this target and team."""
        key = f"{self.team}={self.target}" if self.team else self.target
        return f"{self.kind}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    @property
    def shown(self) -> str:
        """Text without secrets: a reference as it is, or only the host of a URL."""
        return f"{self.team}={self._shown}" if self.team else self._shown

    @property
    def _shown(self) -> str:
        if _URL.fullmatch(self.target):
            parts = urlsplit(self.target)
            return f"{self.kind}:{parts.scheme}://{parts.hostname}/***"
        if is_reference(self.target):
            return f"{self.kind}:{self.target}"
        return f"{self.kind}:***"


def parse_notifiers(text: str) -> tuple[NotifierSpec, ...]:
    """Parse `slack:env:NAME,apprise:file:PATH,…`. Raises ConfigurationError that never shows a target."""
    words = filter(None, map(str.strip, text.split(",")))
    specs = tuple(_spec(word, number) for number, word in enumerate(words, 1))
    if len({spec.name for spec in specs}) < len(specs):
        raise ConfigurationError("KBQ_NOTIFY has a duplicate notifier", next_step="name each once")
    return specs


@dataclass(frozen=True)
class NotifySettings:
    """Who receives notices (nobody by default), and how often Dagster checks. ``webhook_secret`` signs the messages to
    webhooks. ``ui_url`` is the address of Dagster's UI, for links.
    """

    notifiers: tuple[NotifierSpec, ...] = variable(
        "KBQ_NOTIFY",
        "failure notification targets, separated by commas: slack:env:NAME, webhook:URL, apprise:env:NAME; "
        "team=slack:env:NAME gets only notices about that team's topics",
        (),
        lambda _, value: parse_notifiers(value),
        shown_default="nobody",
        show=lambda specs: ",".join(spec.shown for spec in specs),
    )
    every_seconds: int = variable(
        "KBQ_NOTIFY_SECONDS",
        "seconds between checks by Dagster's daemon for something to report; at least 10",
        60,
        whole(10),
    )
    webhook_secret: str = variable(
        "KBQ_WEBHOOK_SECRET",
        "key that signs messages to webhooks; env:NAME or file:PATH allowed",
        "",
        secret=True,
        shown_default="unsigned",
    )
    ui_url: str = variable(
        "KBQ_UI_URL",
        "address of Dagster's UI, for links in notices; the UI also accepts its host name",
        "",
        url,
        shown_default="no links",
    )


def _spec(word: str, number: int) -> NotifierSpec:
    team = _TEAM.match(word)
    word = word[team.end() :] if team else word
    kind, colon, target = word.partition(":")
    if not (colon and target and kind in _KINDS):
        raise ConfigurationError(
            f"entry {number} of KBQ_NOTIFY is not a notifier",
            next_step=f"write kind:target, such as slack:env:NAME; the kinds are {', '.join(_KINDS)} (for "
            "e-mail, a mailtos:// URL of Apprise)",
        )
    _check_target(kind, target, number)
    return NotifierSpec(kind, target, team[1].strip() if team else "")


def _check_target(kind: str, target: str, number: int) -> None:
    is_secret = not is_reference(target)
    if kind == "slack" and is_secret:
        raise _refused(number, "a Slack webhook's URL is a secret", "slack:env:NAME or slack:file:PATH")
    if kind == "apprise" and is_secret:
        raise _refused(number, "an Apprise URL contains secrets", "apprise:env:NAME or apprise:file:PATH")
    if kind == "webhook" and is_secret and not _URL.fullmatch(target):
        raise _refused(
            number, "a webhook needs a URL", "webhook:https://…, webhook:env:NAME or webhook:file:PATH"
        )


def _refused(number: int, why: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(f"entry {number} of KBQ_NOTIFY: {why}", next_step=f"write {next_step}")
