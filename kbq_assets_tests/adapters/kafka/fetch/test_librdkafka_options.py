"""Options as the fetch reader parses them, and a login that a false broker cannot pass."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ssl
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from cryptography import x509

from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused, NotSpoken
from kbq_assets.adapters.kafka.fetch.librdkafka_options import access_of, not_spoken, parse_servers
from kbq_assets.adapters.kafka.fetch.sasl import Login, log_in
from kbq_assets.adapters.kafka.fetch.wire_protocol import BrokerAddress
from kbq_assets.adapters.kafka.options import LOGGER
from kbq_assets.adapters.kafka.reader import open_reader
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets_tests.adapters.kafka.fetch.certificates import Certificates, write_certificates
from kbq_assets_tests.fixtures.variables import Variables

SERVERS = {"bootstrap.servers": "a:1"}
NOBODY = "127.0.0.1:1"
RANGE = OffsetRange(TopicPartition("t", 0), 0, 1)


GRANT_TYPE = "sasl.oauthbearer.grant.type"
OIDC = {
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://id.example.com/token",
    "sasl.oauthbearer.client.id": "kbq",
    "sasl.oauthbearer.client.secret": "open-sesame",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
}


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a:1", [BrokerAddress("a", 1)]),
        (" a , b:2,", [BrokerAddress("a", 9092), BrokerAddress("b", 2)]),
        (
            "[::1]:3,[fe80::1],::1",
            [BrokerAddress("::1", 3), BrokerAddress("fe80::1", 9092), BrokerAddress("::1", 9092)],
        ),
        ("PLAINTEXT://a:1", [BrokerAddress("a", 1)]),
    ],
)
def test_servers_are_hosts_and_ports(servers: str, expected: list[BrokerAddress]) -> None:
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
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.method"),
        ({**OIDC}, ""),
        # Google's local token server, by the options of its documentation.
        ({**OIDC, "sasl.oauthbearer.token.endpoint.url": "http://localhost:14293"}, ""),
        ({**OIDC, "sasl.oauthbearer.method": "env:METHOD"}, ""),
        ({**OIDC, "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"}, GRANT_TYPE),
        ({**OIDC, "sasl.oauthbearer.extensions": "1=2"}, "sasl.oauthbearer.extensions"),
        ({**OIDC, "sasl.oauthbearer.extensions": "auth=mine"}, "sasl.oauthbearer.extensions"),
        ({"security.protocol": "sasl_ssl"}, "sasl.mechanism GSSAPI"),
        ({"queued.min.messages": "5", "ssl.key.pem": "x"}, "queued.min.messages"),
        ({"client.rack": "here"}, "client.rack"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/etc/ssl/certs"}, ""),
        ({"ssl.ca.location": "probe"}, "ssl.ca.location"),
        ({"enable.ssl.certificate.verification": "maybe"}, "enable.ssl.certificate.verification"),
        ({"ssl.endpoint.identification.algorithm": ""}, "ssl.endpoint.identification.algorithm"),
        ({"fetch.wait.max.ms": "0"}, "fetch.wait.max.ms"),
        ({"socket.timeout.ms": "0x100"}, "socket.timeout.ms"),
        ({"socket.timeout.ms": "env:WHO_KNOWS", "ssl.ca.location": "file:/a/path"}, ""),
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
        ("receive.message.max.bytes", "-1"),
    ],
)
def test_values_without_sense_are_configuration_errors_by_librdkafka(name: str, value: str) -> None:
    with pytest.raises(NotSpoken, match=name):
        access_of({**SERVERS, name: value})
    source = open_reader(NOBODY, {name: value})
    with pytest.raises(ConfigurationError, match=name):
        list(source.read(RANGE))
    with pytest.raises(ConfigurationError, match=name):
        open_reader(NOBODY, {name: value}, "fetch")


def test_a_value_behind_a_reference_that_only_librdkafka_knows_is_left_to_it(
    variables: Variables,
) -> None:
    variables["KBQ_TEST_VALUE"] = "maybe"
    source = open_reader(NOBODY, {"enable.ssl.certificate.verification": "env:KBQ_TEST_VALUE"})
    with pytest.raises(ConfigurationError, match=r"Kafka client: .*enable\.ssl"):
        list(source.read(RANGE))


@pytest.mark.parametrize(
    "name", ["enable.ssl.certificate.verification", "ssl.endpoint.identification.algorithm"]
)
@pytest.mark.parametrize(
    "value", ["true", "TRUE", "t", "T", "1", "false", "F", "0", "https", "HTTPS", "Https", "none", "None"]
)
def test_words_mean_what_they_mean_to_librdkafka(name: str, value: str) -> None:
    options = {"security.protocol": "ssl", name: value}
    try:
        Consumer({**options, "group.id": "kbq"}, logger=LOGGER).close()
    except KafkaException:
        assert not_spoken(options) == name
        return
    tls = access_of({**SERVERS, **options}).tls
    assert tls is not None
    changed, other = tls.verifies_certificate, tls.verifies_host
    if name.startswith("ssl"):
        changed, other = other, changed
    assert (changed, other) == (value.lower() in ("true", "t", "1", "https"), True)


@pytest.mark.parametrize("kind", ["file", "folder", "stranger's file", "empty folder"])
def test_authorities_are_trusted_from_a_file_or_a_folder(kind: str, tmp_path: Path) -> None:
    certificates = write_certificates(tmp_path, host="127.0.0.1")
    folder = tmp_path / "authorities"
    folder.mkdir()
    if kind == "folder":
        (folder / hashed_name(certificates.authority)).write_bytes(certificates.authority.read_bytes())
    location = {
        "file": certificates.authority,
        "folder": folder,
        "stranger's file": certificates.stranger,
        "empty folder": folder,
    }[kind]
    access = access_of({**SERVERS, "security.protocol": "ssl", "ssl.ca.location": str(location)})
    assert access.tls is not None
    assert trusts(access.tls.context(), certificates) == (kind in ("file", "folder"))


def hashed_name(certificate: Path) -> str:
    """As `openssl rehash` names it: by the subject, here a name in small letters that needs no more."""
    subject = x509.load_pem_x509_certificate(certificate.read_bytes()).subject
    content = subject.public_bytes()[2:]
    first = hashlib.sha1(content, usedforsecurity=False).digest()[:4]
    return f"{int.from_bytes(first, 'little'):08x}.0"


def trusts(context: ssl.SSLContext, certificates: Certificates) -> bool:
    """Whether a handshake with the broker succeeds."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(certificates.broker)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        except ssl.SSLCertVerificationError:
            return False
    return client.version() is not None


