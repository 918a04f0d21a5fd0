"""Formats results as the tables in ``docs/performance.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.rounds import OWN, spread

_MARKS = {
    "results": ("<!-- results: written by `make bench` -->", "<!-- end of results -->"),
    "variants": ("<!-- variants: written by `make bench-full` -->", "<!-- end of variants -->"),
    "costs": ("<!-- costs: written by `make bench-costs` -->", "<!-- end of costs -->"),
}
KINDS = ("small", "large")


def replace_part(document: Path, part: str, text: str) -> None:
    """Replace the text between the markers of a part."""
    begin, end = _MARKS[part]
    before, _, rest = document.read_text().partition(begin)
    _, _, after = rest.partition(end)
    document.write_text(f"{before}{begin}\n{text}{end}{after}")


def usual(results: Mapping[str, Any]) -> str:
    """The table of all contenders on the two usual topics, and of a few on longer ones."""
    kinds = [kind for kind in KINDS if kind in results]
    lines = [
        f"\n{_machine(results)}.\n",
        "| Records | | Rounds | Wall s | CPU s | KBQ's CPU / its | KBQ's wall / its | Tree's peak MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for topic in (*(results[kind] for kind in kinds), *results.get("longer", ())):
        lines += [_row(topic, contender) for contender in CONTENDERS if contender in topic["runs"]]
    lines += ["", f"Largest Python worker of KBQ: {_peaks(results, kinds)}."]
    for way in (each for each in OWN if each in results):
        ratios = ", ".join(
            f"{of['cpu_vs_perf_test']:.2f} ({kind}; wall time {of['wall_vs_perf_test']:.2f})"
            for kind, of in results[way].items()
            if kind in KINDS
        )
        lines += ["", f"{CONTENDERS[way].label}, by kafka-consumer-perf-test's CPU: {ratios}."]
    lines += [f"Not measured: {contender}: {why}" for contender, why in results["missing"].items()]
    return "\n".join(lines) + "\n"


def variants(results: Mapping[str, Any]) -> str:
    """The table of other codecs, partitions and tables."""
    peers = ("perf-test", "kcat")
    lines = [
        "",
        f"| Topic | KBQ's CPU s | wall s | worker MB | {' | '.join(f'CPU s of {p}' for p in peers)} | "
        f"{' | '.join(f'KBQ / {p}' for p in peers)} |",
        "|---|---|---|---|" + "---|" * 2 * len(peers),
    ]
    for topic in results["variants"]:
        found = topic["medians"]
        own = found["kbq"]
        cells = [_cell(own["cpu"]), _cell(own["wall"]), _cell(topic["worker_peak_mb"], 0)]
        cells += [_cell(found.get(peer, {}).get("cpu")) for peer in peers]
        cells += [_cell(topic.get(f"cpu_vs_{peer.replace('-', '_')}"), 2) for peer in peers]
        lines.append(f"| {topic['label']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _row(topic: Mapping[str, Any], contender: str) -> str:
    of = topic["medians"][contender]
    key = contender.replace("-", "_")
    ratios = (topic.get(f"cpu_vs_{key}"), topic.get(f"wall_vs_{key}"))
    cells = [
        _cell(of["wall"]),
        _cell(of["cpu"]),
        *(_cell(ratio, 2) for ratio in ratios),
        _cell(of["peak_mb"], 0),
    ]
    rounds = len(topic["runs"][contender])
    return f"| {topic['label']} | {CONTENDERS[contender].label} | {rounds} | {' | '.join(cells)} |"


def _machine(results: Mapping[str, Any]) -> str:
    facts = results["machine"]
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, Python {facts['python']}, "
        f"{facts['time'][:10]}, commit {facts['commit']}; peer {facts['peer']}; "
        f"load average before the runs {spread(list(_loads(results)))}"
    )


def _peaks(results: Mapping[str, Any], kinds: list[str]) -> str:
    return ", ".join(f"{results[kind]['worker_peak_mb']:.0f} MB ({kind})" for kind in kinds)


def _loads(results: Mapping[str, Any]) -> Iterator[float]:
    usual = [results[kind] for kind in KINDS if kind in results]
    for topic in (*usual, *results.get("longer", ()), *results["variants"]):
        for runs in topic["runs"].values():
            yield from (run["load"] for run in runs)


def _cell(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"
