"""Encodes and parses the few requests and answers of Kafka's protocol that are needed to read a range.

https://kafka.apache.org/protocol.html. It uses one version of each, the lowest that suffices: brokers from 2.1 to 4.x
support all of them, and none has tagged fields. Fetch 10 has leader epochs, zstd and aborted transactions, and never
redirects a reader to another replica.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

import numpy as np

from kbq_assets.adapters.kafka.fetch.errors import Damaged
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.wire.chunk import Longs

Item = TypeVar("Item")
#: The items of an answer about partitions, by topic.
PartitionAnswers: TypeAlias = list[tuple[str, list[tuple[int, Item]]]]

READ_COMMITTED: Final = 1
NO_REPLICA: Final = -1
#: Largest answer to a request about one topic or connection, enough for 100,000 partitions with three replicas.
_CONTROL_BYTES: Final = 8 << 20
#: Most aborted transactions in an answer. Each overlaps the answer's few megabytes, so no broker comes near this limit.
MOST_ABORTED: Final = 1_000_000
#: Most brokers, partitions of a topic, and names or versions in an answer. An item's memory is ten times its bytes.
MOST_NODES: Final = 20_000
_MOST_PARTITIONS: Final = 200_000
_MOST_NAMES: Final = 1000


@dataclass(frozen=True)
class Api:
    """A request type in the version that KBQ uses. ``most_bytes`` limits its answer; 0 means the access's limit."""

    name: str
    key: int
    version: int
    most_bytes: int = _CONTROL_BYTES


FETCH: Final = Api("Fetch", 1, 10, 0)
METADATA: Final = Api("Metadata", 3, 7)
SASL_HANDSHAKE: Final = Api("SaslHandshake", 17, 1, 1 << 20)
API_VERSIONS: Final = Api("ApiVersions", 18, 0, 1 << 20)
EPOCH_END: Final = Api("OffsetForLeaderEpoch", 23, 2)
SASL_AUTHENTICATE: Final = Api("SaslAuthenticate", 36, 0)
NEEDED: Final = (FETCH, METADATA, EPOCH_END)
"""The request types that a broker must support."""


@dataclass(frozen=True)
class BrokerAddress:
    """The address at which a broker listens."""

    host: str
    port: int


@dataclass(frozen=True)
class PartitionLeader:
    """A partition's leader. Without one, ``node`` is None and ``error`` says why."""

    node: BrokerAddress | None
    epoch: int
    error: int = 0


@dataclass(frozen=True)
class TopicAnswer:
    """A broker's metadata of one topic."""

    error: int
    partitions: dict[int, PartitionLeader]


@dataclass(frozen=True)
class FetchAnswer:
    """One partition of a Fetch answer. The record batches are the bytes ``[records_from, records_until)``."""

    error: int
    last_stable_offset: int
    aborted: Longs
    """A row of producer id and first offset for each aborted transaction."""
    records_from: int
    records_until: int


class ResponseReader:
    """Reads an answer's bytes in order. Raises Damaged if they end too soon."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def skip(self, size: int) -> int:
        """Skip ``size`` bytes, and return the position of the first."""
        start = self.position
        if not 0 <= size <= len(self._data) - start:
            raise Damaged(f"{size} bytes do not fit into an answer of {len(self._data)}")
        self.position += size
        return start

    def int8(self) -> int:
        """A signed 8-bit number."""
        return int(struct.unpack_from(">b", self._data, self.skip(1))[0])

    def int16(self) -> int:
        """A signed 16-bit number."""
        return int(struct.unpack_from(">h", self._data, self.skip(2))[0])

    def int32(self) -> int:
        """A signed 32-bit number."""
        return int(struct.unpack_from(">i", self._data, self.skip(4))[0])

    def int64(self) -> int:
        """A signed 64-bit number."""
        return int(struct.unpack_from(">q", self._data, self.skip(8))[0])

    def blob(self) -> bytes:
        """Bytes with a 32-bit length. Null is returned as empty."""
        size = self.int32()
        start = self.skip(max(size, 0))
        return bytes(self._data[start : self.position])

    def text(self) -> str:
        """A string with a 16-bit length. Null is returned as empty."""
        size = self.int16()
        start = self.skip(max(size, 0))
        return bytes(self._data[start : self.position]).decode(errors="replace")

    def array(self, item: Callable[[], Item], most: int) -> list[Item]:
        """Length-prefixed items. Null is returned as empty. Each item takes bytes, so a wrong length raises Damaged."""
        size = self.int32()
        if size > most:
            raise Damaged(f"an answer about {size} items instead of {'at most ' * (most > 1)}{most}")
        return [item() for _ in range(size)]

    def pairs(self, most: int) -> Longs:
        """Length-prefixed pairs of signed 64-bit numbers, one row each. Null is returned as empty."""
        size = max(self.int32(), 0)
        if size > most:
            raise Damaged(f"an answer with {size} pairs, more than the limit of {most}")
        start = self.skip(16 * size)
        return np.frombuffer(self._data, ">i8", 2 * size, start).astype(np.int64).reshape(size, 2)


def frame(api: Api, correlation: int, client_id: str, body: bytes) -> bytes:
    """A complete request, including its length."""
    head = struct.pack(">hhi", api.key, api.version, correlation) + text(client_id)
    return struct.pack(">i", len(head) + len(body)) + head + body


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def metadata_request(topic: str) -> bytes:
    """A request for the leaders of one topic, which does not create it."""
    return struct.pack(">i", 1) + text(topic) + b"\x00"


def epoch_end_request(tp: TopicPartition, current_epoch: int, epoch: int) -> bytes:
    """A request for the end of ``epoch`` in a partition's log."""
    partition = struct.pack(">iiii", 1, tp.partition, current_epoch, epoch)
    return struct.pack(">i", 1) + text(tp.topic) + partition