def test_secrets_are_not_in_its_repr() -> None:
    options = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "open-sesame",
        "ssl.key.password": "open-sesame",
    }
    access = access_of({**SERVERS, **options})
    assert access.login is not None and access.tls is not None
    assert access.login.password == access.tls.key_password == "open-sesame"
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
    with pytest.raises(AuthenticationRefused):
        log_in(Login("SCRAM-SHA-256", "me", "open-sesame"), server)
    assert len(server.sent) == 1


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    with pytest.raises(AuthenticationRefused, match="does not know"):
        log_in(Login("SCRAM-SHA-256", "me", "open-sesame"), FakeServer("guess"))


def test_a_token_is_sent_with_its_extensions() -> None:
    sent: list[bytes] = []

    def exchange(message: bytes) -> bytes:
        sent.append(message)
        return b""

    log_in(Login("OAUTHBEARER", token=lambda: "a.b.c", extensions=(("logicalCluster", "lkc-1"),)), exchange)
    assert sent == [b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01\x01"]


def test_a_token_that_the_broker_does_not_accept_ends_the_login() -> None:
    sent: list[bytes] = []

    def exchange(message: bytes) -> bytes:
        sent.append(message)
        return b'{"status":"invalid_token"}' if len(sent) == 1 else b""

    with pytest.raises(AuthenticationRefused, match="does not accept the token") as caught:
        log_in(Login("OAUTHBEARER", token=lambda: "a.b.c"), exchange)
    assert sent[1:] == [b"\x01"]
    assert "a.b.c" not in str(caught.value)


def test_options_that_a_token_needs_are_named() -> None:
    options = {name: value for name, value in OIDC.items() if not name.endswith(("url", "secret"))}
    with pytest.raises(ConfigurationError, match=r"token\.endpoint\.url, sasl\.oauthbearer\.client\.secret"):
        access_of({"bootstrap.servers": "a:1", **options})


def test_the_secret_of_a_token_s_client_is_not_shown() -> None:
    access = access_of({"bootstrap.servers": "a:1", **OIDC})
    assert "open-sesame" not in repr(access)
    assert access.login is not None
    assert access.login.extensions == (("logicalCluster", "lkc-1"), ("identityPoolId", "pool-2"))
