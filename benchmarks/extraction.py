"""Compares KBQ's extraction with programs that read, or read and write, the same topics.

``python -m benchmarks.extraction [--full] [--small 8000000] [--large 4000000] [--repeat 3] [--only kbq,perf-test]``.
All run on the same broker and topics, interleaved. Numbers are medians of the repetitions. Results are written to
``benchmarks/results``, to a table in ``docs/performance.md``, and to the plot next to it. After an interruption, the
same command continues; ``--fresh`` starts again. ``--full`` adds other codecs, 64 partitions, and ten tables.
Otherwise, KBQ and the perf test also read topics of ``LONGER`` times as many records, where Spark's start counts less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.contenders import CONTENDERS, WORK, Bench, Missing, try_version
from benchmarks.measure import REPOSITORY
from benchmarks.peers import SPARK, prepare
from benchmarks.plot import write_plot
from benchmarks.rounds import OWN, Measured, Notes
from benchmarks.table import KINDS, replace_part, usual, variants
from benchmarks.topics import BenchTopic, bench_topics, ensure_produced, open_stack

RESULTS = REPOSITORY / "benchmarks" / "results"
DOCUMENT = REPOSITORY / "docs" / "performance.md"
PLOT = REPOSITORY / "docs" / "performance.svg"
#: Enough for the limits and the closest peers, in ten minutes. `--full` runs all.
USUAL = ("kbq", "processes", "resident", "perf-test", "kcat", "spark")
#: Far slower than the others, so run only once, regardless of the repetitions.
SLOW = ("python", "connect")
#: Times the usual records, for the two programs of which a limit compares the processor time.
LONGER = 3
LIMITED = ("kbq", "perf-test")
#: Results that `benchmarks.wire` writes.
FORMATS = ("json", "protobuf", "pseudonyms", "json_personal")
#: Contenders that read topics with other shapes.
NEAREST = ("kbq", "perf-test", "kcat")
#: Shapes other than the usual one, which is lz4, 4 partitions, 1 table.
SHAPES: tuple[dict[str, Any], ...] = (
    {"codec": "zstd"},
    {"codec": "none"},
    {"partitions": 64},
    {"tables": 10},
)


def machine() -> dict[str, Any]:
    """The facts about this machine on which the numbers depend."""
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
        "java": try_version(["java", "-version"]),
        "commit": commit.stdout.strip(),
        "peer": f"pyspark {SPARK}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class Rounds:
    """One benchmark, round by round."""

    def __init__(self, bench: Bench, notes: Notes, console: Console) -> None:
        self._bench = bench
        self._notes = notes
        self._console = console
        self.missing: dict[str, str] = {}

    def run(self, measured: list[tuple[Measured, list[str]]], repeat: int) -> None:
        """All rounds of all topics, interleaved. Each round begins with another contender, because a run after a long
        one that writes much, such as the Spark peer's, takes up to 4 % more."""
        for number in range(repeat):
            for of_topic, contenders in measured:
                for contender in rotated(contenders, number, repeat):
                    if number == 0 or contender not in SLOW:
                        self._one(of_topic, contender, number)

    def _one(self, measured: Measured, contender: str, number: int) -> None:
        topic = measured.topic
        cost = self._notes.find(topic.name, contender, number) or self._measure(topic, contender, number)
        if cost is not None:
            measured.runs.setdefault(contender, []).append(cost)

    def _measure(self, topic: BenchTopic, contender: str, number: int) -> dict[str, Any] | None:
        if contender in self.missing:
            return None
        self._bench.clear()
        self._bench.settle()
        try:
            usage, inside = CONTENDERS[contender].run(self._bench, topic)
        except (Missing, RuntimeError) as error:
            if contender == "kbq":
                raise
            # A peer that cannot run here must neither stop the others nor go unnoticed.
            self.missing[contender] = str(error)
            self._console.print(f"[red]NOT MEASURED: {contender}: {error}")
            return None
        finally:
            self._bench.clear()
        self._console.print(
            f"{number + 1} {topic.label} {contender:9} wall {usage.wall:6.1f} s  cpu {usage.cpu:6.1f} s  "
            f"peak {usage.peak_mb:5.0f} MB  worker {usage.python_peak_mb:4.0f} MB  load {usage.load:.1f}",
            soft_wrap=True,
        )
        return self._notes.add(topic.name, contender, number, usage, inside)


