"""Parses librdkafka's options for this reader. If it does not support an option, librdkafka reads instead."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kbq_assets.adapters.kafka.fetch.errors import NotSpoken
from kbq_assets.adapters.kafka.fetch.sasl import MECHANISMS, OAUTHBEARER, Login
from kbq_assets.adapters.kafka.fetch.tls import BrokerTls
from kbq_assets.adapters.kafka.fetch.tokens import TokenEndpoint, Tokens
from kbq_assets.adapters.kafka.fetch.wire_protocol import BrokerAddress
from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.errors import ConfigurationError

_SPOKEN: Final = frozenset(
    {"bootstrap.servers", "client.id", "enable.ssl.certificate.verification", "fetch.wait.max.ms",
     "https.ca.location", "max.partition.fetch.bytes", "receive.message.max.bytes",
     "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret",
     "sasl.oauthbearer.extensions", "sasl.oauthbearer.grant.type", "sasl.oauthbearer.method",
     "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url", "sasl.password", "sasl.username",
     "security.protocol",
     "socket.connection.setup.timeout.ms", "socket.timeout.ms",
     "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.endpoint.identification.algorithm",
     "ssl.key.location", "ssl.key.password"}
)  # fmt: skip
_CHOICES: Final[Mapping[str, Mapping[str, str | bool]]] = {
    "security.protocol": {name: name for name in ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")},
    "enable.ssl.certificate.verification": {
        **dict.fromkeys(("true", "t", "1"), True),
        **dict.fromkeys(("false", "f", "0"), False),
    },
    "ssl.endpoint.identification.algorithm": {"https": True, "none": False},
}
#: The supported ways of OAUTHBEARER to get a token, with librdkafka's names. Only librdkafka supports others.
_TOKEN_OPTIONS: Final = {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.grant.type": "client_credentials",
}
_PORT: Final = 9092
#: A name of an OAUTHBEARER extension (KIP-342).
_EXTENSION: Final = re.compile("[A-Za-z]+")
#: Maximum compressed bytes of one answer.
_FETCH_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True)
class Access:
    """How to reach brokers and log in. It contains secrets, so never log or ship it; its repr hides them."""

    client_id: str
    bootstrap: tuple[BrokerAddress, ...]
    tls: BrokerTls | None = None
    login: Login | None = None
    connect_seconds: float = 30.0
    answer_seconds: float = 60.0
    wait_seconds: float = 0.5
    fetch_bytes: int = _FETCH_BYTES
    most_bytes: int = 256 * 1024 * 1024
    """Limit of one answer, and of one unpacked batch."""


def not_spoken(options: Mapping[str, str]) -> str:
    """The first option that only librdkafka supports; "" if there is none. Values may be references."""
    for name in sorted(options.keys() - _SPOKEN):
        return name
    plain = {name: value for name, value in options.items() if not is_reference(value)}
    for name in sorted(plain.keys() & _PARSERS.keys()):
        try:
            _PARSERS[name](plain[name])
        except ValueError:
            return name
    mechanism = _mechanism(options)
    if options.get("security.protocol", "").lower().startswith("sasl"):
        if mechanism not in MECHANISMS:
            return f"sasl.mechanism {mechanism}"
        if mechanism == OAUTHBEARER:
            return _token_method_not_spoken(options)
    return ""


def _token_method_not_spoken(options: Mapping[str, str]) -> str:
    """The option that makes OAUTHBEARER get its token in a way that only librdkafka supports; "" if there is none."""
    usual = {"sasl.oauthbearer.method": "default"}  # librdkafka's default requires a callback
    for name, known in _TOKEN_OPTIONS.items():
        value = options.get(name, usual.get(name, known))
        if value != known and not is_reference(value):
            return name
    return ""


def access_of(client: Mapping[str, str]) -> Access:
    """The access for `client_options`. Raises ConfigurationError for invalid servers, or NotSpoken for values that only
    librdkafka supports. Neither quotes a value."""
    protocol: str = _value(client, "security.protocol", "plaintext")
    login = None
    if protocol.startswith("sasl"):
        login = _login(client)
    tls = BrokerTls(
        ca_location=_value(client, "ssl.ca.location", ""),
        ca_pem=client.get("ssl.ca.pem", ""),
        certificate=client.get("ssl.certificate.location", ""),
        key=client.get("ssl.key.location", ""),
        key_password=client.get("ssl.key.password", ""),
        verifies_certificate=_value(client, "enable.ssl.certificate.verification", "true"),
        verifies_host=_value(client, "ssl.endpoint.identification.algorithm", "https"),
    )
    return Access(
        client_id=client.get("client.id", "kbq"),
        bootstrap=parse_servers(client["bootstrap.servers"]),
        tls=tls if protocol.endswith("ssl") else None,
        login=login,
        connect_seconds=_value(client, "socket.connection.setup.timeout.ms", "30000") / 1000,
        answer_seconds=_value(client, "socket.timeout.ms", "60000") / 1000,
        wait_seconds=_value(client, "fetch.wait.max.ms", "500") / 1000,
        fetch_bytes=_value(client, "max.partition.fetch.bytes", str(_FETCH_BYTES)),
        most_bytes=_value(client, "receive.message.max.bytes", str(256 * 1024 * 1024)),
    )


def _login(client: Mapping[str, str]) -> Login:
    mechanism = _mechanism(client)
    if mechanism not in MECHANISMS:
        raise NotSpoken("the mechanism of the Kafka option sasl.mechanism")
    if mechanism != OAUTHBEARER:
        return Login(mechanism, client.get("sasl.username", ""), client.get("sasl.password", ""))
    if option := _token_method_not_spoken(client):
        raise NotSpoken(f"the value of the Kafka option {option}")
    extensions = _value(client, "sasl.oauthbearer.extensions", "")
    return Login(mechanism, token=_tokens(_token_endpoint(client)), extensions=extensions)


@functools.lru_cache(maxsize=16)
def _tokens(endpoint: TokenEndpoint) -> Tokens:
    """The source of tokens for an endpoint. There is one per process, so that connections share a token."""
    return Tokens(endpoint)


def _token_endpoint(client: Mapping[str, str]) -> TokenEndpoint:
    prefix = "sasl.oauthbearer."
    needed = [f"{prefix}{name}" for name in ("token.endpoint.url", "client.id", "client.secret")]
    if missing := [name for name in needed if not client.get(name)]:
        raise ConfigurationError(
            f"OAUTHBEARER needs the Kafka options {', '.join(missing)}",
            next_step="set them, as variables KBQ_KAFKA_…",
        )
    url, client_id, client_secret = (client[name] for name in needed)
    scope, authorities = client.get(f"{prefix}scope", ""), _value(client, "https.ca.location", "")
    return TokenEndpoint(url, client_id, client_secret, scope, authorities)


def parse_servers(servers: str) -> tuple[BrokerAddress, ...]:
    """The addresses in a list such as ``host:port, [::1]:9092, host``. Raises ConfigurationError."""
    found = []
    for part in filter(None, (part.strip() for part in servers.split(","))):
        address = part.rpartition("://")[2]
        host, separator, port = address.rpartition(":")
        if not separator or address.endswith("]") or (":" in host and not host.startswith("[")):
            host, port = address, str(_PORT)
        if not host or not port.isdecimal() or int(port) > 65_535:
            raise ConfigurationError("the Kafka bootstrap servers are not host:port", next_step="host:port,…")
        found.append(BrokerAddress(host.strip("[]"), int(port)))
    if not found:
        raise ConfigurationError("no Kafka bootstrap servers are set", next_step="host:port, or several")
    return tuple(found)


def _mechanism(options: Mapping[str, str]) -> str:
    return options.get("sasl.mechanism", options.get("sasl.mechanisms", "GSSAPI")).upper()


def _value(client: Mapping[str, str], name: str, default: str) -> Any:
    try:
        return _PARSERS[name](client.get(name, default))
    except ValueError:
        raise NotSpoken(f"the value of the Kafka option {name}") from None


def _choice(name: str) -> Callable[[str], str | bool]:
    """A parser for an option with a few values. As in librdkafka, case does not matter."""

    def parse(value: str) -> str | bool:
        if value.lower() not in _CHOICES[name]:
            raise ValueError(name)
        return _CHOICES[name][value.lower()]

    return parse


def _location(value: str) -> str:
    """The path of a file or folder. Only librdkafka supports probing."""
    if value == "probe":
        raise ValueError(value)
    return value


def _extensions(value: str) -> tuple[tuple[str, str], ...]:
    """The pairs in ``name=value,…``, parsed as in librdkafka."""
    pairs = dict(part.partition("=")[::2] for part in value.split(",")) if value else {}
    if not all(_EXTENSION.fullmatch(name) for name in pairs) or "auth" in pairs:
        raise ValueError(value)
    if not all(each.isascii() and each.isprintable() for each in pairs.values()):
        raise ValueError(value)
    return tuple(pairs.items())


def _number(value: str) -> int:
    """A positive integer. librdkafka also accepts 0, hexadecimal and octal numbers."""
    if not re.fullmatch("[1-9][0-9]{0,9}", value) or int(value) >= 2**31:
        raise ValueError(value)
    return int(value)


#: Parsers of options. They raise ValueError for values that only librdkafka supports.
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    **{name: _choice(name) for name in _CHOICES},
    **dict.fromkeys(
        (
            "fetch.wait.max.ms",
            "max.partition.fetch.bytes",
            "receive.message.max.bytes",
            "socket.connection.setup.timeout.ms",
            "socket.timeout.ms",
        ),
        _number,
    ),
    **dict.fromkeys(("https.ca.location", "ssl.ca.location"), _location),
    "sasl.oauthbearer.extensions": _extensions,
}
