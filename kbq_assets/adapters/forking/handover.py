"""Hands this process's variables, folder and descriptors over to a process that goes on in its place."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any


def hand_over(connection: socket.socket, descriptors: Sequence[int], **more: object) -> None:
    """Send what this process has now, and ``more``, which JSON can carry. Raises OSError if the other one is gone."""
    ours = {**more, "environ": dict(os.environ), "folder": os.getcwd()}
    socket.send_fds(connection, [b"\n"], descriptors)
    connection.sendall(json.dumps(ours).encode())
    connection.shutdown(socket.SHUT_WR)


def take_over(connection: socket.socket, most: int) -> tuple[dict[str, Any], list[int]] | None:
    """Take variables and folder from the other process. Returns what it sent and at most ``most`` descriptors; None if
    it closed its end instead."""
    data, descriptors, _, _ = socket.recv_fds(connection, 1, most)
    if not data:
        return None
    while more := connection.recv(65_536):
        data += more
    theirs = json.loads(data)
    os.environ.clear()
    os.environ.update(theirs["environ"])
    os.chdir(theirs["folder"])
    return theirs, descriptors
