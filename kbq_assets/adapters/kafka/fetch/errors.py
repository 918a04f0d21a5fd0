"""Failures of a read, before they become KBQ's errors.

FetchFailure
├── ConnectionLost         the socket broke or was silent for too long: retry
├── Answered               the broker answered with an error code
├── AuthenticationRefused  credentials or certificates: a retry cannot help
├── Damaged                the bytes are not a broker's answer
│   ├── OversizedAnswer    an answer exceeds the limit
│   └── DamagedBatch       one record batch cannot be read
└── NotSpoken              only librdkafka can read it
"""

from __future__ import annotations

from typing import Final

NO_BROKER: Final = (
    "check that KBQ_KAFKA_BOOTSTRAP_SERVERS names Kafka brokers, and that no proxy changes their answers; then run "
    "again"
)


class FetchFailure(Exception):
    """The root. Its text is for people and never contains a secret."""


class ConnectionLost(FetchFailure):
    """No connection, or no answer in time."""


class Answered(FetchFailure):
    """The broker answered with an error code of Kafka's protocol."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class AuthenticationRefused(FetchFailure):
    """The broker refuses this client's identity, or this client refuses the broker's."""


class Damaged(FetchFailure):
    """The answer does not parse. ``advice`` is the operator's next step."""

    def __init__(self, text: str, advice: str = NO_BROKER) -> None:
        super().__init__(text)
        self.advice = advice


class OversizedAnswer(Damaged):
    """A Fetch answer exceeds the limit, perhaps because of its first batch alone."""


class DamagedBatch(Damaged):
    """The batch of ``[first, until)`` is damaged, or exceeds the limit of an unpacked batch."""

    def __init__(self, text: str, first: int, until: int, *, is_oversized: bool = False) -> None:
        super().__init__(text)
        self.first, self.until, self.is_oversized = first, until, is_oversized


class NotSpoken(FetchFailure):
    """The message format or the broker is too old for this reader, or an option is unsupported."""
