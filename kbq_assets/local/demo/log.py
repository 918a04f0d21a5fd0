"""The producers' own log: each produced offset, and the row that a warehouse must have for it.

It is a single JSON file. Consecutive offsets with the same outcome form a range. An offset outside all ranges has no
committed record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import CorruptState, UnsupportedFormat
from kbq_assets.core.protocol.offsets import TopicPartition

FORMAT: Final = 1
FILE_NAME: Final = "producers-log.json"

Outcomes: TypeAlias = Mapping[int, str]
"""Offset to ``row:<dataset>.<table>``, ``error`` or ``skip``."""


@dataclass(frozen=True)
class Totals:
    """Numbers of committed records by required outcome: ``produced == rows + errors + skipped``."""

    produced: int = 0
    rows: int = 0
    errors: int = 0
    skipped: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.produced + other.produced,
            self.rows + other.rows,
            self.errors + other.errors,
            self.skipped + other.skipped,
        )


@dataclass
class PartitionLog:
    """One partition: ranges ``[from, until)`` with their outcome, in offset order."""

    ranges: list[tuple[int, int, str]] = field(default_factory=list)

    def add(self, offset: int, outcome: str) -> None:
        """Append a record. Its offset must be higher than all others."""
        if self.ranges:
            first, until, last = self.ranges[-1]
            if offset < until:
                raise ValueError(f"offset {offset} is not higher than {until - 1}")
            if offset == until and outcome == last:
                self.ranges[-1] = (first, until + 1, last)
                return
        self.ranges.append((offset, offset + 1, outcome))

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.ranges[-1][1] if self.ranges else 0

    @property
    def records(self) -> int:
        return sum(until - first for first, until, _ in self.ranges)

    def outcomes(self) -> dict[int, str]:
        return {o: outcome for first, until, outcome in self.ranges for o in range(first, until)}


@dataclass
class TopicLog:
    """One topic. ``target`` is the number of committed records to produce. ``complete`` says that all exist."""

    topic_id: str
    target: int
    complete: bool = False
    partitions: dict[int, PartitionLog] = field(default_factory=dict)

    @property
    def totals(self) -> Totals:
        """Counts by outcome."""
        counts = {"row": 0, "error": 0, "skip": 0}
        for partition in self.partitions.values():
            for first, until, outcome in partition.ranges:
                counts[outcome.partition(":")[0]] += until - first
        return Totals(sum(counts.values()), counts["row"], counts["error"], counts["skip"])


@dataclass
class ProducersLog:
    """The log of all topics. It includes incomplete ones, with what was known when their production began."""

    cluster_id: str = ""
    topics: dict[str, TopicLog] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> ProducersLog:
        """The stored log; an empty one if there is no file. Raises CorruptState, UnsupportedFormat."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except ValueError as error:
            raise _corrupt(path, error) from error
        try:
            if data["format"] > FORMAT:
                raise UnsupportedFormat(f"{path} has format {data['format']}, this version reads {FORMAT}")
            topics = {name: _topic_from(content) for name, content in data["topics"].items()}
            return cls(data["cluster_id"], topics)
        except (KeyError, TypeError, ValueError) as error:
            raise _corrupt(path, error) from error

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        topics = {name: _topic_to(topic) for name, topic in sorted(self.topics.items())}
        content = {"format": FORMAT, "cluster_id": self.cluster_id, "topics": topics}
        partial = path.with_suffix(f".{os.getpid()}.partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(content, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def expected(self, topic: str, partition: int) -> Outcomes:
        """The required outcome of each committed record; empty for partitions that the demo did not produce."""
        logged = self.topics.get(topic)
        found = logged.partitions.get(partition) if logged else None
        return found.outcomes() if found else {}

    def totals(self) -> Mapping[str, Totals]:
        return {name: topic.totals for name, topic in sorted(self.topics.items())}


def expected_outcomes(folder: Path) -> Callable[[TopicPartition], Outcomes | None]:
    """The log in ``folder`` for reconciliation, as a function from partition to outcomes.

    It returns None for topics that the demo did not produce, and for topics whose production was interrupted.
    """
    log = ProducersLog.load(folder / FILE_NAME)

    def expected(tp: TopicPartition) -> Outcomes | None:
        topic = log.topics.get(tp.topic)
        return log.expected(tp.topic, tp.partition) if topic is not None and topic.complete else None

    return expected


def _topic_to(topic: TopicLog) -> dict[str, Any]:
    outcomes = sorted({o for p in topic.partitions.values() for _, _, o in p.ranges})
    return {
        "topic_id": topic.topic_id,
        "target": topic.target,
        "complete": topic.complete,
        # For people and scripts only: a loaded log computes its totals.
        "totals": asdict(topic.totals),
        "outcomes": outcomes,
        "partitions": {
            str(number): [[first, until, outcomes.index(o)] for first, until, o in partition.ranges]
            for number, partition in sorted(topic.partitions.items())
        },
    }


def _topic_from(content: Mapping[str, Any]) -> TopicLog:
    outcomes = content["outcomes"]
    partitions = {
        int(number): PartitionLog([(first, until, outcomes[index]) for first, until, index in ranges])
        for number, ranges in content["partitions"].items()
    }
    return TopicLog(content["topic_id"], content["target"], content["complete"], partitions)


def _corrupt(path: Path, error: Exception) -> CorruptState:
    return CorruptState(
        f"{path} cannot be read: {error}",
        next_step="delete it: the next `make demo` rebuilds it from the topics' records",
    )
