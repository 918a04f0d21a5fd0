"""Sends Python objects over a socket between a process and its workers, which trust each other."""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any, BinaryIO, Final

_LENGTH: Final = struct.Struct("!Q")


def send(connection: socket.socket, message: object) -> None:
    """Send an object. Raises OSError if the other side is gone. If pickle raises an error, nothing was sent."""
    data = pickle.dumps(message)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(stream: BinaryIO) -> bytes:
    """The next object, still pickled, so that an object that fails to load leaves the stream intact. Raises EOFError if
    the other side is gone."""
    return _read(stream, _LENGTH.unpack(_read(stream, _LENGTH.size))[0])


def load(data: bytes) -> Any:
    """The unpickled object. Raises any error of its module."""
    return pickle.loads(data)


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
