"""Readers and planner at a broker with TLS, client certificates, PLAIN and SCRAM; secrets by reference, never shown."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kbq_assets.adapters.java import find_java
from kbq_assets.adapters.kafka.admin import KafkaTopicAdmin
from kbq_assets.adapters.kafka.fetch.source import FetchSource
from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.adapters.kafka.options import LOGGER
from kbq_assets.core.catalog.access import Acl, Allow, LiveAccess
from kbq_assets.core.catalog.changes import CreateTopic
from kbq_assets.core.errors import AccessRefused, ConfigurationError, KbqError, Unavailable
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.local.stack import LocalStack
from kbq_assets.local.stack.kafka import Kafka
from kbq_assets_tests.adapters.kafka.fetch.certificates import KEY_PASSWORD, Certificates, write_certificates
from kbq_assets_tests.adapters.kafka.fetch.token_endpoint import (
    TokenEndpointServer,
    token_endpoint,
    unsigned_token,
)
from kbq_assets_tests.fixtures.local_stack import INSTALLED, SILENT, free_ports

# It starts a broker of its own.
pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

USER, PASSWORD = "kbq,=", "open-sesame"
TOPIC = "secured"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OAUTHBEARER = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'unsecuredLoginStringClaim_sub="broker";'
)
_KINDS = ("SASL_PLAINTEXT", "SSL", "SASL_SSL")


@dataclass(frozen=True)
class SecuredKafka(Kafka):
    """The local broker with three listeners more: SASL_PLAINTEXT, SSL and SASL_SSL, by their ports."""

    certificates: Certificates
    secured_ports: Mapping[str, int]

    def _settings(self, data: Path) -> str:
        plain = super()._settings(data)
        more = ",".join(f"{kind}://127.0.0.1:{self.secured_ports[kind]}" for kind in _KINDS)
        more_kinds = ",".join(f"{kind}:{kind}" for kind in _KINDS)
        additions = {
            "listeners": more,
            "advertised.listeners": more,
            "listener.security.protocol.map": more_kinds,
        }
        lines = [
            f"{line},{additions[name]}" if (name := line.partition("=")[0]) in additions else line
            for line in plain.splitlines()
        ]
        lines += [
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.certificates.broker}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.certificates.authority}",
            "listener.name.ssl.ssl.client.auth=required",
            # Topics without ACLs are open to all; clients without a name, at the plain listener, may do everything.
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
            "allow.everyone.if.no.acl.found=true",
        ]
        for kind in ("sasl_plaintext", "sasl_ssl"):
            lines.append(f'listener.name.{kind}.plain.sasl.jaas.config={_PLAIN} user_kbq="{PASSWORD}";')
            lines += [f"listener.name.{kind}.scram-sha-{n}.sasl.jaas.config={_SCRAM}" for n in (256, 512)]
            lines.append(f"listener.name.{kind}.oauthbearer.sasl.jaas.config={_OAUTHBEARER}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Secured:
    """The broker's listeners, and what clients need."""

    kafka: SecuredKafka
    home: Path

    def address(self, kind: str) -> str:
        return f"127.0.0.1:{self.kafka.secured_ports[kind]}"

    def sasl(self, kind: str, mechanism: str, password: str = "") -> dict[str, Any]:
        user = "kbq" if mechanism == "PLAIN" else USER
        options = {"security.protocol": kind, "sasl.mechanism": mechanism, "sasl.username": user}
        return options | {"sasl.password": password or f"file:{self.home / 'password'}"} | self.trust()

    def trust(self) -> dict[str, str]:
        return {"ssl.ca.location": str(self.kafka.certificates.authority)}

    def own_certificate(self) -> dict[str, str]:
        certificates = self.kafka.certificates
        return self.trust() | {
            "security.protocol": "ssl",
            "ssl.certificate.location": str(certificates.client),
            "ssl.key.location": str(certificates.client_key),
            "ssl.key.password": KEY_PASSWORD,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured-fetch")
    port, controller, registry, *others = free_ports(6)
    installation = LocalStack(home, port, controller, registry, installed=INSTALLED, console=SILENT).install()
    certificates = write_certificates(home, host="127.0.0.1")
    kafka = SecuredKafka(home, port, controller, certificates, dict(zip(_KINDS, others, strict=True)))
    java = find_java(home / "java")
    kafka.prepare(installation, java)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(kafka.daemon(installation, java).command, stdout=log, stderr=log)
        try:
            _fill(kafka.address)
            (home / "password").write_text(PASSWORD)
            yield Secured(kafka, home)
        finally:
            process.kill()
            process.wait(120)


def _fill(address: str) -> None:
    client: dict[str, Any] = {"bootstrap.servers": address}
    admin = AdminClient(client, logger=LOGGER)
    _wait_for(lambda: _is_up(admin))
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(120)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wish = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([wish])[USER].result(120)
        # The controller has answered; the broker learns of it a moment later.
        _wait_for(lambda mechanism=mechanism: _knows(admin, mechanism))  # type: ignore[misc]
    producer = Producer(client)
    for number in range(1_000):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(120) == 0


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "the secured broker does not get there"
        time.sleep(0.05)


def _knows(admin: AdminClient, mechanism: ScramMechanism) -> bool:
    """Whether the broker has the user's credentials of a mechanism."""
    asked: Any = admin.describe_user_scram_credentials([USER])
    try:
        found = asked[USER].result(120)
    except KafkaException:
        return False
    return mechanism in [each.mechanism for each in found.scram_credential_infos]


def _is_up(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=3).brokers)
    except KafkaException:
        return False


