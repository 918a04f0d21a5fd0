"""The cost of a backup in an extraction, and of a replay from the backup compared with one from Kafka.

``python -m benchmarks.backup [--small 8000000] [--large 4000000] [--repeat 3] [--try]``. Each round runs, in order:

    kbq           an extraction without a backup
    backup        the same with a backup: at most 1.35 times the CPU time
    from-kafka    a replay of all records from Kafka, into the staging area of the second extraction
    from-backup   the same replay from the backup: at least as fast

Each is a process tree with Spark on `local[2]`, including Spark's start. Numbers are medians of the rounds, and ratios
are medians of the rounds' ratios. ``tasks`` is the CPU time of Spark's tasks alone. Results are written to
``benchmarks/results/backup.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.contenders import WORK, Bench
from benchmarks.extraction import RESULTS, machine
from benchmarks.measure import REPOSITORY
from benchmarks.peers import Peers
from benchmarks.topics import BenchTopic, bench_topics, ensure_produced, open_stack

#: Limits of CPU time: an extraction with a backup divided by one without, and a replay from it by one from Kafka.
BACKUP_BAR: Final = 1.35
REPLAY_BAR: Final = 1.0
_NAMES: Final = ("kbq", "backup", "from-kafka", "from-backup")


def one_round(bench: Bench, topic: BenchTopic) -> dict[str, dict[str, float]]:
    """Run the four commands once."""
    found = {}
    for name in _NAMES:
        if name in ("kbq", "backup"):
            bench.clear()
        bench.settle()
        if name == "kbq":
            usage, inside = bench.run_kbq(topic)
        elif name == "backup":
            usage, inside = bench.run_backup(topic)
            files = [path.stat().st_size for path in bench.output.glob("staging/backup/**/*.avro")]
            inside["bytes_per_record"] = round(sum(files) / topic.records, 1)
        else:
            usage, inside = bench.run_replay(topic, name.removeprefix("from-"))
        kept = ("core_seconds", "extraction", "bytes_per_record")
        found[name] = {
            "wall": usage.wall,
            "cpu": usage.cpu,
            "worker_mb": usage.python_peak_mb,
            "load": usage.load,
            **{key: inside[key] for key in kept if key in inside},
        }
    return found


def ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Medians of the rounds' ratios."""

    def ratio(measure: str, one: str, other: str) -> float:
        return round(statistics.median(each[one][measure] / each[other][measure] for each in rounds), 2)

    return {
        "backup_cpu": ratio("cpu", "backup", "kbq"),
        "backup_tasks": ratio("core_seconds", "backup", "kbq"),
        "replay_cpu": ratio("cpu", "from-backup", "from-kafka"),
        "replay_tasks": ratio("core_seconds", "from-backup", "from-kafka"),
        "replay_wall": ratio("extraction", "from-backup", "from-kafka"),
    }


def medians(rounds: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            key: round(statistics.median(each[name][key] for each in rounds), 2) for key in rounds[0][name]
        }
        for name in _NAMES
    }


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All rounds of both topics."""
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    found: dict[str, Any] = {"machine": machine(), "bars": {"backup": BACKUP_BAR, "replay": REPLAY_BAR}}
    try:
        bench = Bench(stack, Peers.none())
        topics = bench_topics({"small": options.small, "large": options.large})
        for topic in topics:
            ensure_produced(stack, topic, console)
        measured: dict[str, list[dict[str, dict[str, float]]]] = {topic.kind.name: [] for topic in topics}
        for number in range(options.repeat):
            for topic in topics:
                measured[topic.kind.name].append(one_round(bench, topic))
                console.print(f"{number + 1} {topic.label}: {ratios(measured[topic.kind.name][-1:])}")
        bench.clear()
    finally:
        stack.down()
    for kind, rounds in measured.items():
        found[kind] = {"ratios": ratios(rounds), "medians": medians(rounds), "rounds": rounds}
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--small", type=int, default=8_000_000, help="records of 59 bytes; 0: leave out")
    arguments.add_argument("--large", type=int, default=4_000_000, help="records of 360 bytes; 0: leave out")
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--try", action="store_true", dest="is_trial", help="print; write no results")
    options = arguments.parse_args()
    console = Console(stderr=True)
    results = run(options, console)
    for kind in ("small", "large"):
        if kind in results:
            console.print_json(json.dumps({kind: {k: results[kind][k] for k in ("ratios", "medians")}}))
    if not options.is_trial:
        (RESULTS / "backup.json").write_text(json.dumps(results, indent=1) + "\n")
        console.print(f"wrote {Path('benchmarks/results/backup.json')}")


if __name__ == "__main__":
    main()
