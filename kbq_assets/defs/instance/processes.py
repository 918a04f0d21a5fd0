"""Starts, restarts, finds and stops the Dagster processes of one DAGSTER_HOME.

The holder of the home's lock manages them. If the holder dies, the kernel releases the lock. The next holder first ends
the dead command's processes. It finds them because their command lines, or a run worker's environment, contain the
home's path.
"""

from __future__ import annotations

import contextlib
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

from kbq_assets.adapters.local_store.locks import try_lock
from kbq_assets.adapters.processes.daemons import arguments_of, running_processes, stop_processes
from kbq_assets.adapters.processes.signals import default_signals

#: Seconds that a process has to end on its own: a run worker first reports its run.
GRACE_SECONDS = 10.0
#: Most rounds of the search for strays.
_ROUNDS = 5
#: An argument of run workers: a code server starts them through multiprocessing.
_WORKER = "--multiprocessing-fork"
#: Prefixes of the modules that this home's processes run.
_MODULES = ("dagster", "kbq_assets.defs.instance.")
#: A log of this many bytes is rotated. One old log is kept.
LOG_BYTES = 20 * 1024 * 1024


@dataclass
class HomeLock:
    """The right to manage a home's processes."""

    path: Path
    _file: IO[str] | None = field(default=None, init=False)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        if self.is_held:
            return True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a", encoding="utf-8")
        if not try_lock(file.fileno()):
            file.close()
            return False
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return True

    def holder(self) -> int:
        """The id of the last process that took the lock; 0 if there is none."""
        text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        return int(text) if text.isdecimal() else 0

    def release(self) -> None:
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
        """The environment of this home's processes."""
        # On a busy machine, a worker took longer to start than Dagster's default of a minute, and its run failed.
        patience = {"DAGSTER_GRPC_TIMEOUT_SECONDS": "300"}
        return {**patience, **self.environ, "DAGSTER_HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}

    def ensure(self, module: str, *arguments: str) -> bool:
        """Start `python -m module` unless it runs. False if it had run before and ended."""
        child = self._children.get(module)
        rotate(self.log(module))
        if child is not None and child.poll() is None:
            return True
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.log(module).open("ab") as log, default_signals():
            # It gets its own session: an interrupt at the terminal reaches only us, and we stop the children in order.
            self._children[module] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=self.child_environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return child is None

    def has(self, pid: int) -> bool:
        """Whether a process is one of our children, or was started by one."""
        return any(process.pid == pid for child in self._children.values() for process in _family(child.pid))

    def log(self, module: str) -> Path:
        """The log file with a child's output."""
        name = module.replace("kbq_assets.defs.instance.", "dagster-")
        return self.logs / f"{name.replace('._', '-').replace('_', '-')}.log"

    def stop(self) -> None:
        """Stop our children and the processes that they started."""
        ended = [self._children.pop(name) for name in list(self._children)]
        stop_processes([process for child in ended for process in _family(child.pid)], GRACE_SECONDS)
        for child in ended:
            child.wait()

    def stop_strays(self) -> None:
        """Stop a dead command's daemon, code servers and run workers on this home.

        A code server ends its own workers. A worker without a code server is killed: otherwise it would report a
        failure, and Dagster would retry the run. The search repeats until it finds none, because a stray may be
        starting another process.
        """
        for _ in range(_ROUNDS):
            ours = {process.pid for child in self._children.values() for process in _family(child.pid)}
            strays = [process for process in self.found() if process.pid not in ours]
            if not strays:
                return
            workers = [process for process in strays if _WORKER in arguments_of(process)]
            stop_processes([process for process in strays if process not in workers], GRACE_SECONDS)
            for process in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(workers, GRACE_SECONDS)

    def found(self) -> list[psutil.Process]:
        """Running Dagster processes of the home."""
        return [process for process in running_processes() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        arguments = arguments_of(process)
        if _WORKER in arguments:
            return _environ(process).get("DAGSTER_HOME") == str(self.folder)
        return _module(arguments).startswith(_MODULES) and any(self._names(a) for a in arguments)

    def _names(self, argument: str) -> bool:
        """Whether an argument contains the home's path, alone or inside JSON (`/a/b` is not in `/a/bc`)."""
        home = str(self.folder)
        return any(f"{home}{end}" in argument + " " for end in ('"', "/", " ", "'", "\\"))


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _environ(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


def is_alive(pid: int, since: float) -> bool:
    """Whether the process that had this id at the time ``since`` is still running."""
    try:
        process = psutil.Process(pid)
        # One second of tolerance: the kernel counts ticks since boot.
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= since + 1
    except psutil.NoSuchProcess:
        return False


def rotate(log: Path, size: int = LOG_BYTES) -> None:
    """Move a large log's content to `<log>.1`. The log is truncated in place, because its writers append. Lines written
    during the copy are lost."""
    if log.is_file() and log.stat().st_size > size:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def _module(arguments: Sequence[str]) -> str:
    """The module of `python -m module …`."""
    return next((module for flag, module in itertools.pairwise(arguments) if flag == "-m"), "")
