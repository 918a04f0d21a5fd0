"""Requests for JSON, bounded in time and size, that never tell a secret."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

from kbq_assets.core.errors import ConfigurationError, Unavailable

MAX_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 16
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Tls:
    """Files in PEM format. Without ``ca_file`` the machine's certificate authorities are trusted."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """The TLS side of a connection. Raises ConfigurationError when a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file or None, self._password)
        except OSError as error:  # ssl.SSLError is one
            files = ", ".join(filter(None, (self.ca_file, self.certificate_file, self.key_file)))
            raise ConfigurationError(
                f"the registry's TLS files cannot be used ({error.strerror or type(error).__name__}): {files}",
                next_step="they must be readable PEM files, the key that of the certificate",
            ) from error
        return context

    def _password(self) -> str:
        # Called for an encrypted key only; without this OpenSSL would ask at the terminal.
        return self.key_password


@dataclass(frozen=True)
class Credentials:
    """A bearer token, or a user's name and password, or nothing."""

    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def header(self) -> str:
        """The Authorization header's value, '' for none. Raises ConfigurationError for an impossible token."""
        if self.token:
            return f"Bearer {_checked_token(self.token)}"
        if self.username or self.password:
            return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return ""


@dataclass(frozen=True)
class Reply:
    """An answer. ``body`` is None where it is not JSON."""

    status: int
    body: Any


class Endpoint:
    """One base address. Credentials in the address are taken out of it, and used unless others are given."""

    def __init__(self, url: str, credentials: Credentials, context: ssl.SSLContext, timeout: float) -> None:
        parts = _checked(url)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._authorization = credentials.header or _credentials_in(parts).header
        self._timeout_seconds = timeout
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
        if parts.hostname in _LOOPBACK:
            # The environment's proxy is for other hosts than this one.
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str) -> Reply:
        """The answer to a request, whatever its status. Raises Unavailable without one, ConfigurationError where
        the server's certificate is not trusted."""
        return self._send(urllib.request.Request(f"{self.address}/{path}", headers={"Accept": _ACCEPT}))

    def post(self, path: str, body: Any) -> Reply:
        """The answer to a request with a JSON body. Raises like `get`."""
        headers = {"Accept": _ACCEPT, "Content-Type": "application/vnd.schemaregistry.v1+json"}
        data = json.dumps(body).encode()
        return self._send(urllib.request.Request(f"{self.address}/{path}", data, headers, method="POST"))

    def _send(self, request: urllib.request.Request) -> Reply:
        if self._authorization:
            # Not sent on to where a redirection leads.
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            return self._reply(request, time.monotonic() + self._timeout_seconds)
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(error) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise self._untrusted(error.reason) from error
            raise self._unavailable(str(error.reason)) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(str(error) or type(error).__name__) from error

    def _reply(self, request: urllib.request.Request, deadline: float) -> Reply:
        try:
            response = self._opener.open(request, timeout=self._timeout_seconds)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            status = response.status
            assert isinstance(status, int)
            return Reply(status, _json(self._body(response, deadline)))

    def _body(self, response: Any, deadline: float) -> bytes:
        body = bytearray()
        while data := response.read1(_READ_BYTES):
            body += data
            if len(body) > MAX_BYTES:
                raise self._unavailable(f"its answer is over {MAX_BYTES >> 20} MB")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no complete answer in {self._timeout_seconds:g} s")
        return bytes(body)

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            f"the schema registry at {self.address} does not answer: {reason}",
            next_step="start it, or check KBQ_REGISTRY_URL and the network; nothing is lost meanwhile",
        )

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> ConfigurationError:
        return ConfigurationError(
            f"the certificate of the schema registry at {self.address} is not trusted: {error.verify_message}",
            next_step="set KBQ_REGISTRY_CA_FILE to the authorities that sign it, or mend the host name",
        )


def endpoints(urls: str, credentials: Credentials, tls: Tls, timeout: float) -> list[Endpoint]:
    """The addresses of a list with commas. Raises ConfigurationError."""
    # Reading the machine's authorities takes 20 ms; this context, which trusts none, guards against redirections.
    context = tls.context() if "https:" in urls.lower() else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return [Endpoint(url, credentials, context, timeout) for url in urls.split(",")]


def _checked(url: str) -> SplitResult:
    # The address may hold a password: no message shows it.
    with contextlib.suppress(ValueError):
        parts = urlsplit(url.strip())
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ConfigurationError(
        "the schema registry's address is not an HTTP address",
        next_step="set KBQ_REGISTRY_URL, https://host:port",
    )


def _checked_token(token: str) -> str:
    # Left to itself, the HTTP client would refuse it in a message that shows it.
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            "the registry's token holds characters that a header cannot",
            next_step="set KBQ_REGISTRY_TOKEN again",
        )
    return token


def _credentials_in(parts: SplitResult) -> Credentials:
    return Credentials(unquote(parts.username or ""), unquote(parts.password or ""))


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
