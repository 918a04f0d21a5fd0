"""A broker that asks for a password (SASL PLAIN): readers and planner, with the secret by reference."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kbq_assets.adapters.kafka.offsets import KafkaOffsetReader
from kbq_assets.adapters.kafka.options import LOGGER
from kbq_assets.adapters.kafka.source import KafkaSource, Reader
from kbq_assets.adapters.local_stack import LocalStack, find_java
from kbq_assets.adapters.local_stack.kafka import Kafka
from kbq_assets.core.errors import KbqError
from kbq_assets.core.offsets import OffsetRange, TopicPartition
from kbq_assets_tests.fixtures.local_stack import INSTALLED, SILENT, free_ports

pytestmark = pytest.mark.kafka

PASSWORD = "open-sesame"
TOPIC = "secured"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class SecuredKafka(Kafka):
    """The local broker, behind a password."""

    def _settings(self, data: Path) -> str:
        plain = super()._settings(data)
        open_listener = f"PLAINTEXT://{self.address}"
        secured = (
            plain.replace(open_listener, f"SASL_{open_listener}")
            .replace("=PLAINTEXT:PLAINTEXT", "=SASL_PLAINTEXT:SASL_PLAINTEXT")
            .replace("broker.listener.name=PLAINTEXT", "broker.listener.name=SASL_PLAINTEXT")
        )
        login = f'{_LOGIN} username="kbq" password="{PASSWORD}" user_kbq="{PASSWORD}";'
        return (
            f"{secured}sasl.enabled.mechanisms=PLAIN\nsasl.mechanism.inter.broker.protocol=PLAIN\n"
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={login}\n"
        )


@dataclass(frozen=True)
class Secured:
    """Where the broker is, and what its clients need."""

    address: str
    options: dict[str, Any]


def login(password: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "kbq",
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    port, controller, registry = free_ports(3)
    installation = LocalStack(home, port, controller, registry, installed=INSTALLED, console=SILENT).install()
    kafka, java = SecuredKafka(home, port, controller), find_java(home / "java")
    kafka.prepare(installation, java)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(kafka.daemon(installation, java).command, stdout=log, stderr=log)
        try:
            _fill(kafka.address)
            (home / "password").write_text(PASSWORD)
            yield Secured(kafka.address, login(f"file:{home / 'password'}"))
        finally:
            process.kill()
            process.wait(30)


def _fill(address: str) -> None:
    client: dict[str, Any] = {"bootstrap.servers": address, **login(PASSWORD)}
    deadline = time.monotonic() + 90
    while not _is_up(client):
        assert time.monotonic() < deadline, "the secured broker does not start"
    admin = AdminClient(client, logger=LOGGER)
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    producer = Producer(client)
    for number in range(1_000):
        producer.produce(TOPIC, b"%d" % number, partition=0)
    assert producer.flush(30) == 0


def _is_up(client: dict[str, Any]) -> bool:
    try:
        return bool(AdminClient(client, logger=LOGGER).list_topics(timeout=3).brokers)
    except KafkaException:
        return False


@pytest.mark.parametrize("reader", ["librdkafka", "objects"])
def test_records_are_read_with_a_password_by_reference(secured: Secured, reader: Reader) -> None:
    source = KafkaSource(secured.address, secured.options, reader=reader)
    batches = list(source.read(OffsetRange(TopicPartition(TOPIC, 0), 0, 1_000)))
    values = [batch.chunk.value(row) for batch in batches for row in range(len(batch.chunk))]
    assert values == [b"%d" % number for number in range(1_000)]


def test_offsets_are_asked_for_with_it(secured: Secured) -> None:
    reader = KafkaOffsetReader(secured.address, secured.options)
    assert reader.offsets([TopicPartition(TOPIC, 0)])[TopicPartition(TOPIC, 0)].latest == 1_000


@pytest.mark.parametrize("reader", ["librdkafka", "objects"])
def test_a_wrong_password_is_refused_and_never_told(secured: Secured, reader: Reader) -> None:
    source = KafkaSource(secured.address, login("guessed-wrong"), no_progress_seconds=20, reader=reader)
    with pytest.raises(KbqError) as raised:
        list(source.read(OffsetRange(TopicPartition(TOPIC, 0), 0, 1_000)))
    assert "uthentication failed" in raised.value.message
    assert "guessed-wrong" not in str(raised.value)
