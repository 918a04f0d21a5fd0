"""Dagster's processes of one DAGSTER_HOME: started, kept alive, found again and stopped.

Whoever holds the lock of the home looks after them; the kernel drops the lock when the holder dies. The next
holder then finds a dead command's processes by their command lines, which name the home, and ends them first. A run's
worker names it in its environment alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from kbq_assets.adapters.processes.daemons import stop_processes
from kbq_assets.adapters.processes.signals import default_signals

#: Seconds for a process to end by itself: a run worker reports its run before it does.
GRACE_SECONDS = 10.0
#: How often strays are looked for at most.
_ROUNDS = 5
#: An argument of run workers, which a code server starts through multiprocessing.
_WORKER = "--multiprocessing-fork"
#: A log is begun anew when it has this many bytes; one old log is kept.
LOG_BYTES = 20 * 1024 * 1024


@dataclass
class HomeLock:
    """The right to look after a home's processes."""

    path: Path
    _file: IO[str] | None = field(default=None, init=False)

    @property
    def is_held(self) -> bool:
        """Whether this object holds it."""
        return self._file is not None

    def try_acquire(self) -> bool:
        """Take the lock unless somebody has it."""
        if self.is_held:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a", encoding="utf-8")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return True

    def holder(self) -> int:
        """The process that took the lock last; 0 where nobody did."""
        text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        return int(text) if text.isdecimal() else 0

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass
class Processes:
    """Children that work on ``folder`` (a DAGSTER_HOME), one per module."""

    folder: Path
    logs: Path
    environ: Mapping[str, str]
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    @property
    def child_environ(self) -> dict[str, str]:
        """The environment of everything that works on this home."""
        # On a machine that is busy, starting a worker has taken longer than Dagster's minute: the run then failed.
        patience = {"DAGSTER_GRPC_TIMEOUT_SECONDS": "300"}
        return {**patience, **self.environ, "DAGSTER_HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}

    def ensure(self, module: str, *arguments: str) -> bool:
        """Have `python -m module` running; False when it had ended and was started again."""
        child = self._children.get(module)
        rotate(self.log(module))
        if child is not None and child.poll() is None:
            return True
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.log(module).open("ab") as log, default_signals():
            # In a session of its own: an interrupt at the terminal reaches us, and we end it in order.
            self._children[module] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=self.child_environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return child is None

    def log(self, module: str) -> Path:
        """Where a child's output goes."""
        return self.logs / f"{module.replace('._', '-').replace('_', '-')}.log"

    def stop(self) -> None:
        """Stop our children, with the processes they started."""
        ended = [self._children.pop(name) for name in list(self._children)]
        stop_processes([process for child in ended for process in _family(child.pid)], GRACE_SECONDS)
        for child in ended:
            child.wait()

    def stop_strays(self) -> None:
        """Stop what works on this home and is none of ours: a dead command's daemon, code servers, run workers.

        A code server ends its workers. One without a code server is killed: it would report a failure, which is
        tried again. A stray may just be starting another: so they are looked for until there are none.
        """
        for _ in range(_ROUNDS):
            ours = {process.pid for child in self._children.values() for process in _family(child.pid)}
            strays = [process for process in self.found() if process.pid not in ours]
            if not strays:
                return
            workers = [process for process in strays if _WORKER in _arguments(process)]
            stop_processes([process for process in strays if process not in workers], GRACE_SECONDS)
            for process in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(workers, GRACE_SECONDS)

    def found(self) -> list[psutil.Process]:
        """Running Dagster processes of the home."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        arguments = _arguments(process)
        if _WORKER in arguments:
            return _environ(process).get("DAGSTER_HOME") == str(self.folder)
        return _module(arguments).startswith("dagster") and any(self._names(a) for a in arguments)

    def _names(self, argument: str) -> bool:
        """Whether an argument holds the home's path, alone or inside JSON (`/a/b` is not in `/a/bc`)."""
        home = str(self.folder)
        return any(f"{home}{end}" in argument + " " for end in ('"', "/", " ", "'", "\\"))


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _arguments(process: psutil.Process) -> Sequence[str]:
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return ()


def _environ(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def is_alive(pid: int, since: float) -> bool:
    """Whether the process that had this id at a time of the clock still runs."""
    try:
        process = psutil.Process(pid)
        # A second's grace: the kernel counts from the boot, in ticks.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= since + 1
    except psutil.NoSuchProcess:
        return False


def rotate(log: Path, size: int = LOG_BYTES) -> None:
    """Move what a large log holds to `<log>.1`. Its writers append, so it is emptied in place; lines written
    during the copy are lost."""
    if log.is_file() and log.stat().st_size > size:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def _module(arguments: Sequence[str]) -> str:
    """The module of `python -m module …`."""
    return next((module for flag, module in itertools.pairwise(arguments) if flag == "-m"), "")
