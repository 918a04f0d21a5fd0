"""librdkafka's error codes as KBQ's errors."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError

from kbq_assets.adapters.kafka.fetch.errors import DamagedBatch
from kbq_assets.core.errors import (
    AccessRefused,
    KbqError,
    NotFound,
    OffsetOutOfRange,
    StateError,
    Unavailable,
    UnreadableBatch,
)
from kbq_assets.core.protocol.offsets import OffsetRange

UNKNOWN: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        100,  # UNKNOWN_TOPIC_ID, for which the package has no name
    }
)
"""The broker does not know the topic or partition."""

_OUT_OF_RANGE: Final = frozenset(
    {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION}
)
_DAMAGED: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError.INVALID_MSG,
    }
)
_OTHER_LEADER: Final = (
    "let another replica lead the partition; KBQ_READER=fetch or auto reports the whole batch, and kbq accept-gap "
    "gives it up"
)
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_READ_ACL: Final = (
    "grant the ACL READ on topic {topic} to KBQ's user (kafka-acls --add --operation Read --topic {topic} "
    "--allow-principal User:…); the next run then reads it"
)
_GROUP: Final = frozenset(
    {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._WAIT_COORD, KafkaError.COORDINATOR_NOT_AVAILABLE}
)


def is_refusal(error: KafkaError) -> bool:
    """Whether the broker refuses the credentials, so that a retry cannot help."""
    return error.code() in _REFUSED or bool(error.fatal())


def is_about_groups(error: KafkaError) -> bool:
    """Whether the error concerns the consumer group, which librdkafka looks up and KBQ does not use."""
    return error.code() in _GROUP


def read_error(error: KafkaError, range_: OffsetRange, bootstrap_servers: str) -> KbqError:
    """The error to raise if a consumer fails while it reads a range."""
    code, text, what = error.code(), error.str(), str(range_)
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        step = _READ_ACL.format(topic=range_.topic_partition.topic)
        return AccessRefused(f"{what}: {text} (Kafka at {bootstrap_servers})", next_step=step)
    if code in UNKNOWN:
        return gone(what, text)
    if code in _OUT_OF_RANGE:
        return OffsetOutOfRange(
            f"{what}: {text}", next_step="`kbq plan` shows what is lost and the commands to resume"
        )
    if code in _DAMAGED:
        # librdkafka's text names the batch's offset, not its end.
        message = f"{what}: the broker's log is damaged: {text} (Kafka at {bootstrap_servers})"
        return StateError(message, next_step=_OTHER_LEADER)
    return unavailable(f"{what}: {text}", bootstrap_servers, error)


def unreadable(batch: DamagedBatch) -> UnreadableBatch:
    if not batch.is_oversized:
        return UnreadableBatch(str(batch), reason="damaged_batch", first=batch.first, until=batch.until)
    message = f"{batch}; the Kafka option receive.message.max.bytes sets the limit"
    return UnreadableBatch(message, reason="oversized_batch", first=batch.first, until=batch.until)


def gone(what: str, text: str) -> NotFound:
    """The error for a topic or partition that the broker does not know."""
    return NotFound(f"{what}: {text}", next_step="`kbq plan` compares the commits with the broker again")


def unavailable(what: str, bootstrap_servers: str, error: KafkaError | None = None) -> Unavailable:
    """The error if Kafka at ``bootstrap_servers`` does not answer a request, or refuses it."""
    message = f"{what} (Kafka at {bootstrap_servers})"
    if error is not None and is_refusal(error):
        step = "check the credentials, the security options (KBQ_KAFKA_…) and the permissions on topic and cluster"
        return AccessRefused(message, next_step=step)
    step = "check that the brokers run and can be reached from here (`kbq doctor` checks it), then run again"
    return Unavailable(message, next_step=step)
