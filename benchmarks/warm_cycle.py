"""What one cycle of a resident application costs, after a first one that started Spark and its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks.measure import REPOSITORY, Usage

COMMAND = [sys.executable, "-c", "from kbq_assets.definitions import main; main()"]
KBQ = [*COMMAND, "extract", "--json"]
MB = 1 << 20


class Tree:
    """A process and its descendants. Processor time of those that ended stays counted."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}

    def look(self) -> tuple[float, dict[str, float]]:
        """Processor seconds so far, and megabytes by kind of process."""
        memory = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
        for process in (self._root, *self._root.children(recursive=True)):
            try:
                times, size = process.cpu_times(), process.memory_full_info().pss
            except psutil.Error:
                continue
            self._cpu[process.pid, process.create_time()] = times.user + times.system
            kind = "driver" if process == self._root else "jvm" if process.name() == "java" else "workers"
            memory[kind] += size / MB
        return sum(self._cpu.values()), memory


def measure_cycle(environ: Mapping[str, str], first: str, then: str, records: int, log: Path) -> Usage:
    """The cost of ``records`` that ``then``, added to the source list of the environment, brings to an application that
    has extracted those of ``first``. Wall time is that of the cycle."""
    sources = Path(environ["KBQ_SOURCE_TOPICS"])
    sources.write_text(first)
    load = os.getloadavg()[0]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*KBQ, "--resident", "--every", "0.5"],
            cwd=REPOSITORY,
            env={**os.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        _read(process, 1)
        tree = Tree(process.pid)
        before, _ = tree.look()
        sources.write_text(first + then)
        wall = _read(process, records)
        after, memory = tree.look()
        process.terminate()
        process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    return Usage(wall, after - before, sum(memory.values()), 0.0, load)


def _read(process: subprocess.Popen[str], records: int) -> float:
    """Wait until cycles have read so many records; return their seconds."""
    assert process.stdout is not None
    seconds = 0.0
    while records > 0:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the application ended with {process.wait()}")
        report = json.loads(line)
        if report["records"]:
            records -= report["records"]
            seconds += report["seconds"]
    return seconds
