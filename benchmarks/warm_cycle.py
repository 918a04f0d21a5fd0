"""The cost of one cycle of a resident application, after a first cycle that started Spark and its workers."""

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
    """A process and its descendants. CPU time of ended processes stays counted."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}

    def look(self) -> tuple[float, dict[str, float]]:
        """CPU seconds so far, and megabytes by kind of process."""
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
    """The cost for an application, which has extracted ``first``, to extract ``records`` after ``then`` is added to the
    environment's source list. Wall time is that of the cycle."""
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
    """Wait until cycles have read the given number of records, and return their seconds."""
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
