"""A pool of worker processes, as seen by the process that gives them work."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, BinaryIO, Final

from kbq_assets.adapters.forking.signals import held_back
from kbq_assets.adapters.forking.starting import start_program, wait_for_end
from kbq_assets.adapters.process_pool import frames
from kbq_assets.core.errors import EngineEnded, Unavailable

#: Workers that get a task one after another, because the ones before ended without reading it: one that was killed
#: while it was idle, then new ones.
_MOST_WORKERS: Final = 4
#: Tasks of a worker. Then it ends, and the next task gets a new one: so whatever tasks leave in memory is bounded.
MOST_TASKS: Final = 1_000


class TaskFailed(Exception):
    """A task raised an exception."""


class WorkerDied(Exception):
    """A worker ended in the middle of a task."""

    def __init__(self) -> None:
        super().__init__(
            "its process died: if the kernel's log (dmesg) says out of memory, start fewer processes"
            " (KBQ_SPARK_MASTER=processes[2])"
        )


class ProcessPool:
    """At most ``size`` worker processes, each with one task at a time. They start when needed.

    ``module`` is run with the argument DESCRIPTOR, and serves the socket with that descriptor
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
            self._server = start_program(module, [theirs.fileno()])

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
        wait_for_end(self._server)

    def run(self, task: Callable[[Any], Any], item: object) -> Any:
        """The result of ``task(item)``, which a worker computes; both must pickle. Threads may share it.

        If a worker ends before it has read the task, another one gets the task. Raises TaskFailed with the task's
        exception, WorkerDied, Unavailable if new workers end too, or EngineEnded if none can start.
        """
        for number in range(_MOST_WORKERS):
            with self._worker(is_new=number > 0) as worker:
                if worker.has_read(task, item):
                    return worker.answer()
        raise Unavailable(
            f"{_MOST_WORKERS} processes ended before they read their task",
            next_step="look for their error in this command's standard error; if the kernel's log (dmesg) says out of"
            " memory, start fewer processes (KBQ_SPARK_MASTER=processes[2])",
        )

    def give_up(self) -> None:
        """End the workers that run a task."""
        with self._lock:
            for worker in self._busy:
                worker.end()

    def check(self) -> None:
        """Raise EngineEnded if no worker can start any more."""
        if (code := self._server.poll()) is not None:
            raise self._ended(f"with exit code {code}")

    @contextlib.contextmanager
    def _worker(self, *, is_new: bool) -> Iterator[_Worker]:
        """A worker for one task: an idle one if possible, unless it must be new."""
        with self._lock:
            worker = self._idle.pop() if self._idle and not is_new else None
        worker = worker or self._started()
        with self._lock:
            self._busy.add(worker)
            if self._is_closed:
                worker.end()
        try:
            yield worker
        finally:
            with self._lock:
                self._busy.discard(worker)
                is_kept = worker.is_idle and worker.tasks < MOST_TASKS and not self._is_closed
                if is_kept:
                    self._idle.append(worker)
            if not is_kept:
                worker.close()

    def _started(self) -> _Worker:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise Unavailable(
                f"a process for a task cannot be connected: {error.strerror}",
                next_step="allow this command more open files (ulimit -n)",
            ) from error
        with theirs, held_back():
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise self._ended("before it started this one") from error
        return _Worker(ours)

    def _ended(self, how: str) -> EngineEnded:
        return EngineEnded(
            f"the process that starts workers ended {how}",
            next_step="start the command again: the next run continues where this one stopped. If it ends again, its"
            " standard error says why",
        )


class _Worker:
    """The connection to a worker process, which may not have started yet."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream: BinaryIO = connection.makefile("rb")
        self._is_ended = False
        self._has_answered = True
        #: tasks that it got
        self.tasks = 0

    @property
    def is_idle(self) -> bool:
        """Whether it can get another task. A worker that has not answered cannot, whatever failed."""
        return self._has_answered and not self._is_ended

    def has_read(self, task: Callable[[Any], Any], item: object) -> bool:
        """Hand over a task; return False if the worker ended without reading it. Raises WorkerDied after `end`."""
        self._has_answered = False
        self.tasks += 1
        try:
            frames.send(self._connection, (task, item))
            frames.receive(self._stream)
        except (EOFError, OSError) as gone:
            if self._is_ended:
                raise WorkerDied from gone
            return False
        return True

    def answer(self) -> Any:
        """The result of the task that it has read. Raises TaskFailed with the task's exception, or WorkerDied."""
        try:
            data = frames.receive(self._stream)
        except (EOFError, OSError) as gone:
            raise WorkerDied from gone
        result, error = frames.load(data)
        self._has_answered = True
        if error:
            raise TaskFailed(error)
        return result

    def end(self) -> None:
        """Shut down the connection. The worker ends, and a thread that waits for its answer gets an end of file."""
        self._is_ended = True
        with contextlib.suppress(OSError):  # the worker closed it first
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. No thread may be waiting for an answer."""
        self.end()
        self._stream.close()
        self._connection.close()
