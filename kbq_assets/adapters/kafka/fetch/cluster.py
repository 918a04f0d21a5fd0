"""Finds the leaders of partitions, and keeps connections to brokers from one range to the next."""

from __future__ import annotations

import itertools
import random
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeAlias

from kbq_assets.adapters.kafka.fetch import wire_protocol
from kbq_assets.adapters.kafka.fetch.connection import Connection
from kbq_assets.adapters.kafka.fetch.errors import AuthenticationRefused, ConnectionLost, FetchFailure
from kbq_assets.adapters.kafka.fetch.librdkafka_options import Access
from kbq_assets.adapters.kafka.fetch.wire_protocol import BrokerAddress, PartitionLeader, TopicAnswer
from kbq_assets.core.protocol.offsets import TopicPartition

#: Lifetime of a known leader. A broker that no longer leads says so; this only limits the use of a stale answer.
_LEADER_SECONDS: Final = 300.0
#: Idle connections kept to one broker.
_KEPT: Final = 4
#: Lifetime of an idle connection. A broker closes it after ten minutes.
_IDLE_SECONDS: Final = 240.0
#: Minimum seconds that each of several brokers gets to connect and answer.
_NODE_SECONDS: Final = 2.0
#: UNKNOWN_TOPIC_OR_PARTITION.
_NO_PARTITION: Final = PartitionLeader(None, -1, 3)

_Idle: TypeAlias = defaultdict[tuple[BrokerAddress, Access], list[tuple[float, Connection]]]


class Cluster:
    """The brokers behind some bootstrap servers. Threads may share it. Each connection serves one read at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: _Idle = defaultdict(list)
        self._leaders: dict[TopicPartition, tuple[float, PartitionLeader]] = {}
        self._known: dict[BrokerAddress, None] = {}
        weakref.finalize(self, _close, self._idle)

    def leader(self, tp: TopicPartition, access: Access, seconds: float) -> PartitionLeader:
        """The last known leader, or a broker's current answer. Raises FetchFailure."""
        with self._lock:
            heard, leader = self._leaders.get(tp, (-_LEADER_SECONDS, None))
        if leader is not None and time.monotonic() - heard < _LEADER_SECONDS:
            return leader
        topic = self.describe(tp.topic, access, seconds)
        if topic.error:
            return PartitionLeader(None, -1, topic.error)
        return topic.partitions.get(tp.partition, _NO_PARTITION)

    def forget_leader(self, tp: TopicPartition) -> None:
        """Forget the leader, so that the next call asks again."""
        with self._lock:
            self._leaders.pop(tp, None)

    def describe(self, topic: str, access: Access, seconds: float) -> TopicAnswer:
        """The answer of the first broker that responds. If none does, raises the last one's FetchFailure."""
        last: FetchFailure = ConnectionLost("no broker")
        nodes, deadline = self._nodes(access), time.monotonic() + seconds
        for number, node in enumerate(nodes):
            # If a broker is silent, the others still get their share of the time.
            share = max(_NODE_SECONDS, (deadline - time.monotonic()) / (len(nodes) - number))
            try:
                connection = self.borrow(node, access, share)
                try:
                    reply = connection.ask(
                        wire_protocol.METADATA, wire_protocol.metadata_request(topic), share
                    )
                    answer = wire_protocol.parse_metadata(reply, topic)
                except BaseException:
                    connection.close()
                    raise
                self.give_back(connection, access)
            except AuthenticationRefused:
                raise
            except FetchFailure as failure:
                last = failure
                self._forget_node(node)
                continue
            self._remember(topic, answer)
            return answer
        raise last

    def borrow(self, node: BrokerAddress, access: Access, seconds: float) -> Connection:
        """A connection for exclusive use, until it is given back or closed."""
        with self._lock:
            kept = self._idle[node, access]
            while kept:
                since, connection = kept.pop()
                if time.monotonic() - since < _IDLE_SECONDS:
                    return connection
                connection.close()
        return Connection(node, access, seconds)

    def give_back(self, connection: Connection, access: Access) -> None:
        """Keep a connection for the next read. Closes it if it still waits for an answer."""
        with self._lock:
            kept = self._idle[connection.node, access]
            if connection.is_idle and len(kept) < _KEPT:
                kept.append((time.monotonic(), connection))
                return
        connection.close()

    def _nodes(self, access: Access) -> Sequence[BrokerAddress]:
        """The brokers to ask: two known ones at random, the bootstrap servers, then the other known ones."""
        with self._lock:
            known = list(self._known)
        # Shuffled, so that readers do not all ask the same broker.
        random.shuffle(known)
        return list(dict.fromkeys((*known[:2], *access.bootstrap, *known[2:])))

    def _remember(self, topic: str, answer: TopicAnswer) -> None:
        now = time.monotonic()
        with self._lock:
            for partition, leader in answer.partitions.items():
                if leader.node is not None:
                    self._leaders[TopicPartition(topic, partition)] = now, leader
                    self._known[leader.node] = None

    def _forget_node(self, node: BrokerAddress) -> None:
        with self._lock:
            self._known.pop(node, None)


def _close(idle: _Idle) -> None:
    for _, connection in itertools.chain.from_iterable(idle.values()):
        connection.close()
