"""One connection to a broker: TLS, login, requests and answers, each with a time limit."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from kbq_assets.adapters.kafka.fetch import wire_protocol
from kbq_assets.adapters.kafka.fetch.errors import (
    Answered,
    AuthenticationRefused,
    ConnectionLost,
    Damaged,
    NotSpoken,
    OversizedAnswer,
)
from kbq_assets.adapters.kafka.fetch.librdkafka_options import Access
from kbq_assets.adapters.kafka.fetch.sasl import log_in
from kbq_assets.adapters.kafka.fetch.wire_protocol import Api, BrokerAddress, ResponseReader
from kbq_assets.wire.chunk import Bytes

_SIZE: Final = 4
_CORRELATION: Final = 4
#: Size of the reused buffer for answers. A larger answer gets its own buffer.
_KEPT_BYTES: Final = 4 * 1024 * 1024
#: Error codes: SaslAuthenticate refuses the credentials, SaslHandshake refuses the mechanism.
_SASL_REFUSED: Final = 58
_WRONG_MECHANISM: Final = 33
#: The first byte of a TLS record, from ChangeCipherSpec to ApplicationData, and the second byte.
_TLS_RECORDS: Final = range(20, 24)
_TLS_MAJOR: Final = 3


class Connection:
    """A connection to one broker. Use it from one thread at a time, and `close` it. Answers arrive in the order of the
    requests.

    Raises ConnectionLost, Damaged, AuthenticationRefused, NotSpoken. After an error, it must not be used again.
    """

    def __init__(self, node: BrokerAddress, access: Access, connect_seconds: float) -> None:
        self.node = node
        self._access = access
        self._correlations = itertools.count(1)
        self._expected: list[tuple[int, Api]] = []
        self._room: Bytes = np.empty(0, np.uint8)
        self._setup_seconds = min(connect_seconds, access.connect_seconds)
        self._socket = self._connect(self._setup_seconds)
        try:
            if access.login is not None:
                self._log_in()
            self._check_versions()
        except BaseException:
            self.close()
            raise

    @property
    def is_idle(self) -> bool:
        """Whether every request has been answered."""
        return not self._expected

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: Api, body: bytes, seconds: float = math.inf) -> ResponseReader:
        """Send a request and return its answer. Raises ConnectionLost after ``seconds``."""
        self.send(api, body)
        return self.receive(min(seconds, self._access.answer_seconds))[0]

    def send(self, api: Api, body: bytes) -> None:
        """Send a request; `receive` returns its answer later."""
        correlation = next(self._correlations)
        with _failures(self.node):
            self._socket.settimeout(self._access.answer_seconds)
            self._socket.sendall(wire_protocol.frame(api, correlation, self._access.client_id, body))
        self._expected.append((correlation, api))

    def receive(self, seconds: float) -> tuple[ResponseReader, Bytes]:
        """The next answer and its bytes, which are valid until the next call."""
        deadline = time.monotonic() + seconds
        correlation, api = self._expected.pop(0)
        with _failures(self.node):
            head = bytearray(_SIZE)
            self._fill(memoryview(head), deadline)
            (size,) = struct.unpack(">i", head)
            if not _CORRELATION <= size <= (api.most_bytes or self._access.most_bytes):
                raise _unusual(bytes(head), size, api)
            room = self._room_for(size)
            self._fill(room.data[:size], deadline)
        reply = ResponseReader(room.data[:size])
        if reply.int32() != correlation:
            raise Damaged("the answer to another request")
        return reply, room[:size]

    def _fill(self, target: memoryview, deadline: float) -> None:
        filled = 0
        while filled < len(target):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left)
            got = self._socket.recv_into(target[filled:])
            if got == 0:
                raise ConnectionError("closed by the broker")
            filled += got

    def _room_for(self, size: int) -> Bytes:
        if size > _KEPT_BYTES:
            return np.empty(size, np.uint8)
        if len(self._room) < size:
            self._room = np.empty(size, np.uint8)
        return self._room

    def _connect(self, seconds: float) -> socket.socket:
        with _failures(self.node):
            plain = socket.create_connection((self.node.host, self.node.port), timeout=seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._access.tls is None:
                return plain
            with _failures(self.node):
                return self._access.tls.context().wrap_socket(plain, server_hostname=self.node.host)
        except BaseException:
            plain.close()
            raise

    def _log_in(self) -> None:
        login = self._access.login
        assert login is not None, "only called with a login"
        body = wire_protocol.text(login.mechanism)
        error, offered = wire_protocol.parse_handshake(
            self.ask(wire_protocol.SASL_HANDSHAKE, body, self._setup_seconds)
        )
        if error == _WRONG_MECHANISM:
            names = ", ".join(offered)
            raise AuthenticationRefused(
                f"Authentication failed: {self.node.host} offers {names}, not {login.mechanism}"
            )
        if error:
            raise Answered(error, "SaslHandshake")
        log_in(login, self._exchange)

    def _exchange(self, message: bytes) -> bytes:
        body = struct.pack(">i", len(message)) + message
        error, text, answer = wire_protocol.parse_authenticate(
            self.ask(wire_protocol.SASL_AUTHENTICATE, body, self._setup_seconds)
        )
        if error == _SASL_REFUSED:
            # For OAUTHBEARER, the text is only the JSON of RFC 7628.
            named = text if "uthentication" in text else f"Authentication failed: {text}"
            raise AuthenticationRefused(named.removesuffix(": "))
        if error:
            raise Answered(error, text or "SaslAuthenticate")
        return answer

    def _check_versions(self) -> None:
        spoken = wire_protocol.parse_api_versions(
            self.ask(wire_protocol.API_VERSIONS, b"", self._setup_seconds)
        )
        for api in wire_protocol.NEEDED:
            low, high = spoken.get(api.key, (0, -1))
            if not low <= api.version <= high:
                raise NotSpoken(f"the broker speaks {api.name} {low} to {high}, not {api.version}")


def _unusual(head: bytes, size: int, api: Api) -> Damaged:
    """The error for an answer whose first four bytes are not a valid length."""
    if api is wire_protocol.FETCH and size > 0:
        return OversizedAnswer(f"an answer of {size} bytes")
    if head[0] in _TLS_RECORDS and head[1] == _TLS_MAJOR:
        return Damaged("the port speaks TLS", "set KBQ_KAFKA_SECURITY_PROTOCOL to ssl or sasl_ssl")
    if head == b"HTTP":
        return Damaged(
            "an HTTP server answers", "correct KBQ_KAFKA_BOOTSTRAP_SERVERS: this is not a broker's port"
        )
    return Damaged(f"an answer of {size} bytes")


@contextlib.contextmanager
def _failures(node: BrokerAddress) -> Iterator[None]:
    """Translate the socket's errors to FetchFailure."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationRefused(
            f"{node.host}:{node.port}: {error.verify_message or error.reason}"
        ) from error
    except (OSError, UnicodeError) as error:  # the host name may be invalid
        raise ConnectionLost(f"{node.host}:{node.port}: {error}") from error
