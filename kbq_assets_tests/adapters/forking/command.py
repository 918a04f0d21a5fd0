"""A command that keeps a spare and starts a program; its arguments are ``CASE FOLDER``.

It prints one line of JSON about the program and the end of both processes. It is a process of its own because a process
with threads, such as pytest's, gets no spare.
"""

from __future__ import annotations

import contextlib
import csv  # noqa: F401 - a module that the program finds imported if it is a fork of this process
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from kbq_assets.adapters.forking.spare import spare_process
from kbq_assets.adapters.forking.starting import RunningProgram, start_program, wait_for_end
from kbq_assets_tests.adapters.forking.program import MODULE


def children() -> list[int]:
    """The ids of this process's children that still run."""
    return [child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


@contextlib.contextmanager
def program() -> Iterator[tuple[RunningProgram, dict[str, Any], Callable[[str], None]]]:
    """A running program, its report, and a function that sends its order."""
    ours, theirs = socket.socketpair()
    with theirs:
        running = start_program(MODULE, [theirs.fileno()])
    with ours, ours.makefile("rw") as lines:

        def order(line: str) -> None:
            print(line, file=lines, flush=True)

        yield running, json.loads(lines.readline()), order


def ends(order: str) -> dict[str, Any]:
    """Start a program, and give it one order."""
    with program() as (running, report, send):
        running_code = running.poll()
        send(order)
        return {**report, "codes": [running_code, running.wait(), running.poll()]}


def runs(folder: str) -> dict[str, Any]:
    """The first program runs in the spare, the second in a process of its own."""
    print("printed once", end=" ")
    with spare_process():
        spare = children()
        os.environ["SET_LATER"] = "a value"
        os.chdir(folder)
        first, second = ends("end 0"), ends("end 0")
    return {"spare": spare, "first": first, "second": second}


def fails(folder: str) -> dict[str, Any]:
    """A program in the spare ends with a code, another one with an exception."""
    with spare_process():
        ended = ends("end 7")
    with spare_process():
        return {"codes": [ended["codes"], ends("fail")["codes"]]}


def is_not_needed(folder: str) -> dict[str, Any]:
    """No program starts."""
    with spare_process():
        spare = children()
    return {"spare": spare, "left": children()}


def has_threads(folder: str) -> dict[str, Any]:
    """There is no spare, but a program can start."""
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    with spare_process():
        spare, report = children(), ends("end 0")
    release.set()
    thread.join()
    return {"spare": spare, "report": report}


def dies(folder: str) -> dict[str, Any]:
    """The spare is killed before a program starts."""
    with spare_process():
        [spare] = children()
        os.kill(spare, signal.SIGKILL)
        while children():
            pass
        report = ends("end 0")
    return {"spare": spare, "report": report, "left": children()}


def hangs(folder: str) -> dict[str, Any]:
    """A program in the spare that does not end is killed."""
    with spare_process(), program() as (running, report, _):
        try:
            running.wait(0.01)
        except subprocess.TimeoutExpired:
            running.kill()
        wait_for_end(running)
        return {"pid": report["pid"], "code": running.poll(), "left": children()}


def is_asked_to_end(folder: str) -> dict[str, Any]:
    """All processes get the signals of a terminal or a service manager; the parent decides when the spare ends."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with spare_process():
        [spare] = children()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(spare, number)
        return {"spare": spare, "pid": ends("end 0")["pid"]}


def is_stopped(folder: str) -> dict[str, Any]:
    """The spare is stopped, so it does not see that nobody needs it."""
    with spare_process():
        [spare] = children()
        os.kill(spare, signal.SIGSTOP)
    return {"left": children()}


def ignores_children(folder: str) -> dict[str, Any]:
    """As under a parent that ignores SIGCHLD: the system keeps no exit codes."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with spare_process():
        ended = ends("end 7")
    with spare_process():
        pass
    return {"codes": ended["codes"], "left": children()}


def cannot_print(folder: str) -> dict[str, Any]:
    """Standard output is closed when the program in the spare ends."""
    with spare_process(), program() as (running, _, send):
        send("print")
        return {"code": running.wait()}


def waits(folder: str) -> dict[str, Any]:
    """Say which process is the spare, and wait to be killed."""
    with spare_process():
        print(json.dumps({"spare": children()}), flush=True)
        sys.stdin.read()
    return {}


CASES = (
    runs,
    fails,
    is_not_needed,
    has_threads,
    dies,
    hangs,
    is_asked_to_end,
    is_stopped,
    ignores_children,
    cannot_print,
    waits,
)

if __name__ == "__main__":
    [chosen] = [case for case in CASES if case.__name__ == sys.argv[1]]
    print(json.dumps(chosen(sys.argv[2])))
