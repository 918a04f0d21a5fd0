"""Compares a large load job of a lake on Spark with Spark's own path from Avro to Parquet, on the same files.

``python -m benchmarks.lake_peer [ROUNDS]`` measures whole process trees, including Spark's start, prints a table and
writes ``benchmarks/results/lake_peer.json``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks.measure import REPOSITORY, Usage, measure
from benchmarks.peers import spark

WORK = REPOSITORY / ".kbq" / "bench-lake"
RESULTS = REPOSITORY / "benchmarks" / "results" / "lake_peer.json"
CORES = 2
#: Copies of each generated file, which give a load job of about 900 MB.
COPIES = 4


def staged(folder: Path, kind: str) -> int:
    """Write the staged files unless they exist, and return their bytes."""
    if not folder.is_dir():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "benchmarks.lake", kind, str(partial)], check=True)
        for path in sorted(partial.glob("*.avro")):
            for copy in range(1, COPIES):
                shutil.copyfile(path, path.with_name(f"{path.stem}-{copy}.avro"))
        partial.rename(folder)
    return sum(path.stat().st_size for path in folder.glob("*.avro"))


def kbq(source: Path, kind: str) -> Usage:
    """One load job, written in Spark tasks."""
    shutil.rmtree(WORK / "lake", ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.lake", "job", str(source), str(WORK / "lake"), kind]
    return measure(command, WORK, WORK / "kbq.log", {**os.environ, "KBQ_HOME": str(WORK / "kbq")})


def peer(source: Path, installed: tuple[Path, tuple[Path, ...], Path]) -> Usage:
    """Spark's own readers and writers."""
    python, jars, java_home = installed
    shutil.rmtree(WORK / "parquet", ignore_errors=True)
    arguments = WORK / "spark.json"
    given = {"master": f"local[{CORES}]", "jars": [str(jar) for jar in jars]}
    arguments.write_text(json.dumps({**given, "input": str(source), "output": str(WORK / "parquet")}))
    environ = {"JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    job = REPOSITORY / "benchmarks" / "lake_spark_job.py"
    return measure([python, job, arguments], WORK, WORK / "spark.log", {**os.environ, **environ})


def main(rounds: int) -> None:
    """Measure both in turn, and print the medians."""
    WORK.mkdir(parents=True, exist_ok=True)
    python, jars, java = spark(WORK, Console(stderr=True))
    results: list[dict[str, object]] = []
    for kind in ("flat", "nested"):
        source = WORK / kind
        size = staged(source, kind)
        found: dict[str, list[Usage]] = {"KBQ": [], "Spark": []}
        for _ in range(rounds):
            found["KBQ"].append(kbq(source, kind))
            found["Spark"].append(peer(source, (python, jars, java.home)))
        for name, usages in found.items():
            cpu = statistics.median(each.cpu for each in usages)
            wall = statistics.median(each.wall for each in usages)
            peak = max(each.peak_mb for each in usages)
            worker = max(each.python_peak_mb for each in usages)
            results.append(
                {
                    "records": kind,
                    "avro_mb": round(size / 1e6),
                    "program": name,
                    "rounds": rounds,
                    "wall": round(wall, 1),
                    "cpu": round(cpu, 1),
                    "peak_mb": round(peak),
                    "python_peak_mb": round(worker),
                    "load": round(usages[0].load, 1),
                }
            )
            print(json.dumps(results[-1]), flush=True)
    document = {"time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "results": results}
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
