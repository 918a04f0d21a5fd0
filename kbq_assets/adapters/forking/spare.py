"""A spare process: a fork of this one, kept for a program that this process may start later.

A program that forks workers (`starting.start_program`) imports modules for half a second, and a command has imported
many of them too. So the command forks a spare before it starts threads, and the program runs in the spare. If no
program starts, only the fork was for nothing: a few milliseconds.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NoReturn

from kbq_assets.adapters.forking.handover import hand_over, take_over
from kbq_assets.adapters.forking.signals import held_back, ignore_all

#: Descriptors that a program may inherit.
_MOST_DESCRIPTORS: Final = 16
#: Pauses while waiting for the end of a process.
_PAUSE_SECONDS: Final = 0.005


class Spare:
    """A forked process that waits for a program. It has the methods of `subprocess.Popen` that users of programs call,
    with their meaning."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._code: int | None = None

    def run(self, module: str, descriptors: Sequence[int]) -> None:
        """Run ``module`` in the process, with the paths, folder and variables that this process has now. Raises OSError
        if the process is gone."""
        with self._control as control:
            hand_over(control, descriptors, module=module, path=list(map(str, sys.path)))

    def discard(self) -> None:
        """End the process, which runs no program."""
        self._control.close()
        self.kill()  # it may be stopped
        self.wait()

    def poll(self) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # this process was started with SIGCHLD ignored, so no code is kept
                pid, status = self.pid, 0
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked program", timeout or 0.0)
            time.sleep(_PAUSE_SECONDS)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


_SPARE: ContextVar[Spare | None] = ContextVar("spare", default=None)


@contextmanager
def spare_process() -> Iterator[None]:
    """Within the block, keep a spare for the first program that starts. There is none if this process has threads,
    which a fork would lose, or if the system is not Linux: libraries of others may not survive a fork."""
    token = _SPARE.set(_forked() if _has_one_thread() else None)
    try:
        yield
    finally:
        if spare := taken():
            spare.discard()
        _SPARE.reset(token)


def taken() -> Spare | None:
    """The spare, which now belongs to the caller; None if there is none."""
    spare = _SPARE.get()
    _SPARE.set(None)
    return spare


def _has_one_thread() -> bool:
    """Whether this process certainly has only one thread. Threads of libraries count too."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # only Linux has this folder
        return False


def _forked() -> Spare | None:
    control, theirs = socket.socketpair()
    # What is buffered now would be printed twice.
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal to all processes of a service must not end the spare before it ignores signals.
    with theirs, held_back():
        try:
            pid = os.fork()
        except OSError:  # no memory, or too many processes
            control.close()
            return None
        if pid == 0:
            control.close()
            _serve(theirs)
    return Spare(pid, control)


def _serve(control: socket.socket) -> NoReturn:
    """Wait for a program and run it. The process ends here: it must not return into the code of its parent."""
    code = 1
    try:
        ignore_all()
        _run(control)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _run(control: socket.socket) -> None:
    """Become the program that the parent names. Without one, the parent has closed its end."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    with control:
        taken_over = take_over(control, _MOST_DESCRIPTORS)
    if taken_over is None:
        return
    wanted, descriptors = taken_over
    sys.path[:] = wanted["path"]
    sys.argv[:] = [wanted["module"], *map(str, descriptors)]
    sys.modules.pop(wanted["module"], None)  # runpy would warn that it runs a module twice
    import runpy

    runpy.run_module(wanted["module"], run_name="__main__", alter_sys=True)
