"""Producers that never stop: a thread for each topic."""

from __future__ import annotations

import io
import itertools
import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbq_assets.local.demo.broker import register_schema

_PAUSE_SECONDS: Final = 0.25
_ABORTED: Final = 0.3
#: Of a record of the plain topics.
_POISON: Final = 0.01
_TOMBSTONES: Final = 0.02
_OPTIONS: Final = "dataset=torture tombstones=skip keys=true"
_NOTE: Final = {"name": "note", "type": ["null", "string"], "default": None}
_ALPHABET: Final = "abc äß€ 漢字 😀 '\"\\\n\t\x00"


def _record(name: str, *fields: tuple[str, str], note: bool = False) -> dict[str, Any]:
    known = [{"name": key, "type": kind} for key, kind in fields]
    return {"type": "record", "name": name, "fields": [*known, *([_NOTE] if note else [])]}


_APPLE: Final = (("uid", "long"), ("n", "long"), ("text", "string"))
_PEAR: Final = (("uid", "long"), ("text", "string"), ("amount", "double"))
_PLAIN: Final = (("uid", "long"), ("n", "int"), ("text", "string"), ("ok", "boolean"))


@dataclass(frozen=True)
class Topic:
    """A topic: its partitions, its options in the source list, and the schemas of its records; none: JSON."""

    name: str
    partitions: int
    options: str
    schemas: Sequence[Mapping[str, Any]] = ()
    transactions: bool = False


def topics() -> tuple[Topic, ...]:
    """New topics. The two plain ones feed one table, under the same partitions and offsets."""
    run = uuid.uuid4().hex[:8]
    routed = [_record("Apple", *_APPLE), _record("Pear", *_PEAR), _record("Apple", *_APPLE, note=True)]
    plain = [_record("Plain", *_PLAIN), _record("Plain", *_PLAIN, note=True)]
    return (
        Topic(f"transactions.{run}", 2, f"{_OPTIONS} route=record_name", routed, transactions=True),
        Topic(f"plain.a.{run}", 2, f"{_OPTIONS} table=plain", plain),
        Topic(f"plain.b.{run}", 2, f"{_OPTIONS} table=plain", plain),
        Topic(f"documents.{run}", 1, f"{_OPTIONS} table=documents format=json_columns"),
    )


@dataclass
class Feeds:
    """The producers of a campaign. ``schemas`` are those of all records, by id; ``acknowledged`` counts the records
    that the broker has committed, by topic."""

    bootstrap_servers: str
    registry_url: str
    topics: tuple[Topic, ...]
    seed: int
    schemas: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    acknowledged: Counter[str] = field(default_factory=Counter)
    _uids: itertools.count[int] = field(default_factory=itertools.count)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Create the topics and begin."""
        wanted = [NewTopic(topic.name, topic.partitions, 1) for topic in self.topics]
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for created in admin.create_topics(wanted).values():
            created.result(120)
        self._threads = [threading.Thread(target=self._feed, args=[topic]) for topic in self.topics]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after what is under way."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _feed(self, topic: Topic) -> None:
        chance = random.Random(f"{self.seed} {topic.name.rpartition('.')[0]}")
        ids = [register_schema(self.registry_url, f"{topic.name}-{s['name']}", s) for s in topic.schemas]
        self.schemas.update(zip(ids, topic.schemas, strict=True))
        transactional = (
            {"transactional.id": topic.name} if topic.transactions else {"enable.idempotence": True}
        )
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5, **transactional})
        if topic.transactions:
            producer.init_transactions()
        while not self._over.wait(_PAUSE_SECONDS):
            values = [self._value(ids, topic, chance) for _ in range(chance.randint(1, 40))]
            self._send(producer, topic, values, chance)

    def _send(
        self, producer: Producer, topic: Topic, values: Sequence[bytes | None], chance: random.Random
    ) -> None:
        if topic.transactions:
            producer.begin_transaction()
        for value in values:
            key = b"k%d" % chance.randrange(1_000)
            producer.produce(topic.name, value, key, partition=chance.randrange(topic.partitions))
        if topic.transactions and chance.random() < _ABORTED:
            producer.flush()  # else they never reach the broker
            producer.abort_transaction()
            return
        if topic.transactions:
            producer.commit_transaction()
        if producer.flush(120):
            raise RuntimeError("the broker did not take all records")
        self.acknowledged[topic.name] += len(values)

    def _value(self, ids: Sequence[int], topic: Topic, chance: random.Random) -> bytes | None:
        drawn = chance.random()
        if not topic.transactions and drawn < _POISON:
            return chance.choice(
                [b"", b"\x01poison", b"\x00\x7f\xff\xff\xffno such schema"[: chance.randint(1, 4)]]
            )
        if not topic.transactions and drawn < _POISON + _TOMBSTONES:
            return None
        fields = {
            "uid": next(self._uids),
            "n": chance.randint(-(2**31), 2**31 - 1),
            "text": "".join(chance.choices(_ALPHABET, k=chance.randrange(30))),
            "amount": chance.choice([chance.uniform(-1e9, 1e9), 0.0, 1e300]),
            "ok": chance.random() < 0.5,
            "note": chance.choice([None, "a note"]),
        }
        if not ids:
            return json.dumps({key: fields[key] for key in ("uid", "n", "text", "ok")}).encode()
        chosen = chance.randrange(len(ids))
        stream = io.BytesIO(b"\x00" + ids[chosen].to_bytes(4))
        stream.seek(5)
        fastavro.schemaless_writer(stream, fastavro.parse_schema(dict(topic.schemas[chosen])), fields)
        return stream.getvalue()
