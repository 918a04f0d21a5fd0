"""Client options: an allow-list, references, and secrets that are never shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from kbq_assets.adapters.kafka import options as subject
from kbq_assets.adapters.kafka.librdkafka import LibrdkafkaSource
from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.adapters.kafka.options import (
    ALLOWED,
    HIDDEN,
    LOGGER,
    admin_options,
    check_options,
    client_options,
    redacted,
    without_secrets,
)
from kbq_assets.core.errors import ConfigurationError
from kbq_assets_tests.fixtures.variables import Variables

SERVERS = "127.0.0.1:1"
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanisms": "PLAIN",
    "sasl.username": "user",
    "sasl.password": "open-sesame",
}
#: An option's value where librdkafka does not take any text.
VALUES = {
    "broker.address.family": "v4",
    "client.dns.lookup": "use_all_dns_ips",
    "enable.ssl.certificate.verification": "true",
    "metadata.recovery.strategy": "none",
    "sasl.oauthbearer.assertion.algorithm": "RS256",
    "sasl.oauthbearer.grant.type": "client_credentials",
    "sasl.oauthbearer.method": "default",
    "security.protocol": "plaintext",
    "socket.keepalive.enable": "true",
    "socket.nagle.disable": "true",
    "ssl.endpoint.identification.algorithm": "https",
    "fetch.max.bytes": "1000000",
    "receive.message.max.bytes": "100000000",
    "message.max.bytes": "1000000",
}


@pytest.mark.parametrize("name", sorted(ALLOWED))
def test_every_allowed_option_is_one_of_librdkafkas(name: str) -> None:
    value = VALUES.get(name, "10000")
    try:
        Consumer({"group.id": "test", "bootstrap.servers": SERVERS, name: value}, logger=LOGGER).close()
    except KafkaException as raised:
        # Files, certificates and protocols of this value do not exist; the option does.
        assert "No such configuration property" not in str(raised)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sasl.pasword", "did you mean sasl.password"),
        ("ssl.ca.locations", "did you mean ssl.ca.location"),
        ("nonsense", "options: "),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint) as caught:
        check_options({name: "open-sesame"})
    assert name in str(caught.value)
    assert "open-sesame" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "group.id",
        "auto.offset.reset",
        "isolation.level",
        "enable.auto.commit",
        "enable.partition.eof",
        "check.crcs",
        "bootstrap.servers",
    ],
)
def test_what_the_guarantees_rest_on_cannot_be_set(name: str) -> None:
    for open_client in (LibrdkafkaSource, KafkaOffsetReader):
        with pytest.raises(ConfigurationError, match=rf"{name} cannot be set"):
            open_client(SERVERS, {name: "x"})


@pytest.mark.parametrize(
    "name", ["plugin.library.paths", "sasl.kerberos.kinit.cmd", "ssl.engine.location", "debug"]
)
def test_what_runs_code_or_prints_records_is_not_allowed(name: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown Kafka option"):
        check_options({name: "x"})


@pytest.mark.parametrize("name", ["bootstrap", "bootstrap.server", "bootstrap.servrs"])
def test_a_variable_that_was_nearly_the_broker_s_is_named(name: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        check_options({name: "b:9092"})
    assert raised.value.next_step == "did you mean bootstrap.servers? set KBQ_KAFKA_BOOTSTRAP_SERVERS"


def test_references_are_resolved_only_where_the_client_opens(tmp_path: Path, variables: Variables) -> None:
    (tmp_path / "secret").write_text("from-file\n")
    variables["TEST_SECRET"] = "from-env"
    options = {"sasl.password": "env:TEST_SECRET", "ssl.key.password": f"file:{tmp_path / 'secret'}"}
    resolved = client_options(SERVERS, options)
    assert (resolved["sasl.password"], resolved["ssl.key.password"]) == ("from-env", "from-file")
    shipped = pickle.dumps(LibrdkafkaSource(SERVERS, options))
    assert b"from-env" not in shipped
    assert b"from-file" not in shipped


@pytest.mark.parametrize("reference", ["env:TEST_NOT_SET", "file:/no/such/file"])
def test_a_reference_that_leads_nowhere_says_where_it_was_searched(reference: str) -> None:
    with pytest.raises(ConfigurationError, match=reference):
        client_options(SERVERS, {"sasl.password": reference})


@pytest.mark.parametrize("servers", ["", "  "])
def test_no_servers_are_refused(servers: str) -> None:
    with pytest.raises(ConfigurationError, match="no Kafka bootstrap servers"):
        client_options(servers, {})


@pytest.mark.parametrize(
    "servers", ["http://broker:9092", "a:9092, https://broker:9092", "kafka://broker:9092"]
)
def test_a_url_is_no_server(servers: str) -> None:
    with pytest.raises(ConfigurationError, match="://"):
        client_options(servers, {})
    assert client_options("SASL_SSL://a:9092,b", {})["bootstrap.servers"] == "SASL_SSL://a:9092,b"


def test_secrets_never_show() -> None:
    for port in (LibrdkafkaSource(SERVERS, SASL), KafkaOffsetReader(SERVERS, SASL)):
        assert "open-sesame" not in repr(port)
        assert "'sasl.username': 'user'" in repr(port)
    assert redacted({"sasl.password": "env:NAME", "ssl.key.pem": "---"}) == {
        "sasl.password": "env:NAME",
        "ssl.key.pem": HIDDEN,
    }
    assert without_secrets("bad open-sesame!", client_options(SERVERS, SASL)) == f"bad {HIDDEN}!"
    assert without_secrets("bad open-sesames", client_options(SERVERS, SASL)) == f"bad {HIDDEN}s"


def test_a_short_secret_leaves_the_words_of_a_message_alone() -> None:
    client = client_options(SERVERS, {**SASL, "sasl.password": "b"})
    assert (
        without_secrets('all brokers are down: "b", b.', client)
        == f'all brokers are down: "{HIDDEN}", {HIDDEN}.'
    )


def test_a_client_that_refuses_its_options_does_not_quote_secrets() -> None:
    broken = {"ssl.key.pem": "open-sesame", "security.protocol": "ssl"}
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.pem") as caught:
        KafkaOffsetReader(SERVERS, broken).cluster_id()
    chain = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert not any("open-sesame" in str(error) for error in chain)


def test_an_admin_client_gets_no_consumer_options(caplog: pytest.LogCaptureFixture) -> None:
    options = {name: "10000" for name in subject._FETCH - {"check.crcs"}}
    admin = AdminClient({**admin_options(client_options(SERVERS, options))}, logger=LOGGER)
    admin.poll(0.2)
    assert "consumer property" not in caplog.text
