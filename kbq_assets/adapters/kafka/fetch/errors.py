"""Failures between a reading and a broker, before they become KBQ's errors.

FetchFailure
├── ConnectionLost   the socket broke or was silent too long: retry
├── Answered         the broker answered with an error code
├── Refused          credentials or certificates: trying again is of no use
├── Damaged          the bytes are not an answer of a broker
│   ├── OversizedAnswer   an answer over the limit
│   └── DamagedBatch      one record batch cannot be read
└── NotSpoken        librdkafka can read it, this reader cannot
"""

from __future__ import annotations

from typing import Final

NO_BROKER: Final = (
    "check that KBQ_KAFKA_BOOTSTRAP_SERVERS names Kafka brokers, and that nothing between them and KBQ changes their "
    "answers; then run again"
)


class FetchFailure(Exception):
    """The root; its text is for people and never holds a secret."""


class ConnectionLost(FetchFailure):
    """No connection, or no answer in time."""


class Answered(FetchFailure):
    """An error code of Kafka's protocol."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class AuthenticationRefused(FetchFailure):
    """The broker refuses this client's identity, or this client the broker's."""


class Damaged(FetchFailure):
    """The reply does not parse. ``advice`` is the operator's next step."""

    def __init__(self, text: str, advice: str = NO_BROKER) -> None:
        super().__init__(text)
        self.advice = advice


class OversizedAnswer(Damaged):
    """A Fetch answer over the limit: its first batch alone may exceed it."""


class DamagedBatch(Damaged):
    """The batch of ``[first, until)`` is damaged, or over the limit of an unpacked batch."""

    def __init__(self, text: str, first: int, until: int, *, is_oversized: bool = False) -> None:
        super().__init__(text)
        self.first, self.until, self.is_oversized = first, until, is_oversized


class NotSpoken(FetchFailure):
    """The message format or the broker is too old for this reader, or an option is unsupported."""
