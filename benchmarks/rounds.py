"""Rounds of measurements, which are stored as they arrive, so that an interrupted benchmark can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measure import Usage
from benchmarks.topics import BenchTopic

_MEDIANS = ("wall", "cpu", "peak_mb", "python_peak_mb", "session", "extraction", "tasks")
#: Other ways to run KBQ, which are also compared with the peers.
OWN = ("processes", "resident")


@dataclass
class Measured:
    """All rounds of one topic: the cost of each run, by contender."""

    topic: BenchTopic
    value_bytes: int
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def medians(self) -> dict[str, dict[str, float]]:
        return {
            contender: {n: round(median(r[n] for r in runs), 2) for n in _MEDIANS if n in runs[0]}
            for contender, runs in self.runs.items()
        }

    def ratio(self, measure_name: str, peer: str, of: str = "kbq") -> float | None:
        """The median of KBQ's cost divided by the peer's, per round: a busy moment affects both sides of a round."""
        if of not in self.runs or peer not in self.runs:
            return None
        pairs = zip(self.runs[of], self.runs[peer], strict=False)
        ratios: list[float] = [ours[measure_name] / theirs[measure_name] for ours, theirs in pairs]
        return round(median(ratios), 2)

    def as_result(self) -> dict[str, Any]:
        peers = [contender for contender in self.runs if contender not in ("kbq", *OWN)]
        ratios = {
            f"{m}_vs_{peer.replace('-', '_')}": self.ratio(m, peer) for m in ("cpu", "wall") for peer in peers
        }
        extraction = self.ratio("extraction", "spark") if "spark" in self.runs else None
        return {
            "topic": self.topic.name,
            "label": self.topic.label,
            "records": self.topic.records,
            "value_bytes": self.value_bytes,
            "codec": self.topic.codec,
            "partitions": self.topic.partitions,
            "tables": self.topic.tables,
            **ratios,
            "extraction_vs_spark": extraction,
            "worker_peak_mb": max((r["python_peak_mb"] for r in self.runs.get("kbq", ())), default=None),
            "medians": self.medians(),
            "runs": self.runs,
        }


class Notes:
    """The finished runs of an unfinished benchmark, one per line. ``key`` distinguishes benchmarks."""

    def __init__(self, path: Path, key: Mapping[str, Any]) -> None:
        self._path = path
        self._key = json.dumps(key, sort_keys=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        self._done = [json.loads(line) for line in lines[1:]] if lines[:1] == [self._key] else []
        if not self._done:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._key + "\n")

    def __len__(self) -> int:
        return len(self._done)

    def find(self, topic: str, contender: str, number: int) -> dict[str, Any] | None:
        """The cost of a run; None if it has not been done."""
        at = [topic, contender, number]
        return next((run["cost"] for run in self._done if run["at"] == at), None)

    def add(
        self, topic: str, contender: str, number: int, usage: Usage, inside: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Store a run."""
        run = {"at": [topic, contender, number], "cost": {**asdict(usage), **inside}}
        with self._path.open("a") as file:
            file.write(json.dumps(run) + "\n")
        self._done.append(run)
        cost: dict[str, Any] = run["cost"]
        return cost

    def forget(self) -> None:
        """Delete the runs, since the benchmark has ended."""
        self._path.unlink(missing_ok=True)


def spread(values: Sequence[float]) -> str:
    """The minimum and maximum as text."""
    return f"{min(values):.1f} to {max(values):.1f}"
