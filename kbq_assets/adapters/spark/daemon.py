"""PySpark's daemon, which forks the Python workers, with the tasks' code preloaded.

Spark starts its daemon for the first task, which then waits half a second until the code is loaded. On one machine,
the driver therefore starts a standby while Java starts (`standby.standby`). The daemon that Spark starts hands over its
environment and its standard streams, and a fork of the standby serves Spark in its place. If no standby answers, the
daemon loads the code itself, as on a cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

#: The environment variable with the path of the standby's socket.
STANDBY: Final = "KBQ_STANDBY"
_STREAMS: Final = (0, 1, 2)
_READY: Final = b"r"


def serve(load: Callable[[], None]) -> None:
    """Fork workers until Spark closes standard input, after loading once (`load_for_workers`). Descriptors on the
    command line are those of a standby (`standby.standby`)."""
    if sys.argv[1:] and all(map(str.isdecimal, sys.argv[1:])):
        listener, control = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
        _stand_by(listener, control, load)
    elif not _is_handed_over(os.environ.get(STANDBY, "")):
        _load(load)
        _fork_workers()


def _load(load: Callable[[], None]) -> None:
    from kbq_assets.adapters.forking.loading import load_for_workers

    # Spark reads the port from standard output, so nothing else may print there.
    with contextlib.redirect_stdout(sys.stderr):
        load_for_workers(load)
        import pyspark.worker  # noqa: F401 (workers would import it one by one)


def _fork_workers() -> None:
    from pyspark.daemon import manager

    try:
        manager()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)  # Python's own end takes longer


def _is_handed_over(path: str) -> bool:
    """Hand over to the standby at ``path``, and wait for the end of the process that serves Spark. Returns False if
    there is none."""
    if not path:
        return False
    theirs = {"environ": dict(os.environ), "argv": sys.argv, "folder": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            socket.send_fds(connection, [b"\n"], _STREAMS)
            connection.sendall(json.dumps(theirs).encode())
            connection.shutdown(socket.SHUT_WR)
            if connection.recv(1) != _READY:
                return False
            connection.recv(1)  # until it ends
            return True
    except OSError:  # the standby has ended
        return False


def _stand_by(listener: socket.socket, control: socket.socket, load: Callable[[], None]) -> None:
    """Load, then fork a daemon for each connection, until the other end of ``control`` closes."""
    import select

    from kbq_assets.adapters.forking.children import is_child, reap
    from kbq_assets.adapters.forking.signals import ignore_all

    ignore_all()
    _load(load)
    either = select.poll()
    for each in (listener, control):
        either.register(each, select.POLLIN)
    while control.fileno() not in [ready for ready, _ in either.poll()]:
        connection, _ = listener.accept()
        with connection:
            if is_child("Spark's daemon"):
                listener.close()
                control.close()
                _take_over(connection)
                return
        reap(os.WNOHANG)
    reap(0)
    os._exit(0)


def _take_over(connection: socket.socket) -> None:
    """Become the daemon that Spark started."""
    data, streams, _, _ = socket.recv_fds(connection, 1, len(_STREAMS))
    while more := connection.recv(65_536):
        data += more
    theirs = json.loads(data)
    os.environ.clear()
    os.environ.update(theirs["environ"])
    os.chdir(theirs["folder"])
    sys.argv[:] = theirs["argv"]
    for ours, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, ours)
        os.close(stream)
    connection.sendall(_READY)
    _fork_workers()
