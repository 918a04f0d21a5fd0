"""Access tokens for SASL OAUTHBEARER, from OIDC's client credentials grant (RFC 6749, section 4.4).

The options are those of librdkafka's `oidc` method, so the same settings work for both readers and the planner.
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from kbq_assets.adapters.http import HttpClient, NoReply, Reply
from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused, ConnectionLost
from kbq_assets.adapters.kafka.fetch.tls import trust
from kbq_assets.core.errors import ConfigurationError

#: Share of its lifetime for which a token is used, because brokers' clocks differ and a login takes a moment.
_SHARE_OF_LIFE: Final = 0.8
#: Largest valid time in seconds since 1970. With NaN, infinity and larger numbers, a token would be kept forever.
_LATEST: Final = 1e12


@dataclass(frozen=True)
class TokenEndpoint:
    """A token endpoint and its credentials. ``ca_location`` is a file or folder of authorities, "" for Python's own."""

    url: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    ca_location: str = ""
    seconds: float = 30.0


class Tokens:
    """Returns a token, and fetches a new one before the last one expires. Threads may share it."""

    def __init__(self, endpoint: TokenEndpoint, now: Callable[[], float] = time.time) -> None:
        self._endpoint = endpoint
        self._now = now
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def __call__(self) -> str:
        """The access token. Raises ConnectionLost if the endpoint does not respond or is overloaded, or
        AuthenticationRefused if it responds without a token."""
        with self._lock:
            if self._now() >= self._renew_at:
                asked_at = self._now()
                self._token, expires_at = self._fetch(asked_at)
                self._renew_at = asked_at + _SHARE_OF_LIFE * (expires_at - asked_at)
            return self._token

    def _fetch(self, asked_at: float) -> tuple[str, float]:
        reply = self._ask()
        document = reply.json if isinstance(reply.json, dict) else {}
        token = document.get("access_token")
        if reply.status == 429 or reply.status >= 500:
            raise ConnectionLost(f"the token endpoint answered {reply.status}")
        if reply.status != 200 or not isinstance(token, str) or not _is_usable(token):
            error = document.get("error")
            reason = f": {error[:200]}" if isinstance(error, str) else ""
            raise AuthenticationRefused(
                f"Authentication failed: the token endpoint answered {reply.status} without a token{reason}"
            )
        return token, _expiry(token, document, asked_at)

    def _ask(self) -> Reply:
        endpoint = self._endpoint
        form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
        client = base64.b64encode(f"{endpoint.client_id}:{endpoint.client_secret}".encode()).decode()
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {client}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        try:
            http = HttpClient(endpoint.seconds, _trusted(endpoint.ca_location))
            # Credentials go only to the configured host, so no redirect is followed.
            return http.send("POST", endpoint.url, urlencode(form).encode(), headers, redirects=False)
        except NoReply as error:
            raise ConnectionLost(f"the token endpoint does not answer: {error}") from None


def _trusted(location: str) -> ssl.SSLContext | None:
    """The authorities of a file or folder; None for the machine's. Raises ConfigurationError."""
    try:
        return trust(location) if location else None
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the Kafka option https.ca.location: {type(error).__name__}: {error}", next_step="check the path"
        ) from None


def _expiry(token: str, document: dict[str, Any], asked_at: float) -> float:
    """When a token expires, in seconds since 1970: from its `exp`, otherwise the response's `expires_in`, otherwise at
    once."""
    for value, offset in ((_claims(token).get("exp"), 0.0), (document.get("expires_in"), asked_at)):
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LATEST:
            return float(value) + offset
    return asked_at


def _is_usable(token: str) -> bool:
    """Whether a token is valid in a login: RFC 6750 allows only printable ASCII, and other bytes could change the
    message."""
    return token != "" and token.isascii() and token.isprintable()


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JWT; empty for an opaque token."""
    parts = token.split(".")
    if len(parts) < 2:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
