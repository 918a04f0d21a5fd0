"""The addresses of a schema registry, with its credentials and TLS files."""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import SplitResult, unquote

from kbq_assets.adapters.http import HttpClient, NoReply, Oversized, Reply, Untrusted, parse_address
from kbq_assets.core.errors import ConfigurationError, Unavailable, UnstageableSchema

_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = f"{_CONTENT}, application/json"


@dataclass(frozen=True)
class Tls:
    """Files in PEM format. Without ``ca_file``, the machine's certificate authorities are trusted."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)

    def context(self) -> ssl.SSLContext:
        """The TLS settings of a connection. Raises ConfigurationError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
            if self.certificate_file:
                context.load_cert_chain(self.certificate_file, self.key_file or None, self._password)
        except OSError as error:  # includes ssl.SSLError
            files = ", ".join(filter(None, (self.ca_file, self.certificate_file, self.key_file)))
            raise ConfigurationError(
                f"the registry's TLS files cannot be used ({error.strerror or type(error).__name__}): {files}",
                next_step="use readable PEM files, and the key that matches the certificate",
            ) from error
        return context

    def _password(self) -> str:
        # Called only for an encrypted key; otherwise OpenSSL would ask at the terminal.
        return self.key_password


@dataclass(frozen=True)
class Credentials:
    """A bearer token, a user's name and password, or neither."""

    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The ``Authorization`` header, if any. Raises ConfigurationError for a token that is invalid in a header."""
        if self.token:
            return {"Authorization": f"Bearer {_checked_token(self.token)}"}
        if self.username or self.password:
            basic = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {basic}"}
        return {}


class Endpoint:
    """One base address. Credentials in the address are removed from it, and used unless others are configured."""

    def __init__(self, url: str, credentials: Credentials, client: HttpClient) -> None:
        parts = _checked(url)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._headers = {"Accept": _ACCEPT, **(credentials.headers or _credentials_in(parts).headers)}
        self._client = client

    def get(self, path: str) -> Reply:
        """The response with any status. Raises Unavailable, ConfigurationError for an untrusted certificate, or
        UnstageableSchema for a response that exceeds the size limit."""
        return self._send("GET", path, None, self._headers)

    def post(self, path: str, body: Any) -> Reply:
        """The response to a JSON body. Raises the errors of `get`."""
        return self._send(
            "POST", path, json.dumps(body).encode(), {**self._headers, "Content-Type": _CONTENT}
        )

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        try:
            return self._client.send(method, f"{self.address}/{path}", body, headers)
        except Untrusted as error:
            raise ConfigurationError(
                f"the certificate of the schema registry at {self.address} is not trusted: {error}",
                next_step="set KBQ_REGISTRY_CA_FILE to the authorities that signed it, or correct the host name",
            ) from None
        except Oversized as error:  # permanent: neither another address nor another run helps
            raise UnstageableSchema(f"the schema registry at {self.address}: {error}") from None
        except NoReply as error:
            raise Unavailable(
                f"the schema registry at {self.address} does not answer: {error}",
                next_step="start it, or check KBQ_REGISTRY_URL and the network; nothing is lost meanwhile",
            ) from None


def endpoints(urls: str, credentials: Credentials, tls: Tls, timeout_seconds: float) -> list[Endpoint]:
    """The endpoints of a comma-separated list of addresses. Raises ConfigurationError."""
    # Reading the machine's authorities takes 20 ms. The other context trusts none, in case of a redirect to https.
    context = tls.context() if "https:" in urls.lower() else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = HttpClient(timeout_seconds, context)
    return [Endpoint(url, credentials, client) for url in urls.split(",")]


def _checked(url: str) -> SplitResult:
    # The address may contain a password, so no message shows it.
    if (parts := parse_address(url.strip())) is None:
        raise ConfigurationError(
            "the schema registry's address is not an HTTP address",
            next_step="set KBQ_REGISTRY_URL, https://host:port",
        )
    return parts


def _checked_token(token: str) -> str:
    # The HTTP client would reject it with a message that shows it.
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            "the registry's token has characters that are invalid in a header",
            next_step="set KBQ_REGISTRY_TOKEN again",
        )
    return token


def _credentials_in(parts: SplitResult) -> Credentials:
    return Credentials(unquote(parts.username or ""), unquote(parts.password or ""))
