"""Python objects over a socket between a process and its workers, which trust each other."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any, BinaryIO, Final

_LENGTH: Final = struct.Struct("!Q")


def send(connection: socket.socket, message: object) -> None:
    """Send an object. Raises OSError if the other side is gone, and what pickle raises before a byte is sent."""
    data = pickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(stream: BinaryIO) -> bytes:
    """The next object, still pickled: what fails to load leaves the stream at the next one. Raises EOFError if the
    other side is gone."""
    return _read(stream, _LENGTH.unpack(_read(stream, _LENGTH.size))[0])


def load(data: bytes) -> Any:
    """The object. Raises what its module raises."""
    return pickle.loads(data)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
