"""A pool of worker processes, as seen by the process that gives them work."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, Final

from kbq_assets.adapters.process_pool import frames
from kbq_assets.core.errors import EngineEnded

#: Time that the processes get for a clean end.
_END_SECONDS: Final = 10.0


class TaskFailed(Exception):
    """A task raised an exception."""


class WorkerDied(Exception):
    """A worker ended in the middle of a task."""


class ProcessPool:
    """At most ``size`` worker processes, each with one task at a time. They start when needed.

    ``module`` is started as ``python -m MODULE DESCRIPTOR`` and serves the socket with that descriptor
    (`server.serve`). Use the pool as a context manager. At its end, running tasks are given up.
    """

    def __init__(self, module: str, size: int) -> None:
        self.size = size
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._is_closed = False
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            for worker in self._busy:
                worker.end()
            while self._idle:
                self._idle.pop().close()
        self._control.close()
        try:
            self._server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()

    def run(self, task: Callable[[Any], Any], item: object) -> Any:
        """The result of ``task(item)``, which a worker computes; both must pickle. Threads may share it.

        Raises TaskFailed with the task's exception, WorkerDied, or EngineEnded if no worker can start.
        """
        worker, has_answered = self._taken(), False
        try:
            result, error = worker.ask(task, item)
            has_answered = True
        except (EOFError, OSError) as gone:
            raise WorkerDied("its process died") from gone
        finally:  # a worker that has not answered cannot be reused, whatever failed
            self._free(worker, is_alive=has_answered)
        if error:
            raise TaskFailed(error)
        return result

    def give_up(self) -> None:
        """End the workers that run a task."""
        with self._lock:
            for worker in self._busy:
                worker.end()

    def check(self) -> None:
        """Raise EngineEnded if no worker can start any more."""
        if (code := self._server.poll()) is not None:
            raise self._ended(f"with exit code {code}")

    def _taken(self) -> _Worker:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        worker = worker or self._started()
        with self._lock:
            self._busy.add(worker)
            if self._is_closed:
                worker.end()
        return worker

    def _free(self, worker: _Worker, *, is_alive: bool) -> None:
        with self._lock:
            self._busy.discard(worker)
            if is_alive and not self._is_closed:
                self._idle.append(worker)
                return
        worker.close()

    def _started(self) -> _Worker:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):  # the server has ended: this worker never answers
            socket.send_fds(self._control, [b"w"], [theirs.fileno()])
        worker = _Worker(ours)
        try:
            worker.wait_for_start()
        except (EOFError, OSError) as error:
            worker.close()
            raise self._ended("before it started this one") from error
        return worker

    def _ended(self, how: str) -> EngineEnded:
        return EngineEnded(
            f"the process that starts workers ended {how}",
            next_step="start the command again: the next run continues where this one stopped",
        )


class _Worker:
    """The connection to a worker process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream: BinaryIO = connection.makefile("rb")

    def wait_for_start(self) -> None:
        """Wait for the first message. Raises EOFError or OSError if the worker does not start."""
        frames.load(frames.receive(self._stream))

    def ask(self, task: Callable[[Any], Any], item: object) -> tuple[Any, str]:
        """A task's result and its error. Raises EOFError or OSError if the worker dies."""
        frames.send(self._connection, (task, item))
        result, error = frames.load(frames.receive(self._stream))
        return result, error

    def end(self) -> None:
        """Shut down the connection. The worker ends, and a thread that waits for its answer gets an end of file."""
        with contextlib.suppress(OSError):  # the worker closed it first
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. No thread may be waiting for an answer."""
        self.end()
        self._stream.close()
        self._connection.close()
