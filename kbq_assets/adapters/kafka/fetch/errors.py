"""What goes wrong between a reading and a broker, before it becomes one of KBQ's errors.

FetchFailure
├── ConnectionLost   the socket broke or was silent too long: try again
├── Answered         the broker answered with an error code
├── Refused          credentials or certificates: trying again is of no use
├── Damaged          bytes that are no answer or no record batch
└── NotSpoken        this reader cannot do it, librdkafka can
"""

from __future__ import annotations


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
    """The broker or TLS refuses who we are, or we refuse who it is."""


class Damaged(FetchFailure):
    """A reply that does not parse, or a batch whose checksum is wrong."""


class NotSpoken(FetchFailure):
    """An old format of messages, an old broker."""
