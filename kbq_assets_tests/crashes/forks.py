"""Processes forked from a warm parent: imports and compiled kernels are there, no client is, and no thread at work.

`python -m kbq_assets_tests.crashes.forks` is the parent. It reads an order a line, forks, and writes an event a line:
`{"pid", "event": "forked" | "stopped" | "ended", "code"}`, where a negative code is the signal that killed it. It ends
when its input does, and its children with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kbq_assets_tests.crashes import child
from kbq_assets_tests.crashes.child import Order

_REPOSITORY = Path(__file__).resolve().parents[2]
_SECONDS = 300.0
_READY = -1


class Event(NamedTuple):
    """What became of a process. ``code`` is its exit code, or the negative number of the signal that killed it."""

    pid: int
    event: str
    code: int = 0


class _Lines:
    """Lines from a pipe, without blocking longer than asked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def read(self, seconds: float | None) -> list[str] | None:
        """Whole lines that have come; None at the end."""
        if not select.select([self._descriptor], [], [], seconds)[0]:
            return []
        data = os.read(self._descriptor, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]


class Forks:
    """The warm parent, from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._input = process.stdin
        self._lines = _Lines(process.stdout.fileno())
        self._events: list[Event] = []
        self.wait(_READY, "forked")

    def fork(self, order: Order) -> int:
        """Begin a run; return its process id."""
        self._input.write(f"{order.encode()}\n".encode())
        self._input.flush()
        return self._take(lambda event: event.event == "forked").pid

    def wait(self, pid: int, *kinds: str) -> Event:
        """The next event of a process, which must be of one of these kinds."""
        event = self._take(lambda event: event.pid == pid)
        assert event.event in kinds, f"{event}, not {kinds}"
        return event

    def run(self, order: Order) -> Event:
        """A run that ends, or is stopped."""
        return self.wait(self.fork(order), "ended", "stopped")

    def _take(self, wanted: Callable[[Event], bool]) -> Event:
        deadline = time.monotonic() + _SECONDS
        while True:
            for event in self._events:
                if wanted(event):
                    self._events.remove(event)
                    return event
            lines = self._lines.read(1.0)
            assert lines is not None, "the parent has ended"
            assert time.monotonic() < deadline, f"nothing happens; seen: {self._events}"
            self._events.extend(Event(*json.loads(line)) for line in lines)


@contextmanager
def forks(*modules: str) -> Iterator[Forks]:
    """A warm parent, which ends with the block. It imports ``modules`` too."""
    command = [sys.executable, "-m", __name__, *modules]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # importing numpy would start threads
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=_REPOSITORY, env=environ, stdin=pipe, stdout=pipe) as process:
        try:
            yield Forks(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(120)


def _main() -> None:
    child.preload()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    _tell(Event(_READY, "forked"))
    orders, children = _Lines(0), set[int]()
    while (lines := orders.read(0.005 if children else None)) is not None:
        for line in lines:
            children.add(_fork(Order.decode(line)))
        for event in _changes():
            _tell(event)
            if event.event == "ended":
                children.discard(event.pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _fork(order: Order) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(child.run(order))
    _tell(Event(pid, "forked"))
    return pid


def _changes() -> Iterator[Event]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            yield Event(pid, "stopped")
        else:
            yield Event(pid, "ended", os.waitstatus_to_exitcode(status))


def _tell(event: Event) -> None:
    os.write(1, f"{json.dumps(event)}\n".encode())


if __name__ == "__main__":
    _main()
