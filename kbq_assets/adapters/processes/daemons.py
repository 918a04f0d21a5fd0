"""Java programs that outlive the command that started them, and that KBQ finds again after any crash.

A daemon has a marker on its command line, ``-Dkbq.local.<service>=<home>``. The record of its pid is only a
shortcut. A process is KBQ's if its pid and start time match the record *and* it has the marker. If the record is
missing or stale (``kill -9`` between start and record), the marker alone finds the process. So KBQ never signals
a recycled pid, and never loses a daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from kbq_assets.adapters.processes.signals import default_signals

# Both start times are clock ticks from /proc plus the boot time, which jumps when the clock is set.
START_TIME_TOLERANCE = 2.0
# During exec, Linux briefly shows no arguments: after closing the old program's files, before setting up the new stack.
EXECUTING_SECONDS = 1.0


@dataclass(frozen=True)
class Daemon:
    """One program: its command, its log and its record."""

    service: str
    home: Path
    command: tuple[str, ...]
    port: int

    @property
    def marker(self) -> str:
        return marker_of(self.service, self.home)

    @property
    def record_path(self) -> Path:
        """The file that records the pid."""
        return record_path(self.service, self.home)

    @property
    def log_path(self) -> Path:
        """The file for standard output and error."""
        return self.home / "logs" / f"{self.service}.log"


@dataclass(frozen=True)
class DaemonRecord:
    """A started process. ``started_at`` is the process's start time (seconds since 1970)."""

    pid: int
    started_at: float
    port: int


def marker_of(service: str, home: Path) -> str:
    """The marker, which is the same for every start of this service in this home."""
    return f"-Dkbq.local.{service}={home}"


def record_path(service: str, home: Path) -> Path:
    """Example: ``.kbq/run/kafka.json``."""
    return home / "run" / f"{service}.json"


def start_daemon(daemon: Daemon) -> psutil.Process:
    """Start ``daemon`` in its own session and record it. The caller holds the lock of the home."""
    daemon.log_path.parent.mkdir(parents=True, exist_ok=True)
    folder = daemon.home / daemon.service
    folder.mkdir(parents=True, exist_ok=True)
    java, *arguments = daemon.command
    with daemon.log_path.open("ab") as log, default_signals():
        started = subprocess.Popen(
            [java, daemon.marker, f"-Dkbq.local.port={daemon.port}", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The process outlives this object on purpose. This suppresses Popen's warning that it still runs.
    started.returncode = 0
    process = psutil.Process(started.pid)
    _write_record(daemon.record_path, process, daemon.port)
    with contextlib.suppress(psutil.NoSuchProcess):
        _settled_arguments_of(process)
    return process


def find_daemon(service: str, home: Path) -> psutil.Process | None:
    """The running process of ``service``, if any. Corrects a wrong record."""
    marker, path = marker_of(service, home), record_path(service, home)
    record = read_record(service, home)
    if record is not None:
        recorded = _recorded_process(record, marker)
        if recorded is not None:
            return recorded
    for process in marked_processes(marker):
        _write_record(path, process, _port_of(process))
        return process
    return None


def stop_processes(processes: Iterable[psutil.Process], grace_seconds: float) -> list[psutil.Process]:
    """Send SIGTERM to all, wait, send SIGKILL to the rest, and return the killed ones."""
    waiting = list(processes)
    for process in waiting:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(waiting, timeout=grace_seconds)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=10)
    return stubborn


def kill_marked(marker: str) -> None:
    """Kill the processes with ``marker`` that an earlier, dead command left running."""
    stop_processes(marked_processes(marker), grace_seconds=2)


def marked_processes(marker: str) -> Iterator[psutil.Process]:
    """Live processes with ``marker`` as a whole argument."""
    return (process for process in running_processes() if _is_marked(process, marker))


def running_processes() -> Iterator[psutil.Process]:
    """All processes that run now.

    psutil's own iterator caches its objects between calls. If a process has ended and its pid was reused, the cached
    object can be read but not signaled, so the new process could not be stopped.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def read_record(service: str, home: Path) -> DaemonRecord | None:
    """The record; None if it is missing or unreadable."""
    try:
        fields = json.loads(record_path(service, home).read_text(encoding="utf-8"))
        return DaemonRecord(int(fields["pid"]), float(fields["started_at"]), int(fields["port"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_record(service: str, home: Path) -> None:
    """Delete the record; call this after the process has ended."""
    record_path(service, home).unlink(missing_ok=True)


def last_lines(path: Path, count: int = 12) -> str:
    """The end of a log, for an error message."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])


def replace_text(path: Path, text: str) -> None:
    """Replace the text of ``path`` atomically: readers see either the old text or the new text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _recorded_process(record: DaemonRecord, marker: str) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(record.pid)
        same_start = abs(process.create_time() - record.started_at) < START_TIME_TOLERANCE
        if same_start and marker in _settled_arguments_of(process):
            return process
    return None


def _is_marked(process: psutil.Process, marker: str) -> bool:
    """Whether a process has the marker. False for zombies and other users' processes, whose command line is unknown."""
    return marker in arguments_of(process)


def _settled_arguments_of(process: psutil.Process) -> Sequence[str]:
    """The arguments. During exec, when a process briefly has none, waits for them."""
    deadline = time.monotonic() + EXECUTING_SECONDS
    while not (arguments := arguments_of(process)):
        if process.status() == psutil.STATUS_ZOMBIE or time.monotonic() > deadline:
            break
        time.sleep(0.005)
    return arguments


def arguments_of(process: psutil.Process) -> Sequence[str]:
    """The command line; empty if the process has ended or belongs to another user."""
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return ()


def _port_of(process: psutil.Process) -> int:
    ports = [text for text in arguments_of(process) if text.startswith("-Dkbq.local.port=")]
    return int(ports[0].partition("=")[2]) if ports else 0


def _write_record(path: Path, process: psutil.Process, port: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        record = DaemonRecord(process.pid, process.create_time(), port)
        replace_text(path, json.dumps(asdict(record)))
