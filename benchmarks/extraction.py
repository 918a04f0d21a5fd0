"""KBQ's extraction against Spark's own path from Kafka to Avro files, and against reading without doing anything.

``python -m benchmarks.extraction [--small 2000000] [--large 1000000] [--repeat 3] [--only kbq,spark,perf-test]``.
All run on the same broker and topics, two cores' worth of tasks, interleaved; a number is the median of the
repetitions, a ratio the median of the rounds' ratios, so that a busy moment of the machine hits both sides. Results
are written to ``benchmarks/results`` and to the table in ``docs/performance.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from rich.console import Console

from benchmarks.measure import REPOSITORY, Usage, measure
from benchmarks.peers import SPARK, Peers, prepare
from benchmarks.table import write_document
from benchmarks.topics import BenchTopic, bench_topics, ensure_produced, open_stack
from kbq_assets.adapters.local_stack import LocalStack

WORK = REPOSITORY / ".kbq" / "bench"
RESULTS = REPOSITORY / "benchmarks" / "results"
CORES = 2


@dataclass(frozen=True)
class Bench:
    """Where the contenders run."""

    stack: LocalStack
    peers: Peers
    output: Path = WORK / "output"
    report: Path = WORK / "report.json"

    def clear(self) -> None:
        shutil.rmtree(self.output, ignore_errors=True)
        self.report.unlink(missing_ok=True)

    def run_kbq(self, topic: BenchTopic) -> tuple[Usage, dict[str, Any]]:
        """`kbq extract`, Spark's start included."""
        self.output.mkdir(parents=True)
        sources = self.output / "source-topics.txt"
        sources.write_text(f"{topic.name} dataset=bench table={topic.kind.name} event_date=ts\n")
        environ = {
            "KBQ_HOME": str(WORK / "kbq"),
            "KBQ_STAGING": str(self.output / "staging"),
            "KBQ_SOURCE_TOPICS": str(sources),
            "KBQ_KAFKA_BOOTSTRAP_SERVERS": self.stack.bootstrap_servers,
            "KBQ_REGISTRY_URL": self.stack.registry_url,
            "KBQ_SPARK_MASTER": f"local[{CORES}]",
        }
        command: list[str | Path] = [
            REPOSITORY / ".venv" / "bin" / "python",
            "-m",
            "benchmarks.kbq_job",
            topic.name,
            self.report,
        ]
        usage = measure(command, WORK, WORK / "kbq.log", environ)
        inside = json.loads(self.report.read_text())
        if inside["rows"] != topic.records:
            raise RuntimeError(f"KBQ staged {inside['rows']} rows of {topic.records}")
        return usage, inside

    def run_spark(self, topic: BenchTopic) -> tuple[Usage, dict[str, Any]]:
        """Spark's Kafka source, from_avro and Avro writer."""
        arguments = WORK / "spark.json"
        given = {
            "master": f"local[{CORES}]",
            "jars": [str(jar) for jar in self.peers.connectors],
            "bootstrap_servers": self.stack.bootstrap_servers,
            "topic": topic.name,
            "schema": json.dumps(topic.kind.schema),
            "output": str(self.output),
        }
        arguments.write_text(json.dumps(given))
        environ = {"JAVA_HOME": str(self.peers.java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [self.peers.python, REPOSITORY / "benchmarks" / "spark_job.py", arguments, self.report]
        usage = measure(command, WORK, WORK / "spark.log", environ)
        return usage, json.loads(self.report.read_text())

    def run_perf_test(self, topic: BenchTopic) -> tuple[Usage, dict[str, Any]]:
        """kafka-consumer-perf-test: reads and forgets, on one thread."""
        command: list[str | Path] = [
            self.peers.java_home / "bin" / "java",
            *("-Xmx512m", "-cp", self.peers.tools, "org.apache.kafka.tools.ConsumerPerformance"),
            *("--bootstrap-server", self.stack.bootstrap_servers, "--topic", topic.name),
            *("--num-records", str(topic.records), "--timeout", "60000"),
        ]
        return measure(command, WORK, WORK / "perf-test.log"), {}


CONTENDERS: Mapping[str, Callable[[Bench, BenchTopic], tuple[Usage, dict[str, Any]]]] = {
    "kbq": Bench.run_kbq,
    "spark": Bench.run_spark,
    "perf-test": Bench.run_perf_test,
}


@dataclass
class Measured:
    """All rounds of one topic: contender to what each run cost."""

    topic: BenchTopic
    value_bytes: int
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, contender: str, usage: Usage, inside: dict[str, Any]) -> None:
        self.runs.setdefault(contender, []).append({**asdict(usage), **inside})

    def medians(self) -> dict[str, dict[str, float]]:
        names = ("wall", "cpu", "peak_mb", "python_peak_mb", "session", "extraction", "tasks")
        return {
            contender: {n: round(median(r[n] for r in runs), 2) for n in names if n in runs[0]}
            for contender, runs in self.runs.items()
        }

    def ratio(self, measure_name: str, peer: str) -> float | None:
        """KBQ's by the peer's, median over the rounds."""
        if "kbq" not in self.runs or peer not in self.runs:
            return None
        pairs = zip(self.runs["kbq"], self.runs[peer], strict=True)
        ratios: list[float] = [ours[measure_name] / theirs[measure_name] for ours, theirs in pairs]
        return round(median(ratios), 2)

    def as_result(self) -> dict[str, Any]:
        return {
            "topic": self.topic.name,
            "records": self.topic.records,
            "value_bytes": self.value_bytes,
            "codec": self.topic.codec,
            "cpu_vs_spark": self.ratio("cpu", "spark"),
            "wall_vs_spark": self.ratio("wall", "spark"),
            "extraction_vs_spark": self.ratio("extraction", "spark"),
            "cpu_vs_perf_test": self.ratio("cpu", "perf-test"),
            "wall_vs_perf_test": self.ratio("wall", "perf-test"),
            "worker_peak_mb": max((r["python_peak_mb"] for r in self.runs.get("kbq", ())), default=None),
            "medians": self.medians(),
            "runs": self.runs,
        }


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": model[0].partition(":")[2].strip() if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "peer": f"pyspark {SPARK}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Everything, from starting the broker to the results."""
    topics = bench_topics({"small": options.small, "large": options.large}, options.codec)
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    try:
        bench = Bench(stack, prepare(WORK, stack, console))
        measured = [Measured(topic, ensure_produced(stack, topic, console)) for topic in topics]
        for number in range(options.repeat):
            for of_topic in measured:
                for contender in options.only.split(","):
                    _run_one(bench, of_topic, contender, f"{number + 1}/{options.repeat}", console)
    finally:
        stack.down()
    return {"machine": machine(), **{m.topic.kind.name: m.as_result() for m in measured}}


def _run_one(bench: Bench, measured: Measured, contender: str, round_: str, console: Console) -> None:
    bench.clear()
    usage, inside = CONTENDERS[contender](bench, measured.topic)
    bench.clear()
    measured.add(contender, usage, inside)
    console.print(
        f"{round_} {measured.topic.name} {contender:9} wall {usage.wall:6.1f} s  cpu {usage.cpu:6.1f} s  "
        f"peak {usage.peak_mb:5.0f} MB  worker {usage.python_peak_mb:4.0f} MB  load {usage.load:.1f}  "
        + " ".join(f"{k} {v:.1f}" for k, v in inside.items() if isinstance(v, float))
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--small", type=int, default=2_000_000, help="records of 59 bytes; 0: leave out")
    arguments.add_argument("--large", type=int, default=1_000_000, help="records of 360 bytes; 0: leave out")
    arguments.add_argument("--codec", default="lz4", choices=("lz4", "zstd", "snappy", "gzip", "none"))
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--only", default=",".join(CONTENDERS), help="contenders, comma separated")
    arguments.add_argument("--try", action="store_true", dest="is_trial", help="print; write no results")
    options = arguments.parse_args()
    console = Console(stderr=True)
    results = run(options, console)
    if options.is_trial:
        return
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(results, indent=1) + "\n")
    write_document(results, REPOSITORY / "docs" / "performance.md")
    console.print(f"wrote {RESULTS / 'latest.json'} and docs/performance.md")


if __name__ == "__main__":
    main()