def rotated(names: Sequence[str], number: int, rounds: int) -> list[str]:
    """The contenders in the order of one round. Over all rounds, each one gets as many places as possible."""
    first = number * max(1, len(names) // rounds) % max(1, len(names))
    return [*names[first:], *names[:first]]


def chosen(options: argparse.Namespace) -> list[tuple[BenchTopic, list[str]]]:
    """The topics, and the contenders that read each."""
    names = options.only.split(",") if options.only else list(CONTENDERS if options.full else USUAL)
    sizes = {"small": options.small, "large": options.large}
    found = [(topic, names) for topic in bench_topics(sizes)]
    if not options.full:
        limited = [name for name in names if name in LIMITED]
        longer = {kind: LONGER * records for kind, records in sizes.items()}
        return found + [(topic, limited) for topic in bench_topics(longer)]
    nearest = [name for name in names if name in NEAREST]
    for shape in SHAPES:
        found += [(topic, nearest) for topic in bench_topics(sizes, **shape)]
    return found


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the benchmark, from starting the broker to the results."""
    notes = Notes(WORK / "unfinished.jsonl", {**vars(options), "fresh": False, "repeat": 0})
    if len(notes):
        console.print(f"going on with an interrupted benchmark: {len(notes)} runs are done")
    stack = open_stack(WORK / "stack", REPOSITORY / ".kbq" / "installed", console)
    try:
        programs = {name for _, names in chosen(options) for name in names}
        rounds = Rounds(Bench(stack, prepare(WORK, stack, console, programs)), notes, console)
        measured = [
            (Measured(topic, ensure_produced(stack, topic, console)), names)
            for topic, names in chosen(options)
        ]
        rounds.run(measured, options.repeat)
    finally:
        stack.down()
    notes.forget()
    sizes = {"small": options.small, "large": options.large}
    of_usual_shape = [m for m, _ in measured if m.topic.is_usual]
    usual = [m for m in of_usual_shape if m.topic.records == sizes[m.topic.kind.name]]
    longer = [m for m in of_usual_shape if m not in usual]
    return {
        "machine": machine(),
        **{m.topic.kind.name: m.as_result() for m in usual},
        **by_perf_test(usual),
        "longer": [m.as_result() for m in longer],
        "variants": [m.as_result() for m, _ in measured if not m.topic.is_usual],
        "missing": rounds.missing,
    }


def by_perf_test(measured: Sequence[Measured]) -> dict[str, Any]:
    """The ratio of KBQ's other ways to run to the perf test, for each kind of records, and the worst one."""
    found: dict[str, Any] = {}
    for way in OWN:
        ratios = {
            each.topic.kind.name: {
                f"{name}_vs_perf_test": each.ratio(name, "perf-test", of=way) for name in ("cpu", "wall")
            }
            for each in measured
            if way in each.runs and "perf-test" in each.runs
        }
        if ratios:
            worst = {name: max(of[name] for of in ratios.values()) for name in next(iter(ratios.values()))}
            found[way] = {**worst, **ratios}
    return found


def write(results: dict[str, Any], is_full: bool, is_part: bool) -> None:
    """Write results, tables and plot. A full run has its own table, and leaves the usual one, which has more rounds,
    alone. A run of some programs (`--only`) writes only KBQ's other ways to run."""
    RESULTS.mkdir(exist_ok=True)
    if is_full:
        (RESULTS / "full.json").write_text(json.dumps(results, indent=1) + "\n")
        replace_part(DOCUMENT, "variants", usual(results) + variants(results))
        return
    latest = RESULTS / "latest.json"
    known = json.loads(latest.read_text()) if latest.exists() else {}
    if is_part:
        part = {way: {**results[way], "machine": results["machine"]} for way in OWN if way in results}
        latest.write_text(json.dumps({**known, **part}, indent=1) + "\n")
        return
    results = {**{name: known[name] for name in FORMATS if name in known}, **results}
    latest.write_text(json.dumps(results, indent=1) + "\n")
    replace_part(DOCUMENT, "results", usual(results))
    write_plot(results, PLOT)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--small", type=int, default=8_000_000, help="records of 59 bytes; 0: leave out")
    arguments.add_argument("--large", type=int, default=4_000_000, help="records of 360 bytes; 0: leave out")
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--only", default="", help=f"of {','.join(CONTENDERS)}")
    arguments.add_argument("--full", action="store_true", help="all contenders, codecs, partitions, tables")
    arguments.add_argument("--fresh", action="store_true", help="forget an interrupted benchmark")
    arguments.add_argument("--try", action="store_true", dest="is_trial", help="print; write no results")
    options = arguments.parse_args()
    if sys.platform != "linux":
        sys.exit("the benchmark counts processor time as Linux does")
    if options.fresh:
        (WORK / "unfinished.jsonl").unlink(missing_ok=True)
    console = Console(stderr=True)
    results = run(options, console)
    if options.is_trial:
        ratios = {
            kind: {k: v for k, v in results[kind].items() if "_vs_" in k} for kind in KINDS if kind in results
        }
        console.print_json(json.dumps(ratios))
        return
    if options.only and not any(way in results for way in OWN):
        sys.exit(
            "nothing written: --only has a place in the results for processes,resident,perf-test; see --try"
        )
    write(results, options.full, bool(options.only))
    console.print(f"wrote {RESULTS}, {DOCUMENT.name} and {PLOT.name}")


if __name__ == "__main__":
    main()
