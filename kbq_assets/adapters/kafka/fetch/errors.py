"""Failures between a reading and a broker, before they become KBQ's errors.

FetchFailure
├── ConnectionLost   the socket broke or was silent too long: retry
├── Answered         the broker answered with an error code
├── Refused          credentials or certificates: trying again is of no use
├── Damaged          the bytes are not an answer or a record batch
└── NotSpoken        librdkafka can read it, this reader cannot
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
    """The broker refuses this client's identity, or this client the broker's."""


class Damaged(FetchFailure):
    """The reply does not parse, or a batch's checksum is wrong."""


class NotSpoken(FetchFailure):
    """The message format or the broker is too old for this reader, or an option is unsupported."""
