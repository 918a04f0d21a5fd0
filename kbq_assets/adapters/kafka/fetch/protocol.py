"""The few requests and answers of Kafka's protocol that reading a range needs, as bytes and values.

https://kafka.apache.org/protocol.html. It uses one version of each, the lowest that suffices: brokers
from 2.1 to 4.x speak all of them, and none has tagged fields. Fetch 10 has leader epochs, zstd and aborted
transactions, and never sends a reader to another replica.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from kbq_assets.adapters.kafka.fetch.errors import Damaged
from kbq_assets.core.protocol.offsets import TopicPartition

Item = TypeVar("Item")

READ_COMMITTED: Final = 1
NO_REPLICA: Final = -1


@dataclass(frozen=True)
class Api:
    """A request type, in the version that KBQ uses."""

    name: str
    key: int
    version: int


FETCH: Final = Api("Fetch", 1, 10)
METADATA: Final = Api("Metadata", 3, 7)
SASL_HANDSHAKE: Final = Api("SaslHandshake", 17, 1)
API_VERSIONS: Final = Api("ApiVersions", 18, 0)
EPOCH_END: Final = Api("OffsetForLeaderEpoch", 23, 2)
SASL_AUTHENTICATE: Final = Api("SaslAuthenticate", 36, 0)
NEEDED: Final = (FETCH, METADATA, EPOCH_END)
"""The request types that a broker must support."""


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker listens."""

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
    """One partition of a Fetch answer. The record batches are ``[records_from, records_until)`` of its bytes."""

    error: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of aborted transactions."""
    records_from: int
    records_until: int


class ResponseReader:
    """Reads an answer's bytes in order. Raises Damaged if they end too soon."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    def skip(self, size: int) -> int:
        """Skip ``size`` bytes; returns the position of the first."""
        start = self.position
        if not 0 <= size <= len(self._data) - start:
            raise Damaged(f"{size} bytes do not fit into an answer of {len(self._data)}")
        self.position += size
        return start

    def int8(self) -> int:
        """A signed number of 8 bits."""
        return int(struct.unpack_from(">b", self._data, self.skip(1))[0])

    def int16(self) -> int:
        """A signed number of 16 bits."""
        return int(struct.unpack_from(">h", self._data, self.skip(2))[0])

    def int32(self) -> int:
        """A signed number of 32 bits."""
        return int(struct.unpack_from(">i", self._data, self.skip(4))[0])

    def int64(self) -> int:
        """A signed number of 64 bits."""
        return int(struct.unpack_from(">q", self._data, self.skip(8))[0])

    def blob(self) -> bytes:
        """Bytes with a length of 32 bits; null is empty."""
        size = self.int32()
        start = self.skip(max(size, 0))
        return bytes(self._data[start : self.position])

    def text(self) -> str:
        """A string with a length of 16 bits; null is empty."""
        size = self.int16()
        start = self.skip(max(size, 0))
        return bytes(self._data[start : self.position]).decode(errors="replace")

    def array(self, item: Callable[[], Item]) -> list[Item]:
        """Length-prefixed items; null is empty. Every item has bytes, so a wrong length ends with the bytes."""
        return [item() for _ in range(self.int32())]


def frame(api: Api, correlation: int, client_id: str, body: bytes) -> bytes:
    """A whole request, beginning with its length."""
    head = struct.pack(">hhi", api.key, api.version, correlation) + text(client_id)
    return struct.pack(">i", len(head) + len(body)) + head + body


def text(value: str) -> bytes:
    """A string in the protocol's form."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def metadata_request(topic: str) -> bytes:
    """Requests the leaders of one topic, without creating it."""
    return struct.pack(">i", 1) + text(topic) + b"\x00"


def epoch_end_request(tp: TopicPartition, current_epoch: int, epoch: int) -> bytes:
    """Requests the end of ``epoch`` in a partition's log."""
    partition = struct.pack(">iiii", 1, tp.partition, current_epoch, epoch)
    return struct.pack(">i", 1) + text(tp.topic) + partition


