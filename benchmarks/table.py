"""The results as the table of ``docs/performance.md``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_BEGIN = "<!-- results: written by `make bench` -->"
_END = "<!-- end of results -->"
_CONTENDERS = {
    "kbq": "KBQ",
    "spark": "Spark: Kafka source, `from_avro`, Avro files",
    "perf-test": "kafka-consumer-perf-test: reads, forgets",
}
_RATIOS = {
    "wall_vs_spark": "KBQ / Spark, wall",
    "cpu_vs_spark": "KBQ / Spark, CPU",
    "extraction_vs_spark": "KBQ / Spark, wall after the session's start",
    "wall_vs_perf_test": "KBQ / perf test, wall",
    "cpu_vs_perf_test": "KBQ / perf test, CPU",
}


def write_document(results: dict[str, Any], document: Path) -> None:
    """Replace what stands between the document's two marks."""
    before, _, rest = document.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    document.write_text(f"{before}{_BEGIN}\n{markdown(results)}{_END}{after}")


def markdown(results: dict[str, Any]) -> str:
    """Measurements and ratios."""
    kinds = [kind for kind in ("small", "large") if kind in results]
    machine = results["machine"]
    lines = [
        f"\n{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, Python {machine['python']}, "
        f"{machine['time'][:10]}, commit {machine['commit']}; peer {machine['peer']}; "
        f"load average before the runs {_loads(results, kinds)}.\n",
        "| Records | | Wall s | CPU s | of the wall: session start | extraction | Tree's peak MB | Largest worker MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        topic = results[kind]
        size = topic["value_bytes"] / topic["records"]
        label = f"{topic['records'] / 1e6:g} M of {size:.0f} B, {topic['codec']}"
        for contender, of in topic["medians"].items():
            cells = (of["wall"], of["cpu"], of.get("session"), of.get("extraction"))
            peaks = (of["peak_mb"], of["python_peak_mb"] or None)
            lines.append(
                f"| {label} | {_CONTENDERS[contender]} | "
                + " | ".join([*(_cell(c, 1) for c in cells), *(_cell(p, 0) for p in peaks)])
                + " |"
            )
    lines += ["", "| Ratio | " + " | ".join(kinds) + " |", "|---|" + "---|" * len(kinds)]
    for name, label in _RATIOS.items():
        lines.append(f"| {label} | " + " | ".join(_cell(results[kind][name], 2) for kind in kinds) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _loads(results: dict[str, Any], kinds: Sequence[str]) -> str:
    loads = [r["load"] for kind in kinds for runs in results[kind]["runs"].values() for r in runs]
    return f"{min(loads):.1f} to {max(loads):.1f}"
