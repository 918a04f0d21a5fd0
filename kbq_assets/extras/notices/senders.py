"""The notifiers in `KBQ_NOTIFY`: webhooks use KBQ's HTTP client; Slack and all others use Apprise.

Opening a notifier reads no secret and opens no connection, so its problems show only when it sends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import logging
from datetime import UTC, datetime
from functools import partial
from typing import Final

from kbq_assets.adapters.http import post_json
from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.config.notices import NotifierSpec, NotifySettings
from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.extras.notices.model import Message, Notifier
from kbq_assets.ports.clock import Clock

#: The header with ``sha256=`` and the HMAC-SHA-256 of the body, in hex.
SIGNATURE: Final = "X-KBQ-Signature"
#: The version of a webhook's document. Fields may be added without a new version.
VERSION: Final = 2
#: Apprise's names for KBQ's severities.
_TYPES: Final = {"error": "failure", "warn": "warning"}


def open_notifiers(settings: NotifySettings, clock: Clock) -> tuple[Notifier, ...]:
    """The notifiers in `KBQ_NOTIFY`, in order."""
    senders = {"webhook": _post}
    return tuple(
        Notifier(
            spec.name, spec.shown, partial(senders.get(spec.kind, _notify), spec, settings, clock), spec.team
        )
        for spec in settings.notifiers
    )


def _post(spec: NotifierSpec, settings: NotifySettings, clock: Clock, message: Message) -> None:
    """Post a JSON document, signed if there is a key."""
    url, key = resolve("KBQ_NOTIFY", spec.target), resolve("KBQ_WEBHOOK_SECRET", settings.webhook_secret)
    document = {
        "version": VERSION,
        "title": message.title,
        "severity": message.severity,
        "time": f"{datetime.fromtimestamp(message.time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "items": [dataclasses.asdict(item) for item in message.items],
    }
    body = json.dumps(document, ensure_ascii=False).encode()
    post_json(clock, spec.shown, url, body, {SIGNATURE: signature(key, body)} if key else {})


def signature(key: str, body: bytes) -> str:
    """The signature of a body. A receiver compares it (with `hmac.compare_digest`) with its own."""
    return "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()


def _notify(spec: NotifierSpec, settings: NotifySettings, clock: Clock, message: Message) -> None:
    """Send plain text with Apprise."""
    import apprise

    apprise.logger.setLevel(logging.CRITICAL)  # its log shows addresses, and these may be secrets
    asset = apprise.AppriseAsset(
        app_id="KBQ",
        http_redirects=False,
        image_url_mask="",
        default_service_retry=2,
        default_service_wait=0.5,
    )
    service = apprise.Apprise(asset=asset)
    if not service.add(resolve("KBQ_NOTIFY", spec.target)):
        raise ConfigurationError(
            f"Apprise does not recognize the address of {spec.shown}",
            next_step="correct it, then kbq notify --test",
        )
    title, kind = " ".join(message.title.split()), _TYPES.get(message.severity, "info")
    if not service.notify(message.text, title, kind, body_format=apprise.NotifyFormat.TEXT):
        raise Unavailable(
            f"{spec.shown} does not accept the message", next_step="the command apprise -vv URL shows why"
        )
