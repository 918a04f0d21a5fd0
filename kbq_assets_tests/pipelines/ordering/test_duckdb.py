"""Ordered tables in a DuckDB file, whose loads die anywhere: a reader sees a beginning of the order, and never more."""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.protocol.names import marker_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets_tests.pipelines.bench import TOPIC, A, value
from kbq_assets_tests.pipelines.statements.duckdb_bench import DuckDbBench

OPTIONS = {"dataset": "d", "route": "record_name", "order": "offset"}
NOON = 1_700_000_000_000 // HOUR_MS * HOUR_MS - 2 * HOUR_MS


def bench_of(path: Path, partitions: int = 1, files_per_job: int = 10_000, **options: str) -> DuckDbBench:
    bench = DuckDbBench(path, {**OPTIONS, **options}, partitions)
    bench.window = WindowLimits(records=1)
    bench.kafka.chunk_records = 1
    bench.duckdb.limits = dataclasses.replace(bench.duckdb.limits, files=files_per_job)
    return bench


def shown(bench: DuckDbBench) -> list[tuple[int, int]]:
    """Partition and offset of the rows that a reader sees."""
    if not bench.duckdb.path.exists() or bench.duckdb.find_table(A) is None:
        return []
    return [
        (row[0], row[1])
        for row in bench.rows(f"SELECT _kafka_partition, _kafka_offset FROM {A} ORDER BY ALL")
    ]


def test_records_of_two_schemas_become_visible_in_their_order_wherever_loads_die(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, files_per_job=1)
    bench.produce(1, 2, 1, 2, 1)
    bench.extract()
    seen: list[int] = []
    for point in itertools.count(5, 9):
        bench.load_until(point)
        seen = [offset for _, offset in shown(bench)]
        assert seen == list(range(len(seen)))
        if len(seen) == 5:
            break
    bench.load_duckdb()
    assert bench.table().order.settled == 5


def test_an_hour_waits_for_the_one_of_three_partitions_that_is_behind(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 3, order="hour", complete_after_seconds="60")

    def at(partition: int, *minutes: int) -> None:
        for minute in minutes:
            bench.kafka.produce(TopicPartition(TOPIC, partition), value(1), timestamp=NOON + minute * 60_000)

    at(0, 5, 30, 65)
    at(1, 10, 70)
    at(2, 2, 50)
    [table] = bench.cycle().tables
    assert (table.state, f"{TOPIC}[2] has passed" in table.message) == ("waiting", True)
    assert shown(bench) == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    at(2, 62)
    bench.cycle()
    assert len(shown(bench)) == 8


def test_fifty_shuffled_batches_wait_for_the_history_marker(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 5, files_per_job=10, hold_until="history")
    batches = [partition for partition in range(5) for _ in range(10)]
    random.Random(7).shuffle(batches)
    for number, partition in enumerate(batches):
        bench.produce(1 + number % 2, partition=partition)
    bench.cycle()
    assert shown(bench) == []
    bench.store.create(marker_path("history"), b"")
    bench.store.time_ms += 241_000
    bench.load_duckdb()
    assert shown(bench) == [(partition, offset) for partition in range(5) for offset in range(10)]
    assert bench.table().order.settled == 5