def fetch_request(
    tp: TopicPartition, leader_epoch: int, offset: int, *, max_bytes: int, wait_seconds: float
) -> bytes:
    """A request for records of one partition from ``offset`` on, without a fetch session."""
    wait = int(wait_seconds * 1000)
    head = struct.pack(">iiiibii", NO_REPLICA, wait, 1, max_bytes, READ_COMMITTED, 0, -1)
    partition = struct.pack(">iiiqqi", 1, tp.partition, leader_epoch, offset, -1, max_bytes)
    return head + struct.pack(">i", 1) + text(tp.topic) + partition + struct.pack(">i", 0)


def parse_api_versions(reply: ResponseReader) -> dict[int, tuple[int, int]]:
    """The lowest and highest version by API key. Raises Damaged for an answer with an error."""
    error = reply.int16()
    if error:
        raise Damaged(f"the broker answers ApiVersions with error {error}")
    return {key: (low, high) for key, low, high in reply.array(lambda: _int16s(reply), _MOST_NAMES)}


def _int16s(reply: ResponseReader) -> tuple[int, int, int]:
    return reply.int16(), reply.int16(), reply.int16()


def parse_metadata(reply: ResponseReader, topic: str) -> TopicAnswer:
    reply.int32()
    nodes = dict(reply.array(lambda: _node(reply), MOST_NODES))
    reply.text()
    reply.int32()
    topics = dict(reply.array(lambda: _topic(reply, nodes), 1))
    if topic not in topics:
        raise Damaged(f"an answer about other topics than {topic}")
    return topics[topic]


def _node(reply: ResponseReader) -> tuple[int, BrokerAddress]:
    number, node = reply.int32(), BrokerAddress(reply.text(), reply.int32())
    reply.text()
    return number, node


def _topic(reply: ResponseReader, nodes: dict[int, BrokerAddress]) -> tuple[str, TopicAnswer]:
    error, name = reply.int16(), reply.text()
    reply.int8()
    return name, TopicAnswer(error, dict(reply.array(lambda: _partition(reply, nodes), _MOST_PARTITIONS)))


def _partition(reply: ResponseReader, nodes: dict[int, BrokerAddress]) -> tuple[int, PartitionLeader]:
    error, index, leader, epoch = reply.int16(), reply.int32(), reply.int32(), reply.int32()
    for _ in range(3):
        reply.skip(4 * max(reply.int32(), 0))
    return index, PartitionLeader(nodes.get(leader), epoch, error)


def parse_epoch_end(reply: ResponseReader, tp: TopicPartition) -> tuple[int, int, int]:
    """The error, the epoch found, and its end; -1 and -1 if the broker never had the epoch."""
    reply.int32()
    return _only(reply.array(lambda: (reply.text(), reply.array(lambda: _epoch_end(reply), 1)), 1), tp)


def _epoch_end(reply: ResponseReader) -> tuple[int, tuple[int, int, int]]:
    error, partition, epoch, offset = reply.int16(), reply.int32(), reply.int32(), reply.int64()
    return partition, (error, epoch, offset)


def parse_fetch(reply: ResponseReader, tp: TopicPartition) -> FetchAnswer:
    """The answer about one partition. Raises Damaged if it is about another one."""
    reply.int32()
    error = reply.int16()
    reply.int32()
    if error:
        return FetchAnswer(error, -1, np.empty((0, 2), np.int64), 0, 0)
    return _only(reply.array(lambda: (reply.text(), reply.array(lambda: _fetched(reply), 1)), 1), tp)


def _fetched(reply: ResponseReader) -> tuple[int, FetchAnswer]:
    partition, error, _, last_stable = reply.int32(), reply.int16(), reply.int64(), reply.int64()
    reply.int64()
    aborted = reply.pairs(MOST_ABORTED)
    size = max(reply.int32(), 0)
    return partition, FetchAnswer(error, last_stable, aborted, reply.skip(size), reply.position)


def _only(found: PartitionAnswers[Item], tp: TopicPartition) -> Item:
    """The item about ``tp``. Raises Damaged if the answer is about another partition, or none."""
    for topic, partitions in found:
        for partition, item in partitions:
            if (topic, partition) == (tp.topic, tp.partition):
                return item
            raise Damaged(f"an answer about {topic[:249]}[{partition}] instead of {tp}")
    raise Damaged(f"an answer about no partition instead of {tp}")


def parse_handshake(reply: ResponseReader) -> tuple[int, list[str]]:
    """The error, and the mechanisms that the broker offers."""
    return reply.int16(), reply.array(reply.text, _MOST_NAMES)


def parse_authenticate(reply: ResponseReader) -> tuple[int, str, bytes]:
    """The error, its text, and the mechanism's bytes."""
    return reply.int16(), reply.text(), reply.blob()
