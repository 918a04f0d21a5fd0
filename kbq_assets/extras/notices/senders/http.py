"""POST requests that try again a little, end soon, and never tell the address, which may be a secret."""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.ports.clock import Clock

TIMEOUT_SECONDS: Final = 8.0
#: A request is made this often at most; a pause that the other side asks for is waited for if it is short.
ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 10.0
_READ_BYTES: Final = 1 << 14
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class _Again(Exception):
    """The same request may succeed after a pause."""

    def __init__(self, why: str, pause_seconds: float) -> None:
        super().__init__(why)
        self.pause_seconds = pause_seconds


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A notice goes where it was sent to, and nowhere else."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


@dataclass(frozen=True)
class Poster:
    """Sends bodies to addresses."""

    clock: Clock

    def post(self, who: str, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Deliver a body to ``who``, a name that may be shown. Raises Unavailable, ConfigurationError."""
        request = _request(who, url, body, headers)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._attempt(who, request)
            except _Again as again:
                if attempt == ATTEMPTS or again.pause_seconds > LONGEST_PAUSE_SECONDS:
                    raise _unavailable(who, str(again)) from again.__cause__
                self.clock.sleep(again.pause_seconds)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, who: str, request: urllib.request.Request) -> None:
        try:
            with _opener(request).open(request, timeout=TIMEOUT_SECONDS) as response:
                response.read(_READ_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(who, error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise ConfigurationError(
                    f"the certificate of {who} is not trusted: {reason.verify_message}",
                    next_step="mend the address, or the machine's certificate authorities",
                ) from None
            # Their words may name the address; their kinds do not.
            raise _Again(type(reason).__name__, _PAUSE_SECONDS) from None

    def _refusal(self, who: str, error: urllib.error.HTTPError) -> Exception:
        status = f"HTTP {error.code}"
        if error.code == 429 or error.code >= 500:
            return _Again(status, self._pause(error.headers.get("Retry-After", "")))
        return ConfigurationError(
            f"{who} refuses notices: {status}",
            next_step="mend its address in KBQ_NOTIFY, then kbq notify --test",
        )

    def _pause(self, retry_after: str) -> float:
        """Seconds, or until a date, as the header has it."""
        if retry_after.isascii() and retry_after.isdigit():
            return float(retry_after)
        try:
            until = parsedate_to_datetime(retry_after).timestamp()
        except (TypeError, ValueError):
            return _PAUSE_SECONDS
        return max(_PAUSE_SECONDS, until - self.clock.now_ms() / 1000)


def _request(who: str, url: str, body: bytes, headers: Mapping[str, str]) -> urllib.request.Request:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not (url.isascii() and url.isprintable()) or " " in url:
        raise ConfigurationError(
            f"the address of {who} is not an http or https URL", next_step="set what KBQ_NOTIFY refers to"
        )
    agent = {"User-Agent": "kbq", "Content-Type": "application/json"}
    return urllib.request.Request(url, body, {**agent, **headers}, method="POST")


def _opener(request: urllib.request.Request) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if urlsplit(request.full_url).hostname in _LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))  # the environment's proxy is for other hosts
    return urllib.request.build_opener(*handlers)


def _unavailable(who: str, why: str) -> Unavailable:
    return Unavailable(f"{who} does not take notices: {why}", next_step="it is tried again at the next look")
