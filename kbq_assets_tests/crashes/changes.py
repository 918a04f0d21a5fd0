"""Changes of keys, as producers send them to a compacted topic, and the state that they leave."""

from __future__ import annotations

import random
from typing import Any, Final

import fastavro
from confluent_kafka import Producer

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets.pipelines.operate.commands import StartAt
from kbq_assets_tests.adapters.kafka.brokers import COMPACTED
from kbq_assets_tests.integration.world import Producers, Registered, World

PARTITIONS: Final = 3
#: The options of a topic whose table shows the last state.
UPSERT: Final = "dataset=shop table=orders load=upsert key=_kafka_key keys=true tombstones=row"
_TOMBSTONES, _WIDE = 0.15, 0.4
#: A last value, or None if a tombstone was the last.
Last = tuple[int, str | None] | None


class Changes:
    """A compacted topic. The first changes create every key; then random keys change. Schemas take turns at random."""

    def __init__(self, producers: Producers, keys: int) -> None:
        self._chance = random.Random(0)
        self._servers = producers.broker.bootstrap_servers
        self._keys = keys
        self.topic = producers.broker.create_topic(PARTITIONS, {**COMPACTED, "segment.ms": "1000"})
        subject = f"{self.topic}-value"
        self._narrow = _parsed(producers.register(("x", "long"), subject=subject))
        note = ("note", ["null", "string"])
        self._wide = _parsed(producers.register(("x", "long"), note, subject=subject))
        self.sent = 0
        #: The last value by key, as sent: no code of KBQ's decides about it.
        self.last: dict[bytes, Last] = {}

    def send(self, count: int) -> None:
        """Send the given number of further changes."""
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 20})
        for n in range(self.sent, self.sent + count):
            number = n * 7919 % self._keys if n < self._keys else self._chance.randrange(self._keys)
            key, value = b"k%d" % number, self._value(n)
            while True:
                try:
                    producer.produce(self.topic, value, key, number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
            if n % 1_000 == 0:
                producer.poll(0)
            self.last[key] = self._decided
        assert producer.flush(300) == 0
        self.sent += count

    def _value(self, n: int) -> bytes | None:
        kind = self._chance.random()
        if kind < _TOMBSTONES:
            self._decided: Last = None
            return None
        if kind < _TOMBSTONES + _WIDE:
            self._decided = (n, f"note {n}")
            return self._wide.value(x=n, note=f"note {n}")
        self._decided = (n, None)
        return self._narrow.value(x=n)

    def read_again(self, world: World, partition: int | None = None) -> None:
        """Begin a new epoch: the whole topic, or the upper half of a partition, is read again."""
        deployment = world.parts.deployment
        if partition is None:
            proposal = operate.propose_reset(deployment.store, deployment.offsets, self.topic)
        else:
            tp = TopicPartition(self.topic, partition)
            found = deployment.offsets.offsets([tp])[tp]
            middle = (found.earliest + found.latest) // 2
            proposal = operate.propose_reset(
                deployment.store,
                deployment.offsets,
                self.topic,
                partition=partition,
                start=StartAt("offset", middle),
            )
        proposal.apply()

    def check(self, world: World) -> int:
        """How many rows the table has. Raises AssertionError if they are not the last state."""
        found = world.query("SELECT _kafka_key, x, note FROM shop.orders")
        shown = {bytes(key): (x, note) for key, x, note in found}
        expected = {key: last for key, last in self.last.items() if last is not None}
        wrong = [key for key in expected.keys() | shown.keys() if expected.get(key) != shown.get(key)]
        examples = [(key, expected.get(key), shown.get(key)) for key in wrong[:3]]
        assert (len(found), examples) == (len(shown), []), f"{len(wrong)} keys differ"
        return len(found)


def _parsed(registered: Registered) -> Registered:
    schema: Any = fastavro.parse_schema(dict(registered.schema))
    return Registered(registered.schema_id, schema)
