"""Reads topics and offsets, with few requests to the broker for any number of partitions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from kbq_assets.adapters.kafka.errors import UNKNOWN, is_refusal, unavailable
from kbq_assets.adapters.kafka.metadata import BrokerMetadata
from kbq_assets.adapters.kafka.options import (
    LOGGER,
    admin_options,
    check_options,
    client_options,
    redacted,
    without_secrets,
)
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition

Key = TypeVar("Key")
Answer = TypeVar("Answer")

#: The package has no types for these constructors.
_SPEC: Final[Any] = OffsetSpec
#: KIP-516's zero id, from brokers before 2.8 and mock clusters.
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
#: After a leader moves, it takes a second or two to find the new one. More frequent retries are useless.
_RETRY_SECONDS: Final = 0.5
#: After this time, partitions or topics without an answer are omitted, because one broken partition must not stop the
#: others. The planner reports them.
_PATIENCE_SECONDS: Final = 5.0
#: Partitions of one call: librdkafka looks each answer up in the list of all, so a call's cost grows by the square.
_AT_ONCE: Final = 700


class KafkaOffsetReader:
    """The `OffsetReader` port over librdkafka's admin client.

    A partition that temporarily has no leader has no offsets. If others answer, the result omits it.
    ``timeout_seconds`` limits each call; if all brokers are down, calls fail sooner. Raises ConfigurationError for
    options that are not allowed.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        options: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._options = dict(options or {})
        self._timeout = timeout_seconds
        check_options(self._options)

    def __repr__(self) -> str:
        return f"KafkaOffsetReader({self._bootstrap_servers!r}, {redacted(self._options)})"

    def cluster_id(self) -> str:
        return str(self._metadata().cluster_id or "")

    def brokers(self) -> Collection[tuple[str, int]]:
        return [(str(each.host), int(each.port)) for each in self._metadata().brokers.values()]

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        """The named topics, by default all that the credentials may see. Omits internal topics, and names with two
        leading underscores (topics of tools). Raises Unavailable."""
        wanted = self._metadata().topics if names is None else names
        described = self._gather("topics", [n for n in wanted if not n.startswith("__")], self._describe)
        return {
            name: TopicDescription(name, _topic_id(found.topic_id), len(found.partitions))
            for name, found in sorted(described.items())
            if not found.is_internal
        }

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        # Get the log start first: retention may move it, and it must not be higher than the end.
        earliest = self._offsets(self._known(partitions), _SPEC.earliest())
        latest = self._offsets(earliest, _SPEC.latest())
        return {
            tp: BrokerOffsets(earliest[tp].offset, found.offset, _leader_epoch(found.leader_epoch))
            for tp, found in latest.items()
        }

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        latest = self._offsets(self._known(partitions), _SPEC.latest())
        at_time = self._offsets(latest, _SPEC.for_timestamp(timestamp_ms))
        return {
            tp: min(found.offset, latest[tp].offset) if found.offset >= 0 else latest[tp].offset
            for tp, found in at_time.items()
        }

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        ends = self._offsets(self._known(stable), _SPEC.latest(), IsolationLevel.READ_UNCOMMITTED)
        held = {tp: end.offset - stable[tp] for tp, end in ends.items() if end.offset > stable[tp]}
        later = self._offsets(held, _SPEC.for_timestamp(before_ms), IsolationLevel.READ_UNCOMMITTED)
        return {tp: held[tp] for tp, found in later.items() if found.offset < 0 or found.offset > stable[tp]}

    def _offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> Mapping[TopicPartition, Any]:
        def ask(wanted: list[TopicPartition], seconds: float) -> dict[TopicPartition, Future[Any]]:
            futures: dict[TopicPartition, Future[Any]] = {}
            for first in range(0, len(wanted), _AT_ONCE):
                some = wanted[first : first + _AT_ONCE]
                asked = {ClientPartition(tp.topic, tp.partition): spec for tp in some}
                found = self._admin.list_offsets(asked, isolation_level=level, request_timeout=seconds)
                futures |= {TopicPartition(tp.topic, tp.partition): each for tp, each in found.items()}
            return futures

        return self._gather("offsets", list(partitions), ask)

    def _known(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """The partitions that exist. librdkafka would not distinguish unknown partitions from a topic whose partitions
        all lack a leader."""
        known = {topic: found.partitions for topic, found in self._metadata().topics.items()}
        return [tp for tp in partitions if tp.partition in known.get(tp.topic, {})]

    def _describe(self, names: list[str], seconds: float) -> dict[str, Future[Any]]:
        return self._admin.describe_topics(TopicCollection(names), request_timeout=seconds)

    def _gather(
        self,
        what: str,
        keys: list[Key],
        ask: Callable[[list[Key], float], Mapping[Key, Future[Answer]]],
    ) -> dict[Key, Answer]:
        """Ask for ``keys`` until each is answered or unknown. Slow ones are omitted if others have answered."""
        answers: dict[Key, Answer] = {}
        waiting, started = keys, time.monotonic()
        while waiting:
            error: KafkaError | None = None
            again = []
            remaining = max(1.0, self._timeout - (time.monotonic() - started))
            for key, future in ask(waiting, remaining).items():
                found = _outcome(future)
                if not isinstance(found, KafkaError):
                    answers[key] = found
                elif found.code() not in UNKNOWN:
                    again.append(key)
                    error = found
            waiting = again
            if error is not None and self._give_up(error, bool(answers), time.monotonic() - started, what):
                LOGGER.warning("no %s of %d of %d: %s", what, len(waiting), len(keys), error.str())
                break
            time.sleep(_RETRY_SECONDS if waiting else 0)
        return answers

    def _give_up(self, error: KafkaError, some_answered: bool, seconds: float, what: str) -> bool:
        """Whether to continue without the rest. Raises Unavailable if nothing answers in time."""
        if some_answered:
            return seconds > min(_PATIENCE_SECONDS, self._timeout)
        if is_refusal(error) or seconds >= self._timeout - _RETRY_SECONDS:
            raise unavailable(f"no {what}: {self._clean(error)}", self._bootstrap_servers, error)
        return False

    def _metadata(self) -> Any:
        try:
            return self._connection.read(self._timeout)
        except KafkaException as raised:
            error = raised.args[0]
            raise unavailable(
                f"no metadata: {self._clean(error)}", self._bootstrap_servers, error
            ) from raised

    @property
    def _admin(self) -> AdminClient:
        return self._connection.client

    @functools.cached_property
    def _connection(self) -> BrokerMetadata:
        client = client_options(self._bootstrap_servers, self._options)
        try:
            return BrokerMetadata(admin_options(client))
        except KafkaException as raised:
            message = without_secrets(str(raised.args[0]), client)
        # Not chained, since the client's own message may quote a value.
        raise ConfigurationError(f"Kafka client: {message}", next_step="check the KBQ_KAFKA_… options")

    def _clean(self, error: KafkaError) -> str:
        return without_secrets(error.str(), client_options(self._bootstrap_servers, self._options))


def _outcome(future: Future[Answer]) -> Answer | KafkaError:
    try:
        return future.result()
    except KafkaException as raised:
        error: KafkaError = raised.args[0]
        return error


def _topic_id(uuid: object) -> str:
    text = str(uuid)
    return "" if text == _NO_TOPIC_ID else text


def _leader_epoch(epoch: int | None) -> int:
    return -1 if epoch is None else epoch
