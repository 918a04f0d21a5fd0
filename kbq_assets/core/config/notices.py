"""Who is told, and how: `KBQ_NOTIFY` and what its notifiers need."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from kbq_assets.core.errors import ConfigurationError

#: How the SMTP connection is protected: upgraded after it is opened, from the first byte, or not at all.
SECURITY: Final = ("starttls", "tls", "none")
_REFERENCE = re.compile(r"(env|file|gsm|plugin):.+")
_ADDRESS = re.compile(r"[^@\s<>,\"]+@[^@\s<>,\"]+")
_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_URL = re.compile(r"https?://\S+")


@dataclass(frozen=True)
class NotifierSpec:
    """One word of `KBQ_NOTIFY`, ``kind:target``. A target may hold a secret: it is in no repr, log or message."""

    kind: str
    target: str = field(repr=False)

    @property
    def name(self) -> str:
        """A name that says nothing secret, and that its ledger goes by: another target is another name."""
        return f"{self.kind}-{hashlib.sha256(self.target.encode()).hexdigest()[:8]}"

    @property
    def shown(self) -> str:
        """What may be shown: references and addresses of people as they are, of a URL the host alone."""
        if _URL.fullmatch(self.target):
            parts = urlsplit(self.target)
            return f"{self.kind}:{parts.scheme}://{parts.hostname}/***"
        if _REFERENCE.fullmatch(self.target) or self.kind == "email":
            return f"{self.kind}:{self.target}"
        return f"{self.kind}:***"


@dataclass(frozen=True)
class SmtpSettings:
    """The mail server. User and password may be `env:NAME` or `file:PATH`."""

    host: str = ""
    port: int = 587
    security: str = SECURITY[0]
    username: str = ""
    password: str = field(default="", repr=False)
    sender: str = ""
    ca_file: str = ""


@dataclass(frozen=True)
class NotifySettings:
    """Who is told (nobody by default), how often what lasts is repeated, and how often Dagster looks.

    ``webhook_secret`` signs what webhooks get. ``ui_url`` is where Dagster's UI is reached, for links.
    """

    notifiers: tuple[NotifierSpec, ...] = ()
    repeat_hours: int = 24
    every_seconds: int = 60
    webhook_secret: str = field(default="", repr=False)
    ui_url: str = ""
    smtp: SmtpSettings = field(default_factory=SmtpSettings)


def parse_notifiers(text: str) -> tuple[NotifierSpec, ...]:
    """Parse `slack:env:NAME,email:ops@example.com,…`. Raises ConfigurationError, never echoing a target."""
    specs = tuple(_spec(word.strip(), number) for number, word in enumerate(filter(None, text.split(",")), 1))
    if len({spec.name for spec in specs}) < len(specs):
        raise ConfigurationError("KBQ_NOTIFY names a notifier twice", next_step="name each once")
    return specs


def _spec(word: str, number: int) -> NotifierSpec:
    kind, colon, target = word.partition(":")
    if not (colon and target and _KIND.fullmatch(kind)):
        raise ConfigurationError(
            f"entry {number} of KBQ_NOTIFY is no notifier",
            next_step="write kind:target, such as email:a@b.org",
        )
    _check_target(kind, target, number)
    return NotifierSpec(kind, target)


def _check_target(kind: str, target: str, number: int) -> None:
    is_reference = bool(_REFERENCE.fullmatch(target))
    if kind == "slack" and not is_reference:
        raise _refused(number, "a Slack webhook's URL is a secret", "slack:env:NAME or slack:file:PATH")
    if kind == "webhook" and not (is_reference or _URL.fullmatch(target)):
        raise _refused(
            number, "a webhook needs a URL", "webhook:https://…, webhook:env:NAME or webhook:file:PATH"
        )
    if kind == "email" and not _ADDRESS.fullmatch(target):
        raise _refused(number, "an e-mail address is expected", "email:ops@example.com")


def _refused(number: int, why: str, next_step: str) -> ConfigurationError:
    return ConfigurationError(f"entry {number} of KBQ_NOTIFY: {why}", next_step=f"write {next_step}")


def parse_smtp(environ: Mapping[str, str], port: int, notifiers: Iterable[NotifierSpec]) -> SmtpSettings:
    """The mail server's variables. Raises ConfigurationError where an e-mail could not be sent."""
    smtp = SmtpSettings(
        host=environ.get("KBQ_SMTP_HOST", ""),
        port=port,
        security=environ.get("KBQ_SMTP_SECURITY", SECURITY[0]),
        username=environ.get("KBQ_SMTP_USERNAME", ""),
        password=environ.get("KBQ_SMTP_PASSWORD", ""),
        sender=environ.get("KBQ_SMTP_FROM", ""),
        ca_file=environ.get("KBQ_SMTP_CA_FILE", ""),
    )
    if smtp.security not in SECURITY:
        raise ConfigurationError("KBQ_SMTP_SECURITY is unknown", next_step=f"one of {', '.join(SECURITY)}")
    if smtp.security == "none" and smtp.password:
        raise ConfigurationError(
            "KBQ_SMTP_SECURITY=none would send the password in clear",
            next_step="use starttls or tls, or leave KBQ_SMTP_USERNAME and KBQ_SMTP_PASSWORD out",
        )
    mails = any(spec.kind == "email" for spec in notifiers)
    if mails and not (smtp.host and _ADDRESS.fullmatch(smtp.sender)):
        raise ConfigurationError(
            "KBQ_NOTIFY has an e-mail address, but no mail server",
            next_step="set KBQ_SMTP_HOST, and KBQ_SMTP_FROM to the sender's address",
        )
    return smtp
