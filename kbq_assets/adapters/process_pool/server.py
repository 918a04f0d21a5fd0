"""The process that forks workers and loads their code once. It and its workers end when its parent process ends."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Final

from kbq_assets.adapters.forking.children import is_child, reap
from kbq_assets.adapters.forking.loading import load_for_workers
from kbq_assets.adapters.forking.signals import ignore_all
from kbq_assets.adapters.process_pool import frames

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
            return reap(0)  # workers end too, and a container's process 1 may not reap them
        with socket.socket(fileno=descriptors[0]) as connection:
            if is_child("a process for a task"):
                control.close()
                _work(connection)
                os._exit(0)
        reap(os.WNOHANG)


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
