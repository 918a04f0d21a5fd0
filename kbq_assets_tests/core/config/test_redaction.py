"""Secrets are hidden whatever their option is called, and other values stay readable."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.config.redaction import REDACTED, SPARK_PATTERN, redacted_address, redacted_option
from kbq_assets.core.config.secret_references import FORMS, KINDS, is_reference

#: Options of librdkafka, Spark and its connectors that hold a secret.
SECRET_NAMES = [
    "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.jaas.config",
    "sasl.oauthbearer.config", "sasl.oauthbearer.client.secret", "sasl.pasword", "SASL.PASSWORD",
    "spark.authenticate.secret", "spark.ssl.keyPassword", "spark.hadoop.fs.s3a.access.key",
    "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.session.token",
    "spark.hadoop.fs.azure.account.key.name.dfs.core.windows.net",
    "spark.hadoop.google.cloud.auth.service.account.private.key", "fs.gs.auth.client.secret",
    "spark.executorEnv.HOME", "spark.yarn.appMasterEnv.X", "spark.kubernetes.driverEnv.X", "ssl.passphrase",
    "my.pass", "db.pwd", "api_key", "passcode", "spark.credentials",
]  # fmt: skip
PLAIN_OPTIONS = [
    ("client.id", "kbq"), ("sasl.mechanism", "PLAIN"), ("sasl.username", "me"), ("security.protocol", "SASL_SSL"),
    ("ssl.key.location", "/keys/a.pem"), ("ssl.ca.location", "/ca.pem"), ("spark.executor.memory", "2g"),
    ("spark.sql.keyspace", "x"), ("fetch.max.bytes", "1"), ("bootstrap.servers", "a:9092,b:9092"),
    ("spark.jars", "https://host/a.jar"), ("passive", "true"), ("spark.monkey", "x"),
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_an_option_with_the_name_of_a_secret_is_hidden(name: str) -> None:
    assert redacted_option(name, "hunter2") == REDACTED


@pytest.mark.parametrize(
    "value",
    [
        "user=a password=hunter2", "pwd: hunter2", "https://user:hunter2@host", "jdbc:postgresql://host/db",
        "-Dtoken=hunter2", "sv=2020&sig=hunter2", "KEY = hunter2", "secret=hunter2", "pass:hunter2",
    ],
)  # fmt: skip
def test_a_value_that_holds_a_secret_is_hidden_under_any_name(value: str) -> None:
    assert redacted_option("client.id", value) == REDACTED


@pytest.mark.parametrize(("name", "value"), PLAIN_OPTIONS)
def test_other_options_are_shown(name: str, value: str) -> None:
    assert redacted_option(name, value) == value


@pytest.mark.parametrize("value", ["", "env:NAME", "file:/secrets/a", "gsm:projects/p/secrets/s/versions/1"])
def test_references_and_empty_values_are_shown_under_every_name(value: str) -> None:
    assert redacted_option("sasl.password", value) == value


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_spark_hides_what_kbq_hides(name: str) -> None:
    assert re.search(SPARK_PATTERN, name)


@pytest.mark.parametrize(("name", "value"), PLAIN_OPTIONS)
def test_spark_shows_what_kbq_shows(name: str, value: str) -> None:
    assert not re.search(SPARK_PATTERN, name)
    assert not re.search(SPARK_PATTERN, value)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", ""),
        ("broker-1:9092,broker-2:9092", "broker-1:9092,broker-2:9092"),
        ("http://registry:8081", "http://registry:8081"),
        ("http://user@host", "http://***@host"),
        ("http://user:hunter2@host:8081/path", "http://***@host:8081/path"),
        ("http://user:hun@ter2@host", "http://***@host"),
        ("http://user:hun,ter2@host", "http://***@host"),
        ("user:hunter2@host:9092", "***@host:9092"),
        ("http://a:hunter2@b,http://c:hunter2@d", "http://***@b,http://***@d"),
        ("http://a:hunter2@b,https://d", "http://***@b,https://d"),
        ("http://host?password=hunter2", "http://host?***"),
        ("http://host/a?x=1&token=hunter2", "http://host/a?***"),
        ("http://host/a?x=1", "http://host/a?x=1"),
        ("http://host/a?API_KEY=hunter2,http://b?y=2", "http://host/a?***,http://b?y=2"),
    ],
)
def test_addresses_are_shown_without_users_and_secret_parameters(address: str, shown: str) -> None:
    assert redacted_address(address) == shown


SECRETS = st.text(
    alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=",/"), min_size=8
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_has_a_kind_and_a_target(kind: str) -> None:
    assert is_reference(f"{kind}:x")
    assert is_reference(f"{kind}:x:y")
    assert not is_reference(f"{kind}:")
    assert not is_reference(kind)
    assert f"{kind}:" in FORMS


@pytest.mark.parametrize("value", ["", ":", ":x", "ENV:x", "vault:x", " env:x", "hunter2"])
def test_everything_else_may_be_a_secret(value: str) -> None:
    assert not is_reference(value)


@settings(max_examples=50)
@given(SECRETS)
def test_no_password_of_an_address_is_shown(secret: str) -> None:
    wanted = f"zz{secret}zz"
    assert wanted not in redacted_address(f"https://me:{wanted}@host/path")
    assert wanted not in redacted_address(f"http://first,https://me:{wanted}@host,http://last")
