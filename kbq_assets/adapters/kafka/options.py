"""Client options: users' options with librdkafka's own names, limited by an allow-list, and KBQ's own options, which
users cannot change.

Isolation level, offset resets, commits and checksums decide whether records are lost, so users cannot set them.
A value may be a reference, such as ``env:NAME``. The process that opens the client resolves it, so no secret
travels with the settings.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping
from typing import Final

from kbq_assets.adapters.secrets import resolve
from kbq_assets.core.config.secret_references import is_reference
from kbq_assets.core.errors import ConfigurationError

LOGGER: Final = logging.getLogger("kbq.kafka")
"""The logger for librdkafka's own messages, which would otherwise go to standard error."""

HIDDEN: Final = "****"
#: Characters of a secret that is hidden inside words, too.
_LONG: Final = 8

_SECRETS: Final = frozenset(
    {"sasl.password", "sasl.oauthbearer.config", "sasl.oauthbearer.client.secret",
     "sasl.oauthbearer.assertion.private.key.pem", "sasl.oauthbearer.assertion.private.key.passphrase",
     "ssl.key.password", "ssl.key.pem", "ssl.keystore.password"}
)  # fmt: skip

#: Options of consumers only; an admin client would warn about them.
_FETCH: Final = frozenset(
    {"check.crcs", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes", "fetch.min.bytes",
     "fetch.queue.backoff.ms", "fetch.wait.max.ms", "max.partition.fetch.bytes",
     "queued.max.messages.kbytes", "queued.min.messages"}
)  # fmt: skip

# Omitted on purpose: options that run a command (sasl.kerberos.kinit.cmd) or load code (plugin.library.paths,
# ssl.engine.location), and `debug`, whose lines contain records.
_CLIENT: Final = frozenset(
    {"broker.address.family", "broker.address.ttl", "client.dns.lookup", "client.id", "client.rack",
     "connections.max.idle.ms", "enable.ssl.certificate.verification", "https.ca.location", "https.ca.pem",
     "message.max.bytes", "metadata.max.age.ms", "metadata.recovery.strategy", "receive.message.max.bytes",
     "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
     "sasl.kerberos.keytab", "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.principal",
     "sasl.kerberos.service.name", "sasl.mechanism", "sasl.mechanisms",
     "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.claim.aud",
     "sasl.oauthbearer.assertion.claim.iss", "sasl.oauthbearer.assertion.claim.sub",
     "sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.client.id",
     "sasl.oauthbearer.extensions", "sasl.oauthbearer.grant.type", "sasl.oauthbearer.method",
     "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url", "sasl.username",
     "security.protocol",
     "socket.connection.setup.timeout.ms", "socket.keepalive.enable", "socket.max.fails",
     "socket.nagle.disable", "socket.receive.buffer.bytes", "socket.send.buffer.bytes", "socket.timeout.ms",
     "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem", "ssl.cipher.suites",
     "ssl.crl.location", "ssl.curves.list", "ssl.endpoint.identification.algorithm", "ssl.key.location",
     "ssl.keystore.location", "ssl.providers", "ssl.sigalgs.list",
     "topic.metadata.refresh.interval.ms"}
)  # fmt: skip

#: Schemes that librdkafka accepts before a server.
_SCHEMES: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

_OURS: Final[Mapping[str, str]] = {
    "auto.offset.reset": "KBQ stops rather than jump to another offset",
    "bootstrap.servers": "set KBQ_KAFKA_BOOTSTRAP_SERVERS",
    "check.crcs": "checksums are always verified",
    "enable.auto.commit": "positions are in KBQ's commits",
    "enable.auto.offset.store": "positions are in KBQ's commits",
    "enable.partition.eof": "the end of a range depends on it",
    "group.id": "KBQ joins no consumer group",
    "isolation.level": "only committed records are read",
}

ALLOWED: Final = (_CLIENT | _FETCH | _SECRETS) - set(_OURS)
"""Every option a user may set."""


def check_options(options: Mapping[str, str]) -> None:
    """Raise ConfigurationError for options that are not on the allow-list. The error names options, never values."""
    for name in options:
        if name in _OURS:
            raise ConfigurationError(f"the Kafka option {name} cannot be set", next_step=_OURS[name])
        if name not in ALLOWED:
            near = ["bootstrap.servers"] if name.startswith("bootstrap") else []
            near = near or difflib.get_close_matches(name, sorted({*ALLOWED, *_OURS}), 1)
            hint = f"did you mean {near[0]}?" if near else f"options: {', '.join(sorted(ALLOWED))}"
            if near and near[0] in _OURS:
                hint = f"did you mean {near[0]}? {_OURS[near[0]]}"
            raise ConfigurationError(f"unknown Kafka option {name}", next_step=hint)


def client_options(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's configuration for any client, with resolved references. Never show, log or ship it.

    Raises ConfigurationError for an unknown option or an unresolvable reference.
    """
    check_options(options)
    if not bootstrap_servers.strip():
        raise ConfigurationError("no Kafka bootstrap servers are set", next_step="host:port, or several")
    _check_schemes(bootstrap_servers)
    resolved = {name: resolve(f"the Kafka option {name}", value) for name, value in options.items()}
    return {"client.id": "kbq", **resolved, "bootstrap.servers": bootstrap_servers}


def _check_schemes(bootstrap_servers: str) -> None:
    """Raise ConfigurationError for URLs: librdkafka ignores them, and then finds no broker."""
    for server in bootstrap_servers.split(","):
        scheme, separator, _ = server.strip().partition("://")
        if separator and scheme.lower() not in _SCHEMES:
            raise ConfigurationError(
                f"a Kafka bootstrap server begins with {scheme}://", next_step="write host:port,…"
            )


def admin_options(client: Mapping[str, str]) -> dict[str, str]:
    """`client_options` without the options that only consumers accept."""
    return {name: value for name, value in client.items() if name not in _FETCH}


def redacted(options: Mapping[str, str]) -> dict[str, str]:
    """Options to show, with secrets hidden and references visible."""
    return {name: _shown(name, value) for name, value in options.items()}


def plain_secrets(options: Mapping[str, str]) -> tuple[str, ...]:
    """Names of options that hold a plain secret instead of a reference."""
    return tuple(sorted(n for n in _SECRETS & options.keys() if options[n] and not is_reference(options[n])))


def without_secrets(text: str, client: Mapping[str, str]) -> str:
    """A client's message, with all secrets in its configuration hidden. A short one is hidden only as a whole word:
    the letters of the password `b` are in most messages."""
    for name in _SECRETS & client.keys():
        if secret := client[name]:
            pattern = re.escape(secret)
            text = re.sub(pattern if len(secret) >= _LONG else rf"(?<!\w){pattern}(?!\w)", HIDDEN, text)
    return text


def _shown(name: str, value: str) -> str:
    return HIDDEN if name in _SECRETS and not is_reference(value) else value
