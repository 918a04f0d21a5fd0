"""Loopback ports: whether they are free, and which program listens."""

from __future__ import annotations

import contextlib
import secrets
import socket

import psutil

HOST = "127.0.0.1"
_OWN = range(20_000, 32_000)


def accepts_connections(port: int) -> bool:
    """Whether a program listens on the loopback ``port``."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def can_listen(port: int) -> bool:
    """Whether ``port`` is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As in Java, a connection in TIME_WAIT does not count, only a listener.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
            candidate.listen()
        except OSError:
            return False
    return True


def free_port() -> int:
    """A free port, if possible below the range that systems use for outgoing connections."""
    for _ in range(100):
        port = secrets.choice(_OWN)
        if can_listen(port):
            return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        candidate.bind((HOST, 0))
        return int(candidate.getsockname()[1])


def listener_of(port: int) -> int | None:
    """The id of the process that listens. None if there is none, or if the user lacks the permission to see it."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,):
                return connection.pid
    return None


def holder_of(port: int) -> str:
    """The listener's name, such as ``nginx (process 123)``."""
    with contextlib.suppress(psutil.Error, OSError):
        if (pid := listener_of(port)) is not None:
            return f"{psutil.Process(pid).name()} (process {pid})"
    return "another program (this user cannot see which one)"
