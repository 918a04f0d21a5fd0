"""The process that forks workers and loads their code once. It and its workers end when its parent process ends."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import Final

from kbq_assets.adapters.forking import load_for_workers
from kbq_assets.adapters.process_pool import frames
from kbq_assets.adapters.process_pool.signals import ignore_all

#: A worker's message before it runs a task: it has read it. If its connection ends later, the task has killed it.
READ: Final = "read"
_STDOUT, _STDERR = 1, 2


def serve(control: socket.socket, load: Callable[[], None]) -> None:
    """Load once (`load_for_workers`), then fork a worker for each socket received on ``control``, until its other end
    closes."""
    ignore_all()
    # A program may read the driver's standard output, so workers print to standard error.
    os.dup2(_STDERR, _STDOUT)
    load_for_workers(load)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return _reap(0)  # workers end too, and a container's process 1 may not reap them
        with socket.socket(fileno=descriptors[0]) as connection:
            if _is_child():
                control.close()
                _work(connection)
                os._exit(0)
        _reap(os.WNOHANG)


def _is_child() -> bool:
    """Fork. If that fails, print the error: only the task that needs the worker fails, when the connection closes."""
    try:
        return os.fork() == 0
    except OSError as error:  # no memory, or too many processes
        print(f"a process for a task did not start: {error}", file=sys.stderr, flush=True)
        return False


def _reap(options: int) -> None:
    """Reap the workers that have ended (``os.WNOHANG``), or wait for all (0)."""
    with contextlib.suppress(ChildProcessError):  # no children are left
        while os.waitpid(-1, options)[0]:
            pass


def _work(connection: socket.socket) -> None:
    """Run tasks one after another until the other end closes."""
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError), connection.makefile("rb") as stream:
        while True:
            data = frames.receive(stream)
            frames.send(connection, READ)
            try:
                task, item = frames.load(data)
                frames.send(connection, (task(item), ""))
            except Exception as error:
                frames.send(connection, (None, f"{type(error).__name__}: {error}"))


def _end_with(connection: socket.socket) -> None:
    """End this process when the other end closes, even in the middle of a task: nobody waits for its outcome."""
    gone = select.poll()
    gone.register(connection, 0)  # errors and hang-ups are always reported
    gone.poll()
    os._exit(1)
