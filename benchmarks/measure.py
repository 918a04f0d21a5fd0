"""Measures the cost of a whole process tree: wall time, CPU time, memory.

``python -m benchmarks.measure REPORT COMMAND…`` runs a command and writes a `Usage` as JSON. It adopts the orphans of
the tree (a JVM whose launcher has ended, Python workers whose daemon has ended) and waits for all of them. So it counts
the CPU time of every process, as the kernel reports it. If a parent ignores the end of its children, as PySpark's
daemon does, the kernel discards their time. Then their last observed time is added. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_MB = 1e6


@dataclass(frozen=True)
class Usage:
    """The cost of a command. ``peak_mb`` is the largest sum of the resident memory of all processes at one time; shared
    pages count in each process. ``python_peak_mb`` is the high-water mark of the largest Python worker, 0 if there is
    none. ``load`` is the machine's load average over the last minute when the run began. ``root_cpu`` is the CPU time
    of the command's own process without its children, to a tenth of a second."""

    wall: float
    cpu: float
    peak_mb: float
    python_peak_mb: float
    load: float
    root_cpu: float = 0.0


def measure(
    command: Sequence[str | Path], work: Path, log: Path, environ: Mapping[str, str] | None = None
) -> Usage:
    """Run a command from the repository's folder. Raises RuntimeError with the end of the log if it fails."""
    report = work / "usage.json"
    report.unlink(missing_ok=True)
    launcher = [sys.executable, "-m", "benchmarks.measure", str(report), *map(str, command)]
    with log.open("wb") as output:
        done = subprocess.run(
            launcher,
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environ or {})},
            check=False,
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"{' '.join(map(str, command[:4]))} … failed with {done.returncode}:\n{tail}")
    return Usage(**json.loads(report.read_text()))


class _Sampler(threading.Thread):
    """Samples the tree's memory ten times per second."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = psutil.Process(root)
        self.root_cpu = 0.0
        self.ended = threading.Event()
        self.peak = 0
        self.python_peak = 0
        self._disowned: dict[int, float] = {}

    def forgotten(self, waited: Collection[int]) -> float:
        """The CPU time of children whose end the kernel did not report. ``waited`` are those that it reported."""
        return sum(seconds for pid, seconds in self._disowned.items() if pid not in waited)

    def run(self) -> None:
        me = psutil.Process()
        while not self.ended.wait(SAMPLE_SECONDS):
            total = 0
            with contextlib.suppress(psutil.Error):
                self.root_cpu = sum(self._root.cpu_times()[:2])
            for process in me.children(recursive=True):
                with contextlib.suppress(psutil.Error, OSError):
                    total += process.memory_info().rss
                    if _ignores_children(process.ppid()):
                        self._disowned[process.pid] = sum(process.cpu_times()[:4])
                    if self._is_worker(process):
                        self.python_peak = max(self.python_peak, _high_water(process.pid))
            self.peak = max(self.peak, total)

    def _is_worker(self, process: psutil.Process) -> bool:
        """Whether a process is a worker, or one that forks workers: every Python but the command itself."""
        return process.pid != self._root.pid and "python" in process.name()


def _ignores_children(pid: int) -> bool:
    ignored = int(_status(pid, "SigIgn:"), 16)
    return bool(ignored >> (signal.SIGCHLD - 1) & 1)


def _status(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith(name)), "0")


def _high_water(pid: int) -> int:
    return int(_status(pid, "VmHWM:")) * 1024


def _wait_for_all() -> Iterator[tuple[int, int]]:
    """Ids and exit codes of children as they end, including adopted ones."""
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def main(report: str, *command: str) -> int:
    """Run ``command`` and all processes that it starts to their end. Returns the command's exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    load, started = os.getloadavg()[0], time.perf_counter()
    child = os.posix_spawnp(command[0], list(command), os.environ)
    sampler = _Sampler(child)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    sampler.start()
    code, wall, waited = 1, 0.0, set[int]()
    for pid, ended in _wait_for_all():
        waited.add(pid)
        if pid == child:
            code, wall = ended, time.perf_counter() - started
    sampler.ended.set()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime + sampler.forgotten(waited)
    usage = Usage(wall, cpu, sampler.peak / _MB, sampler.python_peak / _MB, load, sampler.root_cpu)
    Path(report).write_text(json.dumps(asdict(usage)))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
