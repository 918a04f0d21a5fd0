"""Any other system: a JSON document by POST, signed where there is a key."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.adapters.secrets import resolve
from kbq_assets.extras.notices.model import Notice
from kbq_assets.extras.notices.senders.http import Poster
from kbq_assets.extras.notices.senders.named import Named
from kbq_assets.extras.notices.senders.text import document

#: ``sha256=`` and the HMAC-SHA-256 of the body, in hex.
SIGNATURE: Final = "X-KBQ-Signature"


@dataclass(frozen=True)
class WebhookNotifier(Named):
    """An address that takes documents."""

    secret: str = field(repr=False)
    poster: Poster

    def send(self, notice: Notice) -> None:
        """Post a notice. Raises Unavailable, ConfigurationError."""
        url = resolve("KBQ_NOTIFY", self.spec.target)
        body = json.dumps(document(notice), ensure_ascii=False).encode()
        key = resolve("KBQ_WEBHOOK_SECRET", self.secret)
        self.poster.post(self.shown, url, body, {SIGNATURE: signature(key, body)} if key else {})


def signature(key: str, body: bytes) -> str:
    """What a receiver compares (with `hmac.compare_digest`) with its own."""
    return "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