def values(source: FetchSource | LibrdkafkaSource) -> list[bytes | None]:
    batches = list(source.read(OffsetRange(TopicPartition(TOPIC, 0), 0, 1_000)))
    return [batch.chunk.value(row) for batch in batches for row in range(len(batch.chunk))]


EXPECTED = [b"%d" % number for number in range(1_000)]


@pytest.mark.parametrize("kind", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_records_are_read_with_a_password_by_reference(secured: Secured, kind: str, mechanism: str) -> None:
    assert values(FetchSource(secured.address(kind), secured.sasl(kind, mechanism))) == EXPECTED


def test_records_are_read_with_a_certificate_of_ones_own(secured: Secured) -> None:
    assert values(FetchSource(secured.address("SSL"), secured.own_certificate())) == EXPECTED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_refused_at_once_and_never_shown(secured: Secured, mechanism: str) -> None:
    options = secured.sasl("SASL_SSL", mechanism, "guessed-wrong")
    with pytest.raises(Unavailable, match="uthentication failed") as caught:
        values(FetchSource(secured.address("SASL_SSL"), options))
    assert "credentials" in caught.value.next_step
    assert "guessed-wrong" not in str(caught.value)


def test_a_certificate_that_nobody_we_trust_has_signed_is_refused_at_once(secured: Secured) -> None:
    options = secured.sasl("SASL_SSL", "PLAIN") | {
        "ssl.ca.location": str(secured.kafka.certificates.stranger)
    }
    with pytest.raises(Unavailable, match="certificate"):
        values(FetchSource(secured.address("SASL_SSL"), options))


def test_a_certificate_for_another_host_is_refused_unless_allowed(secured: Secured) -> None:
    options = secured.sasl("SASL_SSL", "PLAIN")
    servers = secured.address("SASL_SSL").replace("127.0.0.1", "localhost")
    with pytest.raises(Unavailable, match="ertificate"):
        values(FetchSource(servers, options))
    options["ssl.endpoint.identification.algorithm"] = "none"
    assert values(FetchSource(servers, options)) == EXPECTED


def test_without_a_client_certificate_there_is_no_connection(secured: Secured) -> None:
    options = secured.trust() | {"security.protocol": "ssl"}
    with pytest.raises(Unavailable):
        values(FetchSource(secured.address("SSL"), options, no_progress_seconds=1))


@pytest.mark.parametrize("password", ["", "wrong-key-word"])
def test_a_wrong_key_password_is_a_configuration_error(secured: Secured, password: str) -> None:
    options = secured.own_certificate() | {"ssl.key.password": password}
    with pytest.raises(ConfigurationError, match="ssl") as caught:
        values(FetchSource(secured.address("SSL"), options))
    assert "wrong-key-word" not in str(caught.value)


def test_a_plain_client_at_a_secured_listener_is_unavailable(secured: Secured) -> None:
    for kind in _KINDS:
        with pytest.raises(KbqError):
            values(FetchSource(secured.address(kind), no_progress_seconds=1))


@pytest.mark.parametrize("kind", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_records_are_read_with_a_token(secured: Secured, kind: str) -> None:
    with token_endpoint() as endpoint:
        options = token_options(endpoint) | secured.trust() | {"security.protocol": kind}
        assert values(FetchSource(secured.address(kind), options)) == EXPECTED
        assert len(endpoint.forms) == 1
        tp = TopicPartition(TOPIC, 0)
        assert KafkaOffsetReader(secured.address(kind), options).offsets([tp])[tp].latest == len(EXPECTED)


def test_a_token_that_has_expired_is_refused_at_once(secured: Secured) -> None:
    with token_endpoint() as endpoint:
        endpoint.body = json.dumps(
            {"access_token": unsigned_token(lifetime=-3600), "expires_in": 60}
        ).encode()
        options = token_options(endpoint) | {"security.protocol": "SASL_PLAINTEXT"}
        with pytest.raises(Unavailable, match="uthentication failed"):
            values(FetchSource(secured.address("SASL_PLAINTEXT"), options))


def token_options(endpoint: TokenEndpointServer) -> dict[str, str]:
    prefix = "sasl.oauthbearer."
    return {
        "sasl.mechanism": "OAUTHBEARER",
        f"{prefix}method": "oidc",
        f"{prefix}token.endpoint.url": endpoint.url,
        f"{prefix}client.id": endpoint.client_id,
        f"{prefix}client.secret": endpoint.client_secret,
    }


class TestLibrdkafka:
    """The same broker through librdkafka: the fallback reader, and what the planner asks."""

    @pytest.mark.parametrize(
        ("kind", "mechanism"),
        [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512"), ("SSL", "")],
    )
    def test_records_are_read(self, secured: Secured, kind: str, mechanism: str) -> None:
        options = secured.sasl(kind, mechanism) if mechanism else secured.own_certificate()
        assert values(LibrdkafkaSource(secured.address(kind), options)) == EXPECTED

    @pytest.mark.parametrize("kind", ["SASL_SSL", "SSL"])
    def test_offsets_are_asked_for(self, secured: Secured, kind: str) -> None:
        options = secured.own_certificate() if kind == "SSL" else secured.sasl(kind, "SCRAM-SHA-512")
        tp = TopicPartition(TOPIC, 0)
        assert KafkaOffsetReader(secured.address(kind), options).offsets([tp])[tp].latest == len(EXPECTED)

    @pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
    def test_a_wrong_password_is_refused_and_never_shown(self, secured: Secured, mechanism: str) -> None:
        options = secured.sasl("SASL_SSL", mechanism, "guessed-wrong")
        source = LibrdkafkaSource(secured.address("SASL_SSL"), options)
        with pytest.raises(KbqError, match="uthentication failed") as caught:
            values(source)
        assert "guessed-wrong" not in str(caught.value)

    def test_an_authority_that_signed_nothing_there_is_not_believed(self, secured: Secured) -> None:
        stranger = {"ssl.ca.location": str(secured.kafka.certificates.stranger)}
        options = secured.sasl("SASL_SSL", "SCRAM-SHA-512") | stranger
        with pytest.raises(KbqError, match="certificate"):
            values(LibrdkafkaSource(secured.address("SASL_SSL"), options, no_progress_seconds=5))


class TestAccess:
    """The catalog's ACLs: a user with permission adds them, and a user without permission is affected by them."""

    READER = (Acl("User:kbq", "READ", "topic", "granted"), Acl("User:kbq", "DESCRIBE", "topic", "granted"))
    GROUP = (Acl("User:kbq", "READ", "group", "kbq-", prefixed=True),)

    def test_what_is_allowed_is_seen_and_nothing_else_is_allowed(self, secured: Secured) -> None:
        admin = KafkaTopicAdmin(secured.kafka.address)
        assert admin.access() == LiveAccess()
        admin.apply(CreateTopic("granted", 1, 1, {}))
        for acls in (self.READER, self.GROUP, self.READER):
            admin.apply(Allow("granted", acls))
        assert admin.access().acls >= {*self.READER, *self.GROUP}
        options = secured.sasl("SASL_SSL", "PLAIN")
        offsets = KafkaOffsetReader(secured.address("SASL_SSL"), options)
        assert offsets.offsets([TopicPartition("granted", 0)])[TopicPartition("granted", 0)].latest == 0
        assert _refusal(secured, "granted") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        admin.apply(Allow("granted", (Acl("User:kbq", "WRITE", "topic", "granted"),)))
        assert _refusal(secured, "granted") is None

    @pytest.mark.parametrize("source", [FetchSource, LibrdkafkaSource])
    def test_a_topic_that_may_be_described_but_not_read_names_the_acl(
        self, secured: Secured, source: type[FetchSource] | type[LibrdkafkaSource]
    ) -> None:
        admin, topic = KafkaTopicAdmin(secured.kafka.address), f"described.{source.__name__}"
        admin.apply(CreateTopic(topic, 1, 1, {}))
        admin.apply(Allow(topic, (Acl("User:kbq", "DESCRIBE", "topic", topic),)))
        producer = Producer({"bootstrap.servers": secured.kafka.address}, logger=LOGGER)
        producer.produce(topic, b"x")
        assert producer.flush(120) == 0
        reader = source(secured.address("SASL_SSL"), secured.sasl("SASL_SSL", "PLAIN"))

        def first() -> bytes | None:
            [batch] = reader.read(OffsetRange(TopicPartition(topic, 0), 0, 1))
            return batch.chunk.value(0)

        with pytest.raises(AccessRefused, match="authorization failed") as caught:
            first()
        assert f"grant the ACL READ on topic {topic} to KBQ's user" in caught.value.next_step
        admin.apply(Allow(topic, (Acl("User:kbq", "READ", "topic", topic),)))

        def is_read() -> bool:
            try:
                return first() == b"x"
            except AccessRefused:
                return False

        _wait_for(is_read)  # the controller has answered; the broker learns of it a moment later

    def test_a_user_who_may_not_see_acls_gets_a_message(self, secured: Secured) -> None:
        cluster = AclBinding(
            ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:boss", "*",
            AclOperation.DESCRIBE, AclPermissionType.ALLOW,
        )  # fmt: skip
        client = AdminClient({"bootstrap.servers": secured.kafka.address}, logger=LOGGER)
        client.create_acls([cluster])[cluster].result(120)
        admin = KafkaTopicAdmin(secured.address("SASL_SSL"), secured.sasl("SASL_SSL", "PLAIN"))
        # The controller has answered; the broker learns of it a moment later.
        _wait_for(lambda: "may not list and add ACLs" in admin.access().problem)


def _refusal(secured: Secured, topic: str) -> int | None:
    """Why the broker does not take a record of the user `kbq`; None where it takes it."""
    answers: list[KafkaError | None] = []
    options = {**secured.sasl("SASL_SSL", "PLAIN"), "sasl.password": PASSWORD}
    producer = Producer({"bootstrap.servers": secured.address("SASL_SSL"), **options}, logger=LOGGER)
    producer.produce(topic, b"x", on_delivery=lambda error, message: answers.append(error))
    producer.flush(120)
    [answer] = answers
    return None if answer is None else answer.code()
