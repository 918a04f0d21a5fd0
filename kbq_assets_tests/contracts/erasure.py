"""What a warehouse promises to erasures (`kbq_assets.ports.erasure`). Subclass it and give the fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.erasure.offset_sets import RowPlaces, offsets_of
from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.erasure import ErasedRows, ErasureJob, ErasureTables
from kbq_assets.ports.warehouse import KafkaRange, Warehouse
from kbq_assets_tests.contracts.warehouse import SCHEMA, Stage, avro_file, load_job, record, stage_in

ORDERS, SALES, GONE = (TableReference("shop", name) for name in ("orders", "sales", "nothing"))
#: Offsets 1 and 2 of partition 0 in epoch 1, offset 2 in epoch 0, and nothing of partition 7.
ROWS = RowPlaces("t", ((0, 0, (2, 3)), (0, 1, (1, 3)), (7, 1, (0, 9))))


def no_tasks() -> Any:
    """No Spark: few bytes are written again in this process."""
    raise AssertionError("few bytes need no tasks")


class ErasureTablesContract:
    """Needs a fixture ``warehouse``."""

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        return stage_in(tmp_path)

    @pytest.fixture
    def erasures(self, warehouse: Warehouse, stage: Stage) -> ErasureTables:
        """Orders have offsets 0 to 3 of partition 0, one of another topic, epoch and partition each; sales have 1."""
        others = [record(2, topic="u", epoch=1), record(2, epoch=0), record(2, partition=1, epoch=1)]
        anna = [record(offset, epoch=1, note="anna" if offset == 1 else None) for offset in range(4)]
        for table, rows in ((ORDERS, [*anna, *others]), (SALES, [record(1, epoch=1, note="anna")])):
            warehouse.create_table(table, columns_of(SCHEMA), TableOptions())
            uri = stage(f"{table}.avro", avro_file(rows))
            warehouse.insert_job(load_job(f"kbq-{table.table}-1", uri, table=table))
            self.wait(warehouse, f"kbq-{table.table}-1")
        found = warehouse.erasures
        assert found is not None
        return found

    def test_rows_are_counted_by_partition_and_epoch(self, erasures: ErasureTables) -> None:
        found = erasures.count([ORDERS, SALES, GONE], ROWS)
        assert found == {
            ORDERS: {(0, 0): ErasedRows(1, 1), (0, 1): ErasedRows(2, 2)},
            SALES: {(0, 1): ErasedRows(1, 1)},
        }

    def test_rows_are_found_by_a_column(self, erasures: ErasureTables) -> None:
        found = erasures.find([ORDERS, SALES, GONE], "t", "note", "anna", 10)
        place = RowPlaces("t", ((0, 1, offsets_of([1])),))
        assert found == {ORDERS: place, SALES: place}
        assert erasures.find([ORDERS], "t", "note", "nobody", 10) == {ORDERS: RowPlaces("t", ())}
        assert erasures.find([ORDERS], "t", "no_such_column", "anna", 10) == {}
        assert erasures.find([ORDERS], "t", "_kafka_offset", "0", 10)[ORDERS].places[0][2] == (0, 1)

    def wait(self, warehouse: Warehouse, job_id: str) -> None:
        """Until a job has ended; most warehouses end it at once."""

    def test_exactly_the_rows_are_deleted_in_all_tables(
        self, warehouse: Warehouse, erasures: ErasureTables
    ) -> None:
        tables = (ORDERS, SALES, GONE)
        each = [(table,) for table in tables] if erasures.tables_per_job == 1 else [tables]
        jobs = [ErasureJob(f"kbq-erase-a-b-1-{n}", ROWS, own) for n, own in enumerate(each, 1)]
        for job in jobs:
            erasures.erase(job, no_tasks)
            self.wait(warehouse, job.job_id)
        assert sorted(warehouse.positions(ORDERS, KafkaRange("t", 0, 1))) == [0, 3]
        assert KafkaRange("t", 0, 0) not in warehouse.kafka_ranges(ORDERS)
        assert {KafkaRange("u", 0, 1), KafkaRange("t", 1, 1)} <= warehouse.kafka_ranges(ORDERS).keys()
        assert sum(warehouse.kafka_ranges(SALES).values()) == 0
        assert not any(erasures.count([ORDERS, SALES], ROWS).values())
        for job in jobs:
            status = warehouse.get_job(job.job_id, warehouse.project, warehouse.location, job.tables[0])
            assert status is not None and status.state == "DONE"
            assert (status.source_uris, status.error) == (job.sources, None)
            with pytest.raises(JobAlreadyExists):
                erasures.erase(job, no_tasks)

    def test_a_deletion_runs_once_by_its_id(self, warehouse: Warehouse, erasures: ErasureTables) -> None:
        warehouse.burn_job("kbq-erase-a-b-1-1", warehouse.project, warehouse.location, ORDERS)
        with pytest.raises(JobAlreadyExists):
            erasures.erase(ErasureJob("kbq-erase-a-b-1-1", ROWS, (ORDERS,)), no_tasks)
        assert sorted(warehouse.positions(ORDERS, KafkaRange("t", 0, 1))) == [0, 1, 2, 3]
