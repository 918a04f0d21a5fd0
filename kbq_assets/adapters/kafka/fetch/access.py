"""librdkafka's options as this reader understands them; what it does not, librdkafka reads with."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.adapters.kafka.fetch.protocol import Node
from kbq_assets.adapters.kafka.fetch.sasl import MECHANISMS, Login
from kbq_assets.core.errors import ConfigurationError

_SPOKEN: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "enable.ssl.certificate.verification",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "receive.message.max.bytes",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
_PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_PORT: Final = 9092
#: What one answer may hold, compressed.
_FETCH_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True)
class Access:
    """How to reach and log in to brokers. Holds secrets: never logged or shipped; its repr hides them."""

    client_id: str
    bootstrap: tuple[Node, ...]
    tls: bool = False
    login: Login | None = None
    ca_location: str = ""
    ca_pem: str = field(default="", repr=False)
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    verifies_certificate: bool = True
    verifies_host: bool = True
    connect_seconds: float = 30.0
    answer_seconds: float = 60.0
    wait_seconds: float = 0.5
    fetch_bytes: int = _FETCH_BYTES
    most_bytes: int = 256 * 1024 * 1024
    """Of one answer, and of one batch unpacked."""

    def context(self) -> ssl.SSLContext:
        """For TLS. Raises ConfigurationError for files that cannot be read or are no certificates."""
        try:
            context = ssl.create_default_context(cafile=self.ca_location or None, cadata=self.ca_pem or None)
            if self.certificate:
                # A function: OpenSSL would ask at the terminal for a password that is missing.
                context.load_cert_chain(self.certificate, self.key or None, lambda: self.key_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"the Kafka options ssl.*: {type(error).__name__}: {error}",
                next_step="check ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password",
            ) from None
        context.check_hostname = self.verifies_host and self.verifies_certificate
        if not self.verifies_certificate:
            context.verify_mode = ssl.CERT_NONE
        return context


def not_spoken(options: Mapping[str, str]) -> str:
    """The first option that only librdkafka understands; empty if there is none. Values may be references."""
    for name in sorted(options.keys() - _SPOKEN):
        return name
    mechanism = _mechanism(options)
    if _protocol(options).startswith("sasl") and mechanism not in MECHANISMS:
        return f"sasl.mechanism {mechanism}"
    return ""


def access_of(client: Mapping[str, str]) -> Access:
    """From `client_options`. Raises ConfigurationError for values that make no sense, never quoting a secret."""
    protocol = _protocol(client)
    if protocol not in _PROTOCOLS:
        raise _wrong("security.protocol", f"one of {', '.join(_PROTOCOLS)}")
    login = None
    if protocol.startswith("sasl"):
        login = Login(_mechanism(client), client.get("sasl.username", ""), client.get("sasl.password", ""))
    return Access(
        client_id=client.get("client.id", "kbq"),
        bootstrap=parse_servers(client["bootstrap.servers"]),
        tls=protocol.endswith("ssl"),
        login=login,
        ca_location=client.get("ssl.ca.location", ""),
        ca_pem=client.get("ssl.ca.pem", ""),
        certificate=client.get("ssl.certificate.location", ""),
        key=client.get("ssl.key.location", ""),
        key_password=client.get("ssl.key.password", ""),
        verifies_certificate=_flag(client, "enable.ssl.certificate.verification"),
        verifies_host=client.get("ssl.endpoint.identification.algorithm", "https") == "https",
        connect_seconds=_number(client, "socket.connection.setup.timeout.ms", 30_000) / 1000,
        answer_seconds=_number(client, "socket.timeout.ms", 60_000) / 1000,
        wait_seconds=_number(client, "fetch.wait.max.ms", 500) / 1000,
        fetch_bytes=_number(client, "max.partition.fetch.bytes", _FETCH_BYTES),
        most_bytes=_number(client, "receive.message.max.bytes", 256 * 1024 * 1024),
    )


def parse_servers(servers: str) -> tuple[Node, ...]:
    """``host:port, [::1]:9092, host``: nodes to ask first. Raises ConfigurationError."""
    found = []
    for part in filter(None, (part.strip() for part in servers.split(","))):
        address = part.rpartition("://")[2]
        host, separator, port = address.rpartition(":")
        if not separator or address.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = address, str(_PORT)
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ConfigurationError("the Kafka bootstrap servers are not host:port", next_step="host:port,…")
        found.append(Node(host.strip("[]"), int(port)))
    if not found:
        raise ConfigurationError("no Kafka bootstrap servers are set", next_step="host:port, or several")
    return tuple(found)


def _protocol(options: Mapping[str, str]) -> str:
    return options.get("security.protocol", "plaintext").lower()


def _mechanism(options: Mapping[str, str]) -> str:
    return options.get("sasl.mechanism", options.get("sasl.mechanisms", "GSSAPI")).upper()


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "true").lower()
    if value not in ("true", "false"):
        raise _wrong(name, "true or false")
    return value == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    with contextlib.suppress(ValueError):
        number = int(options.get(name, default))
        if 0 < number < 2**31:
            return number
    raise _wrong(name, "a whole number above 0")


def _wrong(name: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"the Kafka option {name} is not {wanted}", next_step=f"set {name}: {wanted}")
