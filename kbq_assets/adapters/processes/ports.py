"""Ports of loopback: who listens, who could."""

from __future__ import annotations

import contextlib
import socket

import psutil

HOST = "127.0.0.1"


def accepts_connections(port: int) -> bool:
    """Whether something listens on ``port`` of loopback."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def can_listen(port: int) -> bool:
    """Whether ``port`` is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        # As Java does: a connection that lingers in TIME_WAIT does not matter, a listener does.
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((HOST, port))
            candidate.listen()
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """Example: ``nginx (process 123)``; needs rights that a user may not have."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
            if listens and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "another program (which one cannot be seen from here)"
