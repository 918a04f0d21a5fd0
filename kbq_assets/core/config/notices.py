"""Settings of notices: who receives them, and how."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kbq_assets.core.config.variables import choice, url, variable, whole
from kbq_assets.core.errors import ConfigurationError

#: How the SMTP connection is protected: upgraded after it is opened, from the first byte, or not at all.
SECURITY: Final = ("starttls", "tls", "none")
_REFERENCE = re.compile(r"(env|file|gsm|plugin):.+")
_ADDRESS = re.compile(r"[^@\s<>,\"]+@[^@\s<>,\"]+")
_KINDS: Final = ("slack", "email", "webhook", "apprise")
_TEAM = re.compile(r"([\w .-]+)=")
_URL = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class NotifierSpec:
    """One word of `KBQ_NOTIFY`, ``kind:target`` or ``team=kind:target``. A target may hold a secret: no repr, log or
    message shows it. A notifier with a ``team`` gets what concerns that team's topics alone."""

    kind: str
    target: str = field(repr=False)
    team: str = ""

    @property
    def name(self) -> str:
        """A name without secrets, under which its ledger is kept: another target or team has another name."""
        key = f"{self.team}={self.target}" if self.team else self.target
        return f"{self.kind}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    @property
    def shown(self) -> str:
        """Text without secrets: references and e-mail addresses as they are; only the host of a URL."""
        return f"{self.team}={self._shown}" if self.team else self._shown

    @property
    def _shown(self) -> str:
        if _URL.fullmatch(self.target):
            parts = urlsplit(self.target)
            return f"{self.kind}:{parts.scheme}://{parts.hostname}/***"
        if _REFERENCE.fullmatch(self.target) or self.kind == "email":
            return f"{self.kind}:{self.target}"
        return f"{self.kind}:***"


def parse_notifiers(text: str) -> tuple[NotifierSpec, ...]:
    """Parse `slack:env:NAME,email:ops@example.com,…`. Raises ConfigurationError, never echoing a target."""
    specs = tuple(_spec(word.strip(), number) for number, word in enumerate(filter(None, text.split(",")), 1))
    if len({spec.name for spec in specs}) < len(specs):
        raise ConfigurationError("KBQ_NOTIFY names a notifier twice", next_step="name each once")
    return specs


@dataclass(frozen=True)
class SmtpSettings:
    """The mail server. User and password may be `env:NAME` or `file:PATH`."""

    host: str = variable("KBQ_SMTP_HOST", "mail server, needed for e-mail", "")
    port: int = variable("KBQ_SMTP_PORT", "its port", 587, whole(1, 65535))
    security: str = variable(
        "KBQ_SMTP_SECURITY",
        "starttls, tls, or none: without a password only",
        SECURITY[0],
        choice(*SECURITY),
    )
    username: str = variable(
        "KBQ_SMTP_USERNAME", "user of the mail server; env:NAME or file:PATH allowed", ""
    )
    password: str = variable("KBQ_SMTP_PASSWORD", "password; env:NAME or file:PATH allowed", "", secret=True)
    sender: str = variable("KBQ_SMTP_FROM", "sender's address of notices, needed for e-mail", "")

    def __post_init__(self) -> None:
        if self.security == "none" and self.password:
            raise ConfigurationError(
                "KBQ_SMTP_SECURITY=none would send the password in clear",
                next_step="use starttls or tls, or unset KBQ_SMTP_USERNAME and KBQ_SMTP_PASSWORD",
            )


@dataclass(frozen=True)
class NotifySettings:
    """Who receives notices (nobody by default), and how often Dagster checks.

    ``webhook_secret`` signs what webhooks get. ``ui_url`` is the address of Dagster's UI, for links.
    """

    notifiers: tuple[NotifierSpec, ...] = variable(
        "KBQ_NOTIFY",
        "failure notification targets: slack:env:NAME, email:ADDRESS, webhook:URL, apprise:env:NAME, with commas; "
        "team=slack:env:NAME gets what concerns the topics of that team",
        (),
        lambda _, value: parse_notifiers(value),
        shown_default="nobody",
        show=lambda specs: ",".join(spec.shown for spec in specs),
    )
    every_seconds: int = variable(
        "KBQ_NOTIFY_SECONDS",
        "seconds between checks for something to report, by Dagster's daemon; at least 10",
        60,
        whole(10),
    )
    webhook_secret: str = variable(
        "KBQ_WEBHOOK_SECRET",
        "key that signs what webhooks get; env:NAME or file:PATH allowed",
        "",
        secret=True,
        shown_default="unsigned",
    )
    ui_url: str = variable(
        "KBQ_UI_URL",
        "address of Dagster's UI: for links in notices, and a host that it accepts",
        "",
        url,
        shown_default="no links",
    )
    smtp: SmtpSettings = field(default_factory=SmtpSettings)

    def __post_init__(self) -> None:
        mails = any(spec.kind == "email" for spec in self.notifiers)
        if mails and not (self.smtp.host and _ADDRESS.fullmatch(self.smtp.sender)):
            raise ConfigurationError(
                "KBQ_NOTIFY has an e-mail address, but no mail server",
                next_step="set KBQ_SMTP_HOST, and KBQ_SMTP_FROM to the sender's address",
            )


def _spec(word: str, number: int) -> NotifierSpec:
    team = _TEAM.match(word)
    word = word[team.end() :] if team else word
    kind, colon, target = word.partition(":")
    if not (colon and target and kind in _KINDS):
        raise ConfigurationError(
            f"entry {number} of KBQ_NOTIFY is not a notifier",
            next_step=f"write kind:target, such as email:a@b.org; the kinds are {', '.join(_KINDS)}",
        )
    _check_target(kind, target, number)
    return NotifierSpec(kind, target, team[1].strip() if team else "")


def _check_target(kind: str, target: str, number: int) -> None:
    is_reference = bool(_REFERENCE.fullmatch(target))
    if kind == "slack" and not is_reference:
        raise _refused(number, "a Slack webhook's URL is a secret", "slack:env:NAME or slack:file:PATH")
    if kind == "apprise" and not is_reference:
        raise _refused(number, "an Apprise URL holds secrets", "apprise:env:NAME or apprise:file:PATH")
    if kind == "webhook" and not (is_reference or _URL.fullmatch(target)):
        raise _refused(
            number, "a webhook needs a URL", "webhook:https://…, webhook:env:NAME or webhook:file:PATH"
        )
    if kind == "email" and not _ADDRESS.fullmatch(target):
        raise _refused(number, "an e-mail address is expected", "email:ops@example.com")


def _refused(number: int, why: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(f"entry {number} of KBQ_NOTIFY: {why}", next_step=f"write {next_step}")