def fetch_request(
    tp: TopicPartition, leader_epoch: int, offset: int, *, max_bytes: int, wait_seconds: float
) -> bytes:
    """Requests records of one partition from ``offset`` on, without a fetch session."""
    wait = int(wait_seconds * 1000)
    head = struct.pack(">iiiibii", NO_REPLICA, wait, 1, max_bytes, READ_COMMITTED, 0, -1)
    partition = struct.pack(">iiiqqi", 1, tp.partition, leader_epoch, offset, -1, max_bytes)
    return head + struct.pack(">i", 1) + text(tp.topic) + partition + struct.pack(">i", 0)


def parse_api_versions(reply: ResponseReader) -> dict[int, tuple[int, int]]:
    """Lowest and highest version by API key. Raises Damaged for an answer with an error."""
    error = reply.int16()
    if error:
        raise Damaged(f"the broker answers ApiVersions with error {error}")
    return {key: (low, high) for key, low, high in reply.array(lambda: _int16s(reply))}


def _int16s(reply: ResponseReader) -> tuple[int, int, int]:
    return reply.int16(), reply.int16(), reply.int16()


def parse_metadata(reply: ResponseReader, topic: str) -> TopicAnswer:
    """The metadata of ``topic``."""
    reply.int32()
    nodes = dict(reply.array(lambda: _node(reply)))
    reply.text()
    reply.int32()
    topics = dict(reply.array(lambda: _topic(reply, nodes)))
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
    return name, TopicAnswer(error, dict(reply.array(lambda: _partition(reply, nodes))))


def _partition(reply: ResponseReader, nodes: dict[int, BrokerAddress]) -> tuple[int, PartitionLeader]:
    error, index, leader, epoch = reply.int16(), reply.int32(), reply.int32(), reply.int32()
    for _ in range(3):
        reply.array(reply.int32)
    return index, PartitionLeader(nodes.get(leader), epoch, error)


def parse_epoch_end(reply: ResponseReader) -> tuple[int, int, int]:
    """Error, the epoch found, and its end; -1 and -1 if the broker never had it."""
    reply.int32()
    found = reply.array(lambda: (reply.text(), reply.array(lambda: _epoch_end(reply))))
    return _only([partition for _, partitions in found for partition in partitions])


def _epoch_end(reply: ResponseReader) -> tuple[int, int, int]:
    error, _, epoch, offset = reply.int16(), reply.int32(), reply.int32(), reply.int64()
    return error, epoch, offset


def parse_fetch(reply: ResponseReader) -> FetchAnswer:
    """The only partition of the answer."""
    reply.int32()
    error = reply.int16()
    reply.int32()
    if error:
        return FetchAnswer(error, -1, (), 0, 0)
    found = reply.array(lambda: (reply.text(), reply.array(lambda: _fetched(reply))))
    return _only([partition for _, partitions in found for partition in partitions])


def _fetched(reply: ResponseReader) -> FetchAnswer:
    _, error, _, last_stable, _ = reply.int32(), reply.int16(), reply.int64(), reply.int64(), reply.int64()
    aborted = tuple(reply.array(lambda: (reply.int64(), reply.int64())))
    size = max(reply.int32(), 0)
    return FetchAnswer(error, last_stable, aborted, reply.skip(size), reply.position)


def _only(items: list[Item]) -> Item:
    if len(items) != 1:
        raise Damaged(f"an answer about {len(items)} partitions instead of one")
    return items[0]


def parse_handshake(reply: ResponseReader) -> tuple[int, list[str]]:
    """Error, and the mechanisms offered by the broker."""
    return reply.int16(), reply.array(reply.text)


def parse_authenticate(reply: ResponseReader) -> tuple[int, str, bytes]:
    """Error, its text, and the mechanism's bytes."""
    return reply.int16(), reply.text(), reply.blob()
