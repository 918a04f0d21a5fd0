"""From Kafka to the Parquet files of a lake: an extraction and the load of everything that it staged, both on Spark.

``python -m benchmarks.kafka_to_parquet [--small 20000000] [--large 8000000] [--repeat 3]`` measures whole process trees
and writes ``benchmarks/results/kafka_to_parquet.json``. Business time covers 28 hours, in order with some late records,
or at random. MB count values in Kafka before compression, or staged Avro, which also has KBQ's columns. Speeds exclude
the starts of Spark and Python, which the same two commands measure on a topic of `TINY` records; `with_starts` includes
them. ``mb_to_target`` is how much one start must process to reach `TARGET` including starts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.contenders import WORK, Bench
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY
from benchmarks.peers import Peers
from benchmarks.topics import BenchTopic, bench_topics, ensure_produced, open_stack
from kbq_assets.wire.arrow.container import read_blocks, read_header

#: Makes every load job run on Spark, as large ones do.
ON_SPARK = {"KBQ_LAKE_SPARK_MB": "1"}
TINY = 100_000
#: MB of values per CPU second.
TARGET = 50


def one_round(bench: Bench, topic: BenchTopic) -> dict[str, float]:
    """Seconds of both, and MB of staged Avro."""
    bench.clear()
    bench.settle()
    extraction, _ = bench.run_kbq(topic)
    avro = sum(map(avro_bytes, bench.output.rglob("staging/**/*.avro")))
    load, _ = bench.run_load(topic)
    return {
        "avro_mb": round(avro / 1e6, 1),
        "extraction_cpu": round(extraction.cpu, 2),
        "load_cpu": round(load.cpu, 2),
        "wall": round(extraction.wall + load.wall, 1),
        "worker_mb": round(max(extraction.python_peak_mb, load.python_peak_mb)),
        "load_average": round(extraction.load, 1),
    }


def avro_bytes(path: Path) -> int:
    """The bytes of a staged file's records."""
    with path.open("rb") as stream:
        return sum(len(block.data) for block in read_blocks(stream, read_header(stream)))


def cpu_of(measured: dict[str, float]) -> float:
    return measured["extraction_cpu"] + measured["load_cpu"]


def measured_topic(bench: Bench, topic: BenchTopic, repeat: int, console: Console) -> dict[str, Any]:
    """All rounds of a topic, each with a round of the tiny topic."""
    tiny = replace(topic, records=TINY)
    mb, tiny_mb = (ensure_produced(bench.stack, each, console) / 1e6 for each in (topic, tiny))
    rounds, speeds, starts = [], [], []
    for _ in range(repeat):
        start, found = one_round(bench, tiny), one_round(bench, topic)
        cpu = cpu_of(found) - cpu_of(start)
        speeds.append(((mb - tiny_mb) / cpu, (found["avro_mb"] - start["avro_mb"]) / cpu, mb / cpu_of(found)))
        starts.append(cpu_of(start))
        rounds.append({**found, "start_cpu": {name: start[name] for name in ("extraction_cpu", "load_cpu")}})
        console.print(f"{topic.name}: {rounds[-1]}")
    values, avro, whole = (round(statistics.median(each), 1) for each in zip(*speeds, strict=True))
    start_cpu = statistics.median(starts)
    return {
        "mb": round(mb),
        "mb_per_core_second": values,
        "avro_mb_per_core_second": avro,
        "mb_per_core_second_with_starts": whole,
        "mb_to_target": round(start_cpu / (1 / TARGET - 1 / values)) if values > TARGET else None,
        "rounds": rounds,
    }


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All rounds of all topics."""
    lake = WORK / "output" / "lake"
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    found: dict[str, Any] = {"machine": machine()}
    os.environ.update(ON_SPARK)
    try:
        bench = Bench(stack, Peers.none(), warehouse=f"iceberg:{lake}")
        sizes = {"small": options.small, "large": options.large}
        for in_order in (True, False):
            for topic in bench_topics(sizes, in_order=in_order):
                name = f"{topic.kind.name}, hours {'in order' if in_order else 'at random'}"
                found[name] = measured_topic(bench, topic, options.repeat, console)
    finally:
        stack.down()
        bench.clear()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--small", type=int, default=20_000_000, help="records of 59 bytes; 0: leave out")
    arguments.add_argument("--large", type=int, default=8_000_000, help="records of 360 bytes; 0: leave out")
    arguments.add_argument("--repeat", type=int, default=3)
    console = Console(stderr=True)
    results = run(arguments.parse_args(), console)
    (RESULTS / "kafka_to_parquet.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
