"""A broker of one partition that speaks the protocol over a socket, and breaks it on demand: cuts, garbage, errors."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Fault: TypeAlias = Callable[[bytes], "bytes | None"]
"""From a whole answer to what is sent of it; None: nothing, and the connection ends; shorter: it ends after that."""

TOPIC = "wired"


def cut_at(share: float) -> Fault:
    """The connection ends in the middle of an answer."""
    return lambda answer: answer[: int(len(answer) * share)]


def drop(answer: bytes) -> bytes | None:
    """The connection ends instead of an answer."""
    return None


@dataclass
class WireBroker:
    """``log`` are batches; ``faults`` are those of the next Fetch answers, ``errors`` their error codes, 0 for none.

    ``asked`` are the Fetch requests so far: offset and expected leader epoch.
    """

    log: list[tuple[int, bytes]] = field(default_factory=list)
    epoch: int = 0
    epoch_ends: dict[int, int] = field(default_factory=dict)
    aborted: Sequence[tuple[int, int]] = ()
    faults: deque[Fault] = field(default_factory=deque)
    errors: deque[int] = field(default_factory=deque)
    metadata_errors: deque[int] = field(default_factory=deque)
    leader: WireBroker | None = None
    fetch_versions: tuple[int, int] = (4, 18)
    asked: list[tuple[int, int]] = field(default_factory=list)
    connections: int = 0
    piece: int = 0
    greeting: bytes = b""
    """What it sends instead of its first answers."""
    lies: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The topic and partition that answers of a kind name instead of the right ones."""
    long_answers: dict[int, int] = field(default_factory=dict)
    """The size of answers that is announced, by API key."""
    cuts: dict[int, int] = field(default_factory=dict)
    """The most bytes of records from an offset on."""
    _open: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """As bootstrap servers."""
        return f"127.0.0.1:{self.port}"

    @property
    def end(self) -> int:
        """Behind the last batch."""
        return self.log[-1][0] if self.log else 0

    def close(self) -> None:
        """Cut every connection, accept no more."""
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        """Cut every connection."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error), client.makefile("rb") as stream:
            while head := stream.read(4):
                request = stream.read(*struct.unpack(">i", head))
                key, _, correlation, size = struct.unpack_from(">hhih", request)
                body = request[10 + size :]
                whole = struct.pack(">i", correlation) + self._answer(key, body)
                answer = struct.pack(">i", self.long_answers.get(key, len(whole))) + whole
                answer = self.greeting or answer
                sent = self.faults.popleft()(answer) if key == 1 and self.faults else answer
                for at in range(0, len(sent or b""), self.piece or 2**30):
                    client.sendall((sent or b"")[at : at + (self.piece or 2**30)])
                if sent is None or len(sent) < len(answer):
                    client.shutdown(socket.SHUT_RDWR)

    def _answer(self, key: int, body: bytes) -> bytes:
        return {18: self._versions, 3: self._metadata, 23: self._epoch_end, 1: self._fetch}[key](body)

    def _versions(self, _: bytes) -> bytes:
        spoken = [(1, *self.fetch_versions), (3, 0, 13), (17, 0, 1), (18, 0, 4), (23, 2, 4), (36, 0, 2)]
        return struct.pack(">hi", 0, len(spoken)) + b"".join(struct.pack(">hhh", *each) for each in spoken)

    def _metadata(self, _: bytes) -> bytes:
        leader, error = self.leader or self, self.metadata_errors.popleft() if self.metadata_errors else 0
        node = struct.pack(">i", 5) + _text("127.0.0.1") + struct.pack(">ih", leader.port, -1)
        partition = struct.pack(">hiiiiii", 0, 0, 5, leader.epoch, 0, 0, 0)
        topic = struct.pack(">h", error) + _text(TOPIC) + b"\x00" + struct.pack(">i", 1) + partition
        return struct.pack(">ii", 0, 1) + node + _text("cluster") + struct.pack(">ii", 5, 1) + topic

    def _epoch_end(self, body: bytes) -> bytes:
        _, epoch = struct.unpack(">ii", body[-8:])
        found = (epoch, self.epoch_ends[epoch]) if epoch in self.epoch_ends else (-1, -1)
        topic, number = self.lies.get("_epoch_end", (TOPIC, 0))
        partition = struct.pack(">ihiiq", 1, 0, number, *found)
        return struct.pack(">ii", 0, 1) + _text(topic) + partition

    def _fetch(self, body: bytes) -> bytes:
        (most,) = struct.unpack_from(">i", body, 12)
        epoch, offset, _, _, _ = struct.unpack(">iqqii", body[-28:])
        self.asked.append((offset, epoch))
        error = self.errors.popleft() if self.errors else 0
        if not error and epoch != self.epoch:
            error = 74 if epoch < self.epoch else 76
        if not error and offset > self.end:
            error = 1
        records = b"" if error else self._records(offset, most)
        aborted = b"".join(struct.pack(">qq", *each) for each in self.aborted)
        topic, number = self.lies.get("_fetch", (TOPIC, 0))
        partition = (
            struct.pack(">iihqqqi", 1, number, error, self.end, self.end, 0, len(self.aborted)) + aborted
        )
        head = struct.pack(">ihii", 0, 0, 0, 1) + _text(topic)
        return head + partition + struct.pack(">i", len(records)) + records

    def _records(self, offset: int, most: int) -> bytes:
        """The first batch whole, as brokers do, and what of the others fits."""
        first, *others = [data for behind, data in self.log if behind > offset] or [b""]
        return (first + b"".join(others)[: max(0, most - len(first))])[: self.cuts.get(offset)]


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


@contextlib.contextmanager
def wire_broker(**options: object) -> Iterator[WireBroker]:
    """A broker while the context lasts."""
    broker = WireBroker(**options)  # type: ignore[arg-type]
    try:
        yield broker
    finally:
        broker.close()
