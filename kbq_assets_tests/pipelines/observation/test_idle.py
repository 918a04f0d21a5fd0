"""A cycle over very many partitions costs seconds: `make bench-idle` and `make bench-plan` measure more."""

from __future__ import annotations

import time

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets_tests.pipelines.bench import SETTINGS, Bench, value

TOPICS, PARTITIONS = 700, 16
#: Of processor time, which other processes do not stretch. The plan of an idle cycle takes a tenth of it.
MOST_SECONDS = 5.0


@pytest.mark.thorough
def test_an_idle_cycle_over_eleven_thousand_partitions_is_planned_in_seconds() -> None:
    bench = Bench()
    sources = [SourceEntry(f"shop.{number}", SETTINGS) for number in range(TOPICS)]
    for source in sources:
        bench.kafka.create_topic(source.pattern, PARTITIONS)
    bench.kafka.produce(TopicPartition(sources[-1].pattern, PARTITIONS - 1), value(1), timestamp=1000)
    first = bench.extract(sources=sources)
    assert (first.totals.records, first.failures) == (1, {})
    started = time.process_time()
    idle = bench.extract(sources=sources)
    spent = time.process_time() - started
    assert (len(idle.plan.units), len(idle.plan.stops), idle.failures) == (0, 0, {})
    assert {path for path in bench.paths("commits/") if path.startswith("commits/shop.")} >= {
        f"commits/{source.pattern}.json" for source in sources
    }
    assert spent < MOST_SECONDS
