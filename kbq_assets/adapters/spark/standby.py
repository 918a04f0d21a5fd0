"""The standby of Spark's daemon (see `daemon`): how the driver starts it, and how it takes over."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from kbq_assets.adapters.forking.children import is_child, reap
from kbq_assets.adapters.forking.handover import take_over
from kbq_assets.adapters.forking.signals import ignore_all
from kbq_assets.adapters.forking.starting import RunningProgram, start_program, wait_for_end
from kbq_assets.adapters.spark.daemon import READY, STANDBY, STREAMS, fork_workers, load_code

_LOGGER: Final = logging.getLogger("kbq.extract")


@contextmanager
def standby(module: str) -> Iterator[dict[str, str]]:
    """Until the block ends, a process that runs ``module``, the program of Spark's daemon, has its code loaded. Yields
    the options with which Spark's daemon finds it; none if it cannot start."""
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kbq-")
        )  # only this user can enter it
        path = Path(folder, "standby")
        control, theirs = socket.socketpair()
        try:
            program = _start(module, path, theirs)
        except OSError as error:  # the path is too long for a socket, or no process can start
            control.close()
            _LOGGER.warning("no standby, so Spark's first task waits until its code is loaded: %s", error)
            yield {}
            return
        finally:
            theirs.close()
        stack.callback(wait_for_end, program)
        stack.callback(control.close)
        yield {f"spark.executorEnv.{STANDBY}": str(path)}


def _start(module: str, path: Path, control: socket.socket) -> RunningProgram:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        return start_program(module, [listener.fileno(), control.fileno()])


def stand_by(listener: socket.socket, control: socket.socket, load: Callable[[], None]) -> None:
    """Load, then fork a daemon for each connection, until the other end of ``control`` closes."""
    ignore_all()
    load_code(load)
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
    taken_over = take_over(connection, len(STREAMS))
    if taken_over is None:
        os._exit(1)
    theirs, streams = taken_over
    sys.argv[:] = theirs["argv"]
    for ours, stream in zip(STREAMS, streams, strict=True):
        os.dup2(stream, ours)
        os.close(stream)
    connection.sendall(READY)
    fork_workers()
