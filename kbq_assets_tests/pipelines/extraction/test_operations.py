"""The operations that a plan predicts are those that its run counts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pytest

from kbq_assets.core.extraction import operations
from kbq_assets.core.extraction.operations import CLASS_A_REGIONS, Operations
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.extraction.plan import plan
from kbq_assets.pipelines.extraction.ports import ExtractionLimits
from kbq_assets.pipelines.loading.load import plan as plan_load
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.pipelines.bench import TOPIC, Bench

WRITES = ("create", "swap", "close", "copy")
LISTS = ("list", "checksums")


class Meter:
    """Counts a run's calls of the store, as Cloud Storage bills them."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(self, call: Call) -> Outcome:
        if "/" in call.target or call.operation in LISTS:
            self.calls[call.operation, call.target.split("/")[0]] += 1
        return Outcome.OK

    def counted(self) -> Operations:
        """The operations since the last call."""
        calls, self.calls = self.calls, Counter()
        kinds = (WRITES, LISTS, ("get",))
        writes, lists, reads = (sum(n for (op, _), n in calls.items() if op in kind) for kind in kinds)
        return Operations(writes, lists, reads, calls["create", "done"])


@pytest.mark.parametrize("done_files", [True, False])
def test_a_plan_s_operations_are_those_of_its_run(done_files: bool) -> None:
    meter, partitions, commits = Meter(), 70, 2
    bench = Bench(partitions=partitions, faults=meter)
    limits = ExtractionLimits(done_files=done_files)
    for _ in range(2):
        for partition in range(partitions):
            bench.produce(1, partition=partition)
        planned = plan(
            bench.store, bench.kafka, [SourceEntry(TOPIC, bench.settings)], now_ms=1, limits=limits
        )
        meter.counted()
        bench.extract(limits)
        extracted = meter.counted()
        batches = plan_load(bench.store).batches
        meter.counted()
        bench.load()
        loaded = meter.counted()
    expected = operations.of_extraction(planned, commits, 1, WindowLimits(), done_files=done_files)
    assert extracted.done_files == expected.done_files == (partitions if done_files else 0)
    # The in-process engine writes each schema with every window, Spark's tasks once.
    _near(extracted.writes - (partitions - commits), expected.writes)
    _near(extracted.class_a - (partitions - commits), expected.class_a)
    _near(extracted.reads, expected.reads)
    planned_load = operations.of_load(batches, commits, 1)
    _near(loaded.writes, planned_load.writes)
    _near(loaded.class_a, planned_load.class_a)
    _near(loaded.reads, planned_load.reads)


class SparkLike(Bench):
    """Tasks remember the schemas that they wrote, as those of Spark do."""

    def _worker(self, store: Any, kafka: Any) -> WorkerPorts:
        return dataclasses.replace(super()._worker(store, kafka), written_schemas=set())


def test_a_task_writes_a_schema_once_for_all_of_its_windows() -> None:
    meter = Meter()
    bench = SparkLike(partitions=5, faults=meter)
    for partition in range(5):
        bench.produce(1, 3, partition=partition)
    bench.extract()
    assert meter.calls["create", "schemas"] == 2
    assert bench.load().rows == 10


def _near(counted: int, expected: int) -> None:
    assert abs(counted - expected) <= max(4, 0.1 * expected), (counted, expected)


def test_a_month_is_priced_by_list() -> None:
    month = operations.per_month(Operations(22_700, 100, 12_850, 11_200), 300)
    assert round(month.dollars()) == round(22_800 * 8755.2 * 0.005 / 1000 + 12_850 * 8755.2 * 0.0004 / 1000)
    assert month.dollars(CLASS_A_REGIONS) > 1.9 * month.dollars()
