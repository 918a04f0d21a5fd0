"""Publishes positions as the committed offsets of a consumer group without members, so that Kafka's own tools show the
lag."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from kbq_assets.adapters.kafka.options import LOGGER, admin_options, client_options, without_secrets
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.offsets import TopicPartition

_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.5
_PASSING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    }
)
_NEXT: Final = (
    "choose a group that no consumer uses; with ACLs, allow this user to READ the group and the topic"
)


class KafkaGroups:
    """The `AdvisoryGroups` port."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str] | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._options = dict(options or {})

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        wanted = [ClientPartition(tp.topic, tp.partition, offset) for tp, offset in sorted(positions.items())]
        deadline = time.monotonic() + _SECONDS
        # If the group or its broker is new, the coordinator is found after a few seconds.
        while error := self._error(group, wanted):
            if error.code() not in _PASSING or time.monotonic() > deadline:
                raise self._refused(group, error)
            time.sleep(_PAUSE_SECONDS)

    def _error(self, group: str, wanted: list[ClientPartition]) -> KafkaError | None:
        """The first error of a commit; None if the broker accepted every offset."""
        try:
            [answer] = self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group, wanted)], request_timeout=_SECONDS
            ).values()
            answers = answer.result(_SECONDS * 2).topic_partitions
            return next((each.error for each in answers if each.error), None)
        except KafkaException as error:
            found: KafkaError = error.args[0]
            return found
        except TimeoutError as error:
            raise self._refused(group, "no answer") from error

    def _refused(self, group: str, why: Any) -> Unavailable:
        text = without_secrets(why.str() if isinstance(why, KafkaError) else str(why), self._client)
        return Unavailable(f"the positions were not committed to the group {group}: {text}", next_step=_NEXT)

    @cached_property
    def _client(self) -> dict[str, str]:
        return client_options(self._bootstrap_servers, self._options)

    @cached_property
    def _admin(self) -> AdminClient:
        try:
            return AdminClient({**admin_options(self._client)}, logger=LOGGER)
        except KafkaException as error:
            raise self._refused("", error.args[0]) from error
