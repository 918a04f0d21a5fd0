"""Metrics as a JSON document, posted to an address. The address may hold a secret: no message repeats it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.extras.metrics.families import Family, document

_TIMEOUT_SECONDS = 10.0


class WebhookReporter:
    """One POST a report."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("https://", "http://")):
            raise ConfigurationError(
                "the webhook of KBQ_REPORTERS is no http or https address", next_step="write webhook:URL"
            )
        self._url = url

    def report(self, families: Sequence[Family], time_ms: int) -> None:
        """Post it. Raises Unavailable."""
        body = json.dumps(document(families, time_ms)).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
                response.read()
        except urllib.error.HTTPError as error:
            error.close()
            raise Unavailable(f"the webhook of KBQ_REPORTERS answered {error.code}") from None
        except OSError as error:
            why = getattr(error, "reason", error)
            raise Unavailable(f"the webhook of KBQ_REPORTERS does not answer: {why}") from None
