"""The cost of a cycle for its driver alone: 11,200 partitions, a store as slow as a bucket (``make bench-publish``).

Reads take 25 ms and writes 60 ms. There are 800 task slots, and a task ends as soon as it is submitted. Each of its
units has a window with two files. The broker answers from memory. Results are written to
``benchmarks/results/scale.json``.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from benchmarks import plan_state
from benchmarks.measure import REPOSITORY
from benchmarks.plan import Broker
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.commits import StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.pipelines.extraction.extract import extract
from kbq_assets.pipelines.extraction.extractor import PUBLISHING_THREADS
from kbq_assets.pipelines.extraction.ports import ExtractionPorts
from kbq_assets.ports.object_store import StoredObject
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

RESULT = REPOSITORY / "benchmarks" / "results" / "scale.json"
READ_SECONDS, WRITE_SECONDS = 0.025, 0.060
SLOTS, RECORDS = 800, 10


class SlowStore(FaultyMemoryStore):
    """A store whose calls take as long as a bucket's."""

    def __init__(self) -> None:
        super().__init__()
        self.swaps = 0

    def get(self, path: str) -> StoredObject:
        time.sleep(READ_SECONDS)
        return super().get(path)

    def create(self, path: str, data: bytes) -> int:
        time.sleep(WRITE_SECONDS)
        return super().create(path, data)

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        with ThreadPoolExecutor(16) as threads:  # as Cloud Storage's
            list(threads.map(lambda path: self.create(path, b""), paths))
        return {}

    def swap(self, path: str, data: bytes, generation: int) -> int:
        time.sleep(WRITE_SECONDS)
        self.swaps += 1
        return super().swap(path, data, generation)


class TrickleBroker(Broker):
    """A broker with ten records in each partition of some topics."""

    def __init__(self, topics: int) -> None:
        self._topics = topics

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        found = list(super().topics().items())[: self._topics]
        return {topic: described for topic, described in found if names is None or topic in names}

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        return {tp: BrokerOffsets(0, RECORDS) for tp in partitions}


class EndsAtOnce:
    """An engine whose tasks take no time."""

    def __init__(self) -> None:
        self.tasks = 0
        self._ended: list[UnitOutcome] = []

    @property
    def idle_slots(self) -> int:
        return SLOTS

    def submit(self, units: tuple[Unit, ...]) -> None:
        self.tasks += 1
        self._ended += [UnitOutcome(unit, (_window(unit),)) for unit in units]

    def next_outcomes(self, timeout_seconds: float) -> list[UnitOutcome]:
        ended, self._ended = self._ended, []
        return ended

    def complaint(self) -> str:
        return ""

    def cancel(self, reason: str) -> None:
        raise AssertionError(reason)


def _window(unit: Unit) -> Window:
    tp, first, until = unit.range.topic_partition, unit.range.from_offset, unit.range.until_offset
    files = tuple(_file(tp, TableReference("sales", name), first, until) for name in ("orders", "refunds"))
    rows = {str(file.table): file.rows for file in files}
    return Window(first, until, Counts(positions=RECORDS, records=RECORDS, bytes=900, rows=rows), files=files)


def _file(tp: TopicPartition, table: TableReference, first: int, until: int) -> StagedFile:
    name = StagedFileName(tp, table, 1, first, 1, "0123456789abcdef")
    return StagedFile(name.format(), first, until, RECORDS // 2, 1_066, 450, "AAAAAA==", "0" * 32, (19_675,))


def measure(topics: int, threads: int) -> dict[str, float]:
    """Measure one cycle over new topics. Its first half creates their commits."""
    store, engine = SlowStore(), EndsAtOnce()
    sources = parse_source_list("shop.*  dataset=sales table=orders start=earliest\n", "sources")
    ports = ExtractionPorts(store, TrickleBroker(topics), engine, SystemClock(), publishing_threads=threads)
    seconds = {"first": 0.0, "last": 0.0}

    def note(progress: object) -> None:
        seconds["last"] = time.monotonic()
        seconds["first"] = seconds["first"] or seconds["last"]

    before = resource.getrusage(resource.RUSAGE_SELF)
    report = extract(ports, sources, on_progress=note)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert not report.failures, list(report.failures.items())[:3]
    assert len(report.partitions) == topics * plan_state.PARTITIONS
    return {
        "partitions": len(report.partitions),
        "tasks": engine.tasks,
        "swaps": store.swaps,
        "publish_wall_simulated": round(seconds["last"] - seconds["first"], 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }


def main() -> None:
    """Measure a quarter of the topics and all topics, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=PUBLISHING_THREADS)
    options = parser.parse_args()
    for topics in (plan_state.TOPICS // 4, plan_state.TOPICS):
        result = measure(topics, options.threads)
        print(result, flush=True)
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    kept = {key: result[key] for key in ("partitions", "publish_wall_simulated")}
    RESULT.write_text(json.dumps({**known, **kept, "publish_cpu": result["cpu_seconds"]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
