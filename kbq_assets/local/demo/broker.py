"""Access to the broker and the registry for the demo: creates topics, reads records back, registers schemas."""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from kbq_assets.adapters.registry import ConfluentSchemaRegistry, ConfluentSubjects
from kbq_assets.core.config.parts import RegistrySettings
from kbq_assets.core.errors import StateError, Unavailable

_LOGGER: Final = logging.getLogger("kbq.demo")
_SECONDS: Final = 30.0
#: Errors that occur just after a topic is created.
_NEW_TOPIC: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._NOENT,
    }
)
#: The package has no types for these constructors.
_SPEC: Final[Any] = OffsetSpec
#: Keep records with event times in 2007, and start no new segment because event times jump by a year.
_TOPIC_CONFIG: Final = {"retention.ms": "-1", "segment.ms": str(100 * 365 * 86_400_000)}

Answer = TypeVar("Answer")


class ReadBack(NamedTuple):
    """A committed record on the broker."""

    offset: int
    checksum: int


@dataclass(frozen=True)
class TopicState:
    """A topic on the broker. ``ends`` has each partition's log end offset and last stable offset."""

    topic_id: str
    ends: Mapping[int, tuple[int, int]]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever appended to the topic."""
        return all(end == 0 for end, _ in self.ends.values())

    @property
    def is_settled(self) -> bool:
        """Whether no transaction is open."""
        return all(end == stable for end, stable in self.ends.values())


class DemoBroker:
    """A cluster to produce to. Raises Unavailable for Kafka's errors."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_LOGGER)

    def cluster_id(self) -> str:
        return str(self._ask(lambda: self._admin.list_topics(timeout=_SECONDS)).cluster_id)

    def ensure_topic(self, topic: str, partitions: int) -> None:
        """Create a topic if it does not exist."""
        new = NewTopic(topic, partitions, 1, config=_TOPIC_CONFIG)
        try:
            self._admin.create_topics([new])[topic].result(_SECONDS)
        except KafkaException as raised:
            if raised.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._unavailable(raised) from raised
        self._wait(lambda: self._is_known(topic), f"topic {topic} does not appear")

    def state(self, topic: str) -> TopicState:
        described = self._ask(
            lambda: self._admin.describe_topics(TopicCollection([topic]))[topic].result(_SECONDS)
        )
        partitions = [ClientPartition(topic, p) for p in range(len(described.partitions))]
        last = self._latest(partitions, IsolationLevel.READ_UNCOMMITTED)
        stable = self._latest(partitions, IsolationLevel.READ_COMMITTED)
        return TopicState(str(described.topic_id), {p: (last[p], stable[p]) for p in last})

    def settled_state(self, topic: str) -> TopicState:
        """A topic's state once no transaction is open and no message of a dead producer is in transit."""
        states = [self.state(topic)]

        def is_still() -> bool:
            states.append(self.state(topic))
            return states[-1] == states[-2] and states[-1].is_settled

        self._wait(is_still, f"topic {topic} has an open transaction", pause=0.3)
        return states[-1]

    def read_back(self, topic: str, state: TopicState) -> dict[int, list[ReadBack]]:
        """All committed records by partition, in offset order. Raises StateError if retention deleted some."""
        found: dict[int, list[ReadBack]] = defaultdict(list)
        wanted = {p for p, (end, _) in state.ends.items() if end > 0}
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "kbq-demo",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            },
            logger=_LOGGER,
        )
        try:
            consumer.assign([ClientPartition(topic, p, 0) for p in wanted])
            while wanted:
                self._take(consumer, topic, found, wanted)
        finally:
            consumer.close()
        return found

    def _take(
        self, consumer: Consumer, topic: str, found: dict[int, list[ReadBack]], wanted: set[int]
    ) -> None:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            error, partition, offset = message.error(), message.partition(), message.offset()
            assert partition is not None and offset is not None
            if error is None:
                found[partition].append(ReadBack(offset, checksum(message.key(), message.value())))
            elif error.code() == KafkaError._PARTITION_EOF:
                wanted.discard(partition)
            else:
                raise StateError(
                    f"{topic}[{partition}] cannot be read from its beginning: {error.str()}",
                    next_step="delete the topic, then run the demo again",
                )

    def _latest(self, partitions: list[ClientPartition], level: IsolationLevel) -> dict[int, int]:
        asked = {tp: _SPEC.latest() for tp in partitions}

        def ask() -> dict[int, int]:
            futures = self._admin.list_offsets(asked, isolation_level=level)
            return {tp.partition: future.result(_SECONDS).offset for tp, future in futures.items()}

        return self._ask(ask)

    def _is_known(self, topic: str) -> bool:
        found = self._ask(lambda: self._admin.list_topics(topic, timeout=_SECONDS)).topics[topic]
        return found.error is None and all(p.leader >= 0 for p in found.partitions.values())

    def _wait(self, condition: Callable[[], bool], problem: str, pause: float = 0.05) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise Unavailable(problem, next_step="see the broker's log; then run it again")
            time.sleep(pause)

    def _ask(self, call: Callable[[], Answer]) -> Answer:
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                return call()
            except KafkaException as raised:
                if raised.args[0].code() not in _NEW_TOPIC or time.monotonic() > deadline:
                    raise self._unavailable(raised) from raised
            time.sleep(0.1)

    def _unavailable(self, raised: KafkaException) -> Unavailable:
        return Unavailable(
            f"Kafka at {self.bootstrap_servers}: {raised.args[0].str()}",
            next_step="start it (kbq local up), then run it again",
        )


def checksum(key: bytes | None, value: bytes | None) -> int:
    """A checksum of a record that distinguishes null from empty."""
    return zlib.crc32(b"\x00" if value is None else b"\x01" + value, zlib.crc32(key or b""))


def register_schema(registry_url: str, subject: str, schema: Mapping[str, Any]) -> int:
    """Register a schema if needed, and return its id. Raises Unavailable, Refused."""
    registry = ConfluentSubjects(ConfluentSchemaRegistry(RegistrySettings(url=registry_url)))
    return registry.register(subject, json.dumps(schema), "AVRO")
