"""Access tokens for SASL OAUTHBEARER, by OIDC's client credentials grant (RFC 6749, section 4.4).

The options are those of librdkafka's `oidc` method, so the same settings serve both readers and the planner.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused, ConnectionLost

#: A token is used for this share of its life: brokers' clocks differ, and a login takes a moment.
_SHARE_OF_LIFE: Final = 0.8
#: An identity provider's answer is a few kilobytes.
_MOST_BYTES: Final = 256 * 1024


@dataclass(frozen=True)
class TokenEndpoint:
    """A token endpoint and its credentials. ``ca_location``: a file or folder of authorities, "" for Python's own."""

    url: str = field(repr=False)
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    ca_location: str = ""
    seconds: float = 30.0


class Tokens:
    """Hands out a token, and fetches a new one before the last one expires. Threads may share it."""

    def __init__(self, endpoint: TokenEndpoint, now: Callable[[], float] = time.time) -> None:
        self._endpoint = endpoint
        self._now = now
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = 0.0

    def __call__(self) -> str:
        """The access token. Raises ConnectionLost if the endpoint does not answer, AuthenticationRefused if it
        answers without a token."""
        with self._lock:
            if self._now() >= self._renew_at:
                asked_at = self._now()
                self._token, expires_at = self._fetch(asked_at)
                self._renew_at = asked_at + _SHARE_OF_LIFE * (expires_at - asked_at)
            return self._token

    def _fetch(self, asked_at: float) -> tuple[str, float]:
        status, document = self._answer()
        token = document.get("access_token") if isinstance(document, dict) else None
        if status != requests.codes.ok or not isinstance(token, str) or not token:
            error = document.get("error") if isinstance(document, dict) else None
            reason = f": {error}" if isinstance(error, str) else ""
            raise AuthenticationRefused(
                f"Authentication failed: the token endpoint answered {status} without a token{reason[:200]}"
            )
        return token, _expiry(token, document, asked_at)

    def _answer(self) -> tuple[int, Any]:
        endpoint = self._endpoint
        form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
        try:
            with requests.post(
                endpoint.url,
                data=form,
                auth=(endpoint.client_id, endpoint.client_secret),
                headers={"Accept": "application/json"},
                timeout=endpoint.seconds,
                verify=endpoint.ca_location or True,
                allow_redirects=False,  # credentials go to the configured host only
                stream=True,
            ) as response:
                body = response.raw.read(_MOST_BYTES, decode_content=True)
                return response.status_code, _parsed(body)
        except (requests.RequestException, OSError) as error:
            # The error's own text may repeat an address with a password.
            raise ConnectionLost(f"the token endpoint does not answer: {type(error).__name__}") from None


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _expiry(token: str, document: dict[str, Any], asked_at: float) -> float:
    """When a token expires, in seconds since 1970: by its `exp`, by the answer's `expires_in`, else at once."""
    for value, offset in ((_claims(token).get("exp"), 0.0), (document.get("expires_in"), asked_at)):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value) + offset
    return asked_at


def _claims(token: str) -> dict[str, Any]:
    """The claims of a JWT; empty for an opaque token."""
    parts = token.split(".")
    if len(parts) < 2:
        return {}
    try:
        claims = _parsed(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}
