"""The HTTP client for the schema registry and webhooks.

Each request has a limit of time and size, however slowly the server sends. A redirect is followed only on the same
host, never from https to http, and without the ``Authorization`` header. No error shows an address or a response,
because both may contain a secret.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Final
from urllib.parse import SplitResult, urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError

from kbq_assets.core.errors import ConfigurationError, Unavailable
from kbq_assets.ports.clock import Clock

# Its debug lines show paths, which may be secrets.
logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)

#: Parsed as JSON, a response may take up to twenty times as much memory. Registries limit schemas to a megabyte.
MAX_BYTES: Final = 8 << 20
_MOST_REDIRECTIONS: Final = 3
_READ_BYTES: Final = 1 << 16
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: Limits of `post_json`: seconds of one attempt, attempts, and the longest pause that a server may ask for.
POST_SECONDS: Final = 8.0
ATTEMPTS: Final = 3
LONGEST_PAUSE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 1.0


class NoReply(Exception):
    """No complete response arrived. The text is the reason, without an address."""


class Oversized(NoReply):
    """The response exceeds the size limit."""


class Untrusted(NoReply):
    """The server's certificate is not trusted."""


@dataclass(frozen=True)
class Reply:
    """A response with any status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def json(self) -> Any:
        """The body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


def parse_address(url: str) -> SplitResult | None:
    """The parts of an http or https address; None if the text is not such an address."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if usable and url.isascii() and url.isprintable() and " " not in url:
            return parts
    return None


class HttpClient:
    """Requests to servers. Threads may share it.

    Without ``context``, the machine's certificate authorities are trusted. The environment's proxy is used, except
    for requests to this machine.
    """

    def __init__(self, timeout_seconds: float, context: ssl.SSLContext | None = None) -> None:
        self._timeout_seconds = timeout_seconds
        self._session = requests.Session()
        # Use neither the user's .netrc nor certifi's bundle: callers choose credentials and authorities.
        self._session.trust_env = False
        self._session.mount("http://", TimedAdapter())
        self._session.mount("https://", _TlsAdapter(context))

    def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        redirects: bool = True,
    ) -> Reply:
        """The response to one request. A redirect that must not be followed is returned as it is. Raises NoReply,
        Oversized, Untrusted."""
        reply = self._send(method, url, body, headers)
        for _ in range(_MOST_REDIRECTIONS):
            target = _redirection(url, reply) if redirects else None
            if target is None or (method != "GET" and reply.status not in (307, 308)):
                return reply
            without = {k: v for k, v in (headers or {}).items() if k != "Authorization"}
            url, headers = target, without
            reply = self._send(method, url, body, headers)
        return reply

    def _send(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str] | None) -> Reply:
        deadline = time.monotonic() + self._timeout_seconds
        proxies = {} if urlsplit(url).hostname in _LOOPBACK else get_environ_proxies(url)
        try:
            with self._session.request(
                method,
                url,
                data=body,
                headers={"User-Agent": "kbq", "Accept-Encoding": "identity", **(headers or {})},
                timeout=self._timeout_seconds,
                allow_redirects=False,
                proxies=proxies,
                stream=True,
            ) as response:
                return Reply(response.status_code, self._body(response, deadline), response.headers)
        except (
            OSError,
            HTTPError,
            ValueError,
        ) as error:  # requests' errors are OSErrors, some also ValueErrors
            raise _no_reply(error) from None

    def _body(self, response: requests.Response, deadline: float) -> bytes:
        body = bytearray()
        while data := response.raw.read1(_READ_BYTES):
            body += data
            if len(body) > MAX_BYTES:
                raise Oversized(f"its response is larger than {MAX_BYTES >> 20} MB")
            if time.monotonic() > deadline:
                raise OSError(0, f"no complete response in {self._timeout_seconds:g} s")
        return bytes(body)


def _redirection(url: str, reply: Reply) -> str | None:
    """The target of a redirect; None if there is none or it must not be followed."""
    if reply.status not in (301, 302, 303, 307, 308):
        return None
    with contextlib.suppress(ValueError):
        asked, target = urlsplit(url), parse_address(urljoin(url, reply.headers.get("Location", "")))
        is_weaker = target is not None and (asked.scheme, target.scheme) == ("https", "http")
        if target is not None and target.hostname == asked.hostname and not is_weaker:
            return target.geturl()
    return None


class _TimedBytes(io.RawIOBase):
    """The bytes of a response. The socket's timeout limits all reads together, instead of each read."""

    def __init__(self, connection: socket.socket, raw: io.RawIOBase) -> None:
        self._socket = connection
        self._raw = raw
        self._deadline = time.monotonic() + (connection.gettimeout() or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(0, "timed out")
        self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """A response whose time limit also covers its headers."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_TimedBytes(sock, self.fp.detach()))


class _PlainConnection(HTTPConnection):
    response_class = _TimedResponse


class _TlsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class TimedAdapter(HTTPAdapter):
    """Limits the time of a whole response."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}
        return manager


class _TlsAdapter(TimedAdapter):
    """Trusts only what one TLS context trusts."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        super().__init__()

    def _opened(self) -> ssl.SSLContext:
        # Reading the machine's authorities takes 20 ms.
        self._context = self._context or ssl.create_default_context()
        return self._context

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        self.poolmanager.connection_pool_kw["ssl_context"] = self._opened()
        return super().get_connection_with_tls_context(*args, **kwargs)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        return super().proxy_manager_for(proxy, ssl_context=self._opened(), **kwargs)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Do nothing: the context verifies certificates."""


def _no_reply(error: BaseException) -> NoReply:
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Untrusted(cause.verify_message)
    # The text of an error from requests shows the address. The operating system's text does not.
    reasons = (cause.strerror for cause in chain if isinstance(cause, OSError) and cause.strerror)
    return NoReply(next(reasons, type(chain[-1]).__name__))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def post_json(
    clock: Clock, shown: str, url: str, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Deliver a JSON body in at most `ATTEMPTS` attempts. ``shown`` replaces the address in messages.

    Raises Unavailable if a later call may succeed, otherwise ConfigurationError. Redirects are not followed.
    """
    if parse_address(url) is None:
        raise ConfigurationError(
            f"the address of {shown} is not an http or https URL", next_step="correct it"
        )
    client = HttpClient(POST_SECONDS)
    sent = {"Content-Type": "application/json", **(headers or {})}
    for attempt in range(1, ATTEMPTS + 1):
        pause = _PAUSE_SECONDS
        try:
            reply = client.send("POST", url, body, sent, redirects=False)
            if 200 <= reply.status < 300:
                return
            why = f"HTTP {reply.status}"
            if reply.status != 429 and reply.status < 500:
                raise ConfigurationError(f"{shown} refuses the message: {why}", next_step="check its address")
            pause = _asked_pause(reply.headers.get("Retry-After", ""), clock)
        except Untrusted as error:
            raise ConfigurationError(
                f"the certificate of {shown} is not trusted: {error}",
                next_step="check the address and the machine's certificate authorities",
            ) from None
        except NoReply as error:
            why = str(error)
        if attempt == ATTEMPTS or pause > LONGEST_PAUSE_SECONDS:
            break
        clock.sleep(pause)
    raise Unavailable(f"{shown} does not accept the message: {why}", next_step="KBQ tries again later")


def _asked_pause(retry_after: str, clock: Clock) -> float:
    """Seconds until the time of a ``Retry-After`` header, which is a number or a date."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        until = parsedate_to_datetime(retry_after).timestamp()
    except (TypeError, ValueError, OverflowError):
        return _PAUSE_SECONDS
    return max(_PAUSE_SECONDS, until - clock.now_ms() / 1000)
