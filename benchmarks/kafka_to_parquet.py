"""From Kafka to the Parquet files of a lake: an extraction and the load of all that it staged, both on Spark.

``python -m benchmarks.kafka_to_parquet [--small 8000000] [--large 4000000] [--repeat 3]`` measures whole process trees,
Spark's starts included, and writes ``benchmarks/results/kafka_to_parquet.json``. The target is 50 MB of values a second
of processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from rich.console import Console

from benchmarks.contenders import WORK, Bench
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY
from benchmarks.peers import Peers
from benchmarks.topics import BenchTopic, bench_topics, ensure_produced, open_stack


def one_round(bench: Bench, topic: BenchTopic, value_bytes: int) -> dict[str, float]:
    """Seconds of both, and MB of values per second of processor time."""
    bench.clear()
    bench.settle()
    extraction, _ = bench.run_kbq(topic)
    load, _ = bench.run_load(topic)
    cpu = extraction.cpu + load.cpu
    return {
        "extraction_cpu": round(extraction.cpu, 2),
        "load_cpu": round(load.cpu, 2),
        "wall": round(extraction.wall + load.wall, 1),
        "worker_mb": round(max(extraction.python_peak_mb, load.python_peak_mb)),
        "load_average": round(extraction.load, 1),
        "mb_per_core_second": round(value_bytes / 1e6 / cpu, 1),
    }


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All rounds of both topics."""
    lake = WORK / "output" / "lake"
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    found: dict[str, Any] = {"machine": machine()}
    try:
        bench = Bench(stack, Peers.none(), warehouse=f"iceberg:{lake}")
        for topic in bench_topics({"small": options.small, "large": options.large}):
            value_bytes = ensure_produced(stack, topic, console)
            rounds = []
            for _ in range(options.repeat):
                rounds.append(one_round(bench, topic, value_bytes))
                console.print(f"{topic.label}: {rounds[-1]}")
            speed = statistics.median(each["mb_per_core_second"] for each in rounds)
            found[topic.kind.name] = {
                "mb": round(value_bytes / 1e6),
                "mb_per_core_second": speed,
                "rounds": rounds,
            }
    finally:
        stack.down()
        bench.clear()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--small", type=int, default=8_000_000, help="records of 59 bytes; 0: leave out")
    arguments.add_argument("--large", type=int, default=4_000_000, help="records of 360 bytes; 0: leave out")
    arguments.add_argument("--repeat", type=int, default=3)
    console = Console(stderr=True)
    results = run(arguments.parse_args(), console)
    (RESULTS / "kafka_to_parquet.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
