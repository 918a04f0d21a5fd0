"""Ordered tables: a reader always sees a prefix of the order, wherever loads die, fail or wait."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

import pytest

from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.names import marker_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets_tests.both_warehouses.conftest import OpenBench
from kbq_assets_tests.pipelines.bench import TOPIC, A, B, value
from kbq_assets_tests.pipelines.warehouse_bench import WarehouseBench

NOON = 1_700_000_000_000 // HOUR_MS * HOUR_MS - 2 * HOUR_MS
BY_ME = AuditEntry(7, "", 0, "by hand", "me")
MINUTES_MS = 60_000


def small_jobs(bench: WarehouseBench, window_records: int = 1, files: int = 10_000) -> WarehouseBench:
    """Limit the records per window and the files per job."""
    bench.window = WindowLimits(records=window_records)
    bench.kafka.chunk_records = window_records
    target = bench.target
    target.limits = dataclasses.replace(target.limits, files=files)
    return bench


@pytest.mark.parametrize("window_records", [1, 3])
def test_records_of_two_schemas_become_visible_in_their_order_wherever_loads_die(
    open_bench: OpenBench, window_records: int
) -> None:
    bench = small_jobs(open_bench(order="offset"), window_records, files=window_records)
    bench.produce(1, 2, 1, 2, 1)
    bench.extract()
    seen: list[int] = []
    for point in itertools.count(5, 9):
        bench.load_until(point)
        seen = [offset for _, offset in bench.shown()]
        assert seen == list(range(len(seen)))
        if len(seen) == 5:
            break
    bench.load_all()
    assert bench.shown() == [(0, offset) for offset in range(5)]
    assert bench.table().order.settled == (5 if window_records == 1 else 2)


def test_an_hour_waits_for_the_one_of_three_partitions_that_is_behind(open_bench: OpenBench) -> None:
    bench = small_jobs(open_bench(3, order="hour", complete_after_seconds="60"))

    def at(partition: int, *minutes: int) -> None:
        for minute in minutes:
            place = TopicPartition(TOPIC, partition)
            bench.kafka.produce(place, value(1), timestamp=NOON + minute * MINUTES_MS)

    at(0, 5, 30, 65)
    at(1, 10, 70)
    at(2, 2, 50)
    [table] = bench.cycle().tables
    assert (table.state, f"{TOPIC}[2] has passed" in table.message) == ("waiting", True)
    assert bench.shown() == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1)]
    at(2, 62)
    bench.cycle()
    assert len(bench.shown()) == 8


@pytest.mark.thorough
def test_fifty_shuffled_batches_wait_for_the_history_marker_and_then_run_in_order(
    open_bench: OpenBench,
) -> None:
    bench = small_jobs(open_bench(5, order="offset", hold_until="history"), files=10)
    batches = [partition for partition in range(5) for _ in range(10)]
    random.Random(7).shuffle(batches)
    for number, partition in enumerate(batches):
        bench.produce(1 + number % 2, partition=partition)
    bench.cycle()
    assert bench.shown() == []
    bench.store.create(marker_path("history"), b"")
    bench.store.time_ms += 241_000
    for point in itertools.count(20, 20):
        bench.load_until(point)
        found = bench.shown()
        counts = Counter(partition for partition, _ in found)
        assert found == [(each, offset) for each in range(5) for offset in range(counts[each])]
        if len(found) == 50:
            break
    assert bench.table().order.settled >= 5


def failed(bench: WarehouseBench) -> str:
    """Batch 2 fails, batch 3 waits behind it; why the table stopped."""
    small_jobs(bench, files=1)
    bench.produce(1)
    bench.cycle()
    bench.refuse()
    bench.produce(1, 3)
    bench.cycle()
    bench.produce(1)
    bench.cycle()
    assert (bench.shown(), bench.shown(B)) == ([(0, 0)], [(0, 2)])
    parked = bench.table().parked
    assert parked is not None
    return f"{parked.reason}: {parked.error}"


@pytest.mark.thorough
@pytest.mark.parametrize("decision", ["retry", "skip"])
def test_a_batch_that_fails_stops_its_table_alone_until_somebody_decides(
    open_bench: OpenBench, decision: str
) -> None:
    bench = open_bench(order="offset")
    assert failed(bench).startswith("batch_failed: batch 2")
    bench.accept()
    if decision == "retry":
        decide(bench.store, A, lambda now: transitions.retry(now, BY_ME))
    else:
        decide(bench.store, A, lambda now: transitions.skip(now, 2, BY_ME))
    bench.load_all()
    assert bench.shown() == [(0, 0), *([(0, 1)] if decision == "retry" else []), (0, 3)]
    order = bench.table().order
    assert (order.settled, order.failed, [each.action for each in order.audit]) == (3, None, [decision])


def test_a_red_gate_holds_its_table_while_others_load(open_bench: OpenBench) -> None:
    bench = open_bench(
        order="offset", gate="sql", gate_sql="SELECT x FROM {{ table }} WHERE _kafka_offset = 0"
    )
    small_jobs(bench)
    bench.produce(1)
    bench.cycle()
    parked = bench.table().parked
    assert parked is not None
    assert (parked.reason, "x=1" in parked.error) == ("gate_red", True)
    bench.produce(1, 3)
    bench.store.time_ms += 61_000
    bench.cycle()
    assert (bench.shown(), bench.shown(B)) == ([(0, 0)], [(0, 2)])
    statements = bench.target.statements
    assert statements is not None
    bench.execute(f"DELETE FROM {statements.sql_name(A)} WHERE _kafka_offset = 0")
    bench.store.time_ms += 121_000
    bench.load_all()
    assert bench.shown() == [(0, 1)]
    order = bench.table().order
    assert (order.settled, order.validated, bench.table().parked) == (2, 2, None)
