"""Total dollars per TB of Kafka values, for 160 topics with 70 partitions: ``make bench-costs``.

Computed from the results of other benchmarks (``latest.json``, ``scale.json``, ``plan.json``) and list prices. Writes
``benchmarks/results/costs.json`` and the table in ``docs/performance.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import REPOSITORY
from benchmarks.table import replace_part

RESULTS: Final = REPOSITORY / "benchmarks" / "results"
DOCUMENT: Final = REPOSITORY / "docs" / "performance.md"
TB: Final = 10**12
DAY: Final = 86_400
#: Swaps of a commit in a cycle, including its manifests. An estimate.
_WRITES_PER_COMMIT: Final = 3
#: Staged bytes per byte of Kafka values: snappy, and the columns that KBQ adds. An estimate.
STAGED_SHARE: Final = 0.6
#: The part that differs between formats.
_READING: Final = "cores that read records"
#: A page of a listing.
_NAMES_PER_PAGE: Final = 1_000


@dataclass(frozen=True)
class Prices:
    """List prices in dollars, us-central1, without commitments: a core of n2-standard with its memory
    (https://cloud.google.com/compute/vm-instance-pricing), Standard storage (https://cloud.google.com/storage/pricing).
    """

    core_hour: float = 0.0486
    class_a: float = 0.005 / 1_000
    class_b: float = 0.0004 / 1_000
    gb_month: float = 0.020
    #: load jobs on BigQuery's shared slots: https://cloud.google.com/bigquery/pricing#free
    load_job: float = 0.0


@dataclass(frozen=True)
class Installation:
    """The traffic, and how often it is extracted and loaded. Topic k of ``topics`` has 1/k of the first topic's bytes,
    as in the scale benchmark. If ``flush_bytes`` and ``flush_seconds`` are set, a partition waits for that many bytes
    of values, for at most that time. ``busy`` is the utilization of the paid cores. On average, files wait for half of
    the interval between loads."""

    bytes_per_day: float = 2.5 * TB
    record_bytes: int = 500
    topics: int = 160
    partitions: int = 11_200
    commits: int = 320
    files: int = 22_400
    tables: int = 319
    cycle_seconds: int = 300
    load_seconds: int = 900
    flush_bytes: int = 0
    flush_seconds: int = 0
    busy: float = 0.5
    done_files: bool = True

    @property
    def cycles(self) -> float:
        """Extractions per day."""
        return DAY / self.cycle_seconds

    @property
    def loads(self) -> float:
        """Loads per day."""
        return DAY / self.load_seconds

    @property
    def intervals(self) -> Sequence[float]:
        """Seconds between two reads of a partition for each topic, largest topic first."""
        weights = [1 / (k + 1) for k in range(self.topics)]
        of_largest = self.bytes_per_day / DAY / sum(weights) / (self.partitions / self.topics)
        waits = (min(self.flush_seconds, self.flush_bytes / (of_largest * weight)) for weight in weights)
        return [max(1, ceil(wait / self.cycle_seconds)) * self.cycle_seconds for wait in waits]

    @property
    def full_cycles(self) -> float:
        """The reads per day, expressed as reads of all partitions."""
        return sum(DAY / interval for interval in self.intervals) / self.topics


def parts(of: Installation, rates: Mapping[str, float], prices: Prices) -> dict[str, float]:
    """Dollars per TB by part. ``rates`` are measured: core seconds per byte, cycle and load, and staged bytes per
    byte."""
    tb_a_day = of.bytes_per_day / TB
    hour = prices.core_hour / of.busy / 3_600
    pages = of.files / _NAMES_PER_PAGE
    written = of.files * (2 if of.done_files else 1) + of.commits * _WRITES_PER_COMMIT
    writes = written * of.full_cycles + pages * of.cycles
    read = of.commits * 3 + of.tables
    loaded = of.tables * 3 + pages
    idle = rates["seconds_per_idle_cycle"]
    driving = idle * of.cycles + (rates["seconds_per_cycle"] - idle) * of.full_cycles
    return {
        _READING: rates["seconds_per_byte"] * TB * hour,
        "cores of cycles: units, driver": driving * hour / tb_a_day,
        "cores of loads: plans": rates["seconds_per_load"] * of.loads * hour / tb_a_day,
        "bucket: files, done files, commits": writes * prices.class_a / tb_a_day,
        "bucket: reads": (read * of.cycles + (of.commits + of.tables) * of.loads) * prices.class_b / tb_a_day,
        "bucket: states, listings of loads": loaded * of.loads * prices.class_a / tb_a_day,
        "storage until loaded": rates["staged_share"]
        * 1_000
        * prices.gb_month
        * of.load_seconds
        / 2
        / (30 * DAY),
        "load jobs": of.tables * of.loads * prices.load_job / tb_a_day,
    }


def measured(results: Path) -> dict[str, dict[str, float]]:
    """The measured rates of each format."""
    latest, scale, plan = (
        json.loads((results / f"{name}.json").read_text()) for name in ("latest", "scale", "plan")
    )
    large, json_rate = latest["large"], latest["json"]
    of_avro = large["medians"]["kbq"]["cpu"] / large["value_bytes"]
    cycle = {
        "seconds_per_cycle": scale["trickle_cpu_tree"],
        "seconds_per_idle_cycle": scale["idle_cpu"],
        "seconds_per_load": plan["cpu_seconds"]["load_plan"],
        "staged_share": STAGED_SHARE,
    }
    # A document is translated to Avro, and then processed like Avro records.
    of_json = 1 / (json_rate["translated_per_core_second"] * json_rate["bytes"]) + of_avro
    return {
        "Avro": {**cycle, "seconds_per_byte": of_avro},
        "JSON": {**cycle, "seconds_per_byte": of_json},
    }


TARGETS: Final = {"Avro": 2.0, "JSON": 5.0}
#: Options of `flush` that meet the target with a cycle every five minutes.
FLUSH: Final = {"flush_bytes": 16_000_000, "flush_seconds": 3_600}


def _each(minutes: int, **options: Any) -> Installation:
    seconds = minutes * 60
    return Installation(cycle_seconds=seconds, load_seconds=max(900, seconds), **options)


VARIANTS: Final[Mapping[str, Installation]] = {
    "each 5 minutes, done files": _each(5),
    "each 5 minutes": _each(5, done_files=False),
    "each 15 minutes": _each(15, done_files=False),
    "each 30 minutes": _each(30, done_files=False),
    "each 60 minutes": _each(60, done_files=False),
    "each 5 minutes, `flush`": _each(5, done_files=False, **FLUSH),
}


def table(results: Path, prices: Prices) -> tuple[dict[str, Any], str]:
    """The numbers as JSON and as Markdown."""
    rates = measured(results)
    named = {name: [parts(each, rates[name], prices) for each in VARIANTS.values()] for name in TARGETS}
    lines = [
        "| Dollars per TB | " + " | ".join(VARIANTS) + " |",
        "|---|" + "---|" * len(VARIANTS),
    ]
    for part in named["Avro"][0]:
        for name in TARGETS if part == _READING else ("Avro",):
            label = f"{part}, {name}" if part == _READING else part
            lines.append(f"| {label} | " + " | ".join(f"{each[part]:.2f}" for each in named[name]) + " |")
    for name, target in TARGETS.items():
        sums = " | ".join(f"**{sum(each.values()):.2f}**" for each in named[name])
        lines.append(f"| **{name}**, target {target:g} | {sums} |")
    found = {
        name: {
            title: {"dollars_per_tb": round(sum(each.values()), 2), "parts": _rounded(each)}
            for title, each in zip(VARIANTS, named[name], strict=True)
        }
        for name in TARGETS
    }
    return {"prices": vars(prices), "installation": vars(Installation()), "rates": rates, **found}, "\n".join(
        lines
    )


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def main() -> None:
    found, text = table(RESULTS, Prices())
    (RESULTS / "costs.json").write_text(json.dumps(found, indent=1) + "\n")
    replace_part(DOCUMENT, "costs", f"\n{text}\n")
    print(text)


if __name__ == "__main__":
    main()
