"""Options as the fetch reader understands them, and a login that a false broker cannot pass."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest

from kbq_assets.adapters.kafka.fetch.access import access_of, not_spoken, parse_servers
from kbq_assets.adapters.kafka.fetch.errors import Refused
from kbq_assets.adapters.kafka.fetch.protocol import Node
from kbq_assets.adapters.kafka.fetch.sasl import Login, log_in
from kbq_assets.core.errors import ConfigurationError

SERVERS = {"bootstrap.servers": "a:1"}


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a:1", [Node("a", 1)]),
        (" a , b:2,", [Node("a", 9092), Node("b", 2)]),
        ("[::1]:3,[fe80::1],::1", [Node("::1", 3), Node("fe80::1", 9092), Node("::1", 9092)]),
        ("PLAINTEXT://a:1", [Node("a", 1)]),
    ],
)
def test_servers_are_hosts_and_ports(servers: str, expected: list[Node]) -> None:
    assert list(parse_servers(servers)) == expected


@pytest.mark.parametrize("servers", ["", ",", "a:b", ":1", "a:70000", "a:-1"])
def test_servers_that_are_none_are_refused(servers: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_servers(servers)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ""),
        ({"security.protocol": "SSL", "ssl.ca.location": "ca.pem", "client.id": "me"}, ""),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "plain"}, ""),
        ({"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512"}, ""),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism OAUTHBEARER"),
        ({"security.protocol": "sasl_ssl"}, "sasl.mechanism GSSAPI"),
        ({"queued.min.messages": "5", "ssl.key.pem": "x"}, "queued.min.messages"),
        ({"client.rack": "here"}, "client.rack"),
    ],
)
def test_what_only_librdkafka_understands_is_known_before(options: dict[str, str], expected: str) -> None:
    assert not_spoken(options) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("security.protocol", "sideways"),
        ("enable.ssl.certificate.verification", "maybe"),
        ("socket.timeout.ms", "soon"),
        ("max.partition.fetch.bytes", "-1"),
    ],
)
def test_values_without_sense_are_configuration_errors(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        access_of({**SERVERS, name: value})


def test_secrets_are_not_in_its_repr() -> None:
    options = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "open-sesame",
        "ssl.key.password": "open-sesame",
    }
    access = access_of({**SERVERS, **options})
    assert access.login is not None
    assert access.login.password == access.key_password == "open-sesame"
    assert "open-sesame" not in repr(access)


class FakeServer:
    """A SCRAM-SHA-256 server, right but for ``changes`` of its two messages."""

    def __init__(self, password: str, **changes: Any) -> None:
        self._password, self._changes = password, changes
        self.sent: list[bytes] = []

    def __call__(self, message: bytes) -> bytes:
        self.sent.append(message)
        if len(self.sent) == 1:
            nonce = message.decode().rpartition("r=")[2]
            self._first = self._changes.get("first", "r={nonce}more,s=c2FsdA==,i=4096").format(nonce=nonce)
            return bytes(self._first, "utf-8")
        bare = message.decode().partition(",p=")[0]
        signed = ",".join((self.sent[0].decode().removeprefix("n,,"), self._first, bare)).encode()
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), b"salt", 4096)
        signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return b"v=" + base64.b64encode(signature)


def test_a_server_that_knows_the_password_is_trusted() -> None:
    server = FakeServer("open-sesame")
    log_in(Login("SCRAM-SHA-256", "a,b=c", "open-sesame"), server, nonce="abc")
    assert server.sent[0] == b"n,,n=a=2Cb=3Dc,r=abc"
    assert server.sent[1].startswith(b"c=biws,r=abcmore,p=")


@pytest.mark.parametrize(
    "first",
    [
        "",
        "noise",
        "r=stolen,s=c2FsdA==,i=4096",
        "r={nonce}x,s=c2FsdA==,i=1",
        "r={nonce}x,s=c2FsdA==,i=999999999",
        "r={nonce}x,s=c2FsdA==,i=many",
        "r={nonce}x,s=!,i=4096",
    ],
)
def test_a_challenge_that_is_wrong_gets_no_proof(first: str) -> None:
    server = FakeServer("open-sesame", first=first)
    with pytest.raises(Refused):
        log_in(Login("SCRAM-SHA-256", "me", "open-sesame"), server)
    assert len(server.sent) == 1


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    with pytest.raises(Refused, match="does not know"):
        log_in(Login("SCRAM-SHA-256", "me", "open-sesame"), FakeServer("guess"))
