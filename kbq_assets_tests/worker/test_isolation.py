"""A fault has the size of its cause: an exception that nobody foresaw stops its unit, and no other of its task."""

from __future__ import annotations

import pytest

from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.pipelines.bench import SCHEMAS, Bench


class Defective(FakeRegistry):
    """A registry whose client has a bug with schema 2."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        if schema_id == 2:
            raise RecursionError("maximum recursion depth exceeded")
        return super().schema(schema_id)


@pytest.mark.parametrize("route", ["topic", "record_name"])
def test_a_defect_that_one_partition_meets_leaves_its_neighbors_alone(route: str) -> None:
    bench = Bench(TopicSettings.of(dataset="d", table="t", route=route), partitions=3)
    bench.registry = Defective(SCHEMAS)
    for partition, schema_id in enumerate((1, 2, 1)):
        bench.produce(schema_id, partition=partition)
    report = bench.extract()
    [stop] = report.stops
    assert (stop.topic_partition.partition, report.failures) == (1, {})
    assert "RecursionError" in stop.message
    assert {partition: each.next for partition, each in bench.commit().partitions.items()} == {
        0: 1,
        1: 0,
        2: 1,
    }
