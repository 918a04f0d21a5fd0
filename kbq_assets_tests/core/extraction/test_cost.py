"""A topic's use of resources is summed over its units, and stored as lines that SQL can read."""

from __future__ import annotations

import json

from kbq_assets.core.extraction.cost import Usage, cost_lines, costs_path, with_outcome
from kbq_assets.core.extraction.units import Unit, UnitOutcome, WorkerProcess
from kbq_assets.core.protocol.commits import Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.strategies import staged_file

STARTED_MS = 1_700_000_000_000


def test_usage_adds_up_over_units_failed_ones_included() -> None:
    settings = TopicSettings.of(owner="sales", cost_center="4711")
    unit = Unit(OffsetRange(TopicPartition("t", 0), 0, 10), 1, settings)
    file = staged_file(first=0, until=10)
    window = Window(0, 10, Counts(positions=10, records=8, bytes=80), (file,))
    read = UnitOutcome(unit, (window,), seconds=2.0, process=WorkerProcess(core_seconds=1.5))
    failed = UnitOutcome(unit, failure="no answer", seconds=1.0, process=WorkerProcess(core_seconds=0.25))
    assert with_outcome(with_outcome(None, read), failed) == Usage(
        "t", "sales", "4711", tasks=2, positions=10, records=8, bytes=80, staged_bytes=file.bytes, seconds=3.0,
        core_seconds=1.75,
    )  # fmt: skip


def test_cost_records_are_flat_lines_of_json_one_a_topic() -> None:
    costs = [Usage("t", "sales", records=3, core_seconds=1.5), Usage("u")]
    first, second = map(json.loads, cost_lines(costs, "run1", STARTED_MS).splitlines())
    assert (first["run"], first["started"], first["topic"], first["owner"], first["records"], first["cost"]) == (
        "run1", "2023-11-14T22:13:20Z", "t", "sales", 3, 1.5,
    )  # fmt: skip
    assert (second["topic"], second["cost"]) == ("u", 0.0)
    assert not any(isinstance(value, dict | list) for value in first.values())


def test_costs_are_kept_by_day() -> None:
    assert costs_path("run1", STARTED_MS) == "costs/2023-11-14/221320-run1.jsonl"
