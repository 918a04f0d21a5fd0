"""What every warehouse promises to replays (`kbq_assets.ports.replay`). Subclass it and give the fixtures."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from kbq_assets.core.errors import JobAlreadyExists, Refused
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.replay.parts import ReplaceParts
from kbq_assets.ports.replay import (
    DayRows,
    PartitionDay,
    ReplaceJob,
    Replacement,
    ReplayTables,
    RowDifference,
    RowRange,
)
from kbq_assets.ports.warehouse import KafkaRange, Warehouse
from kbq_assets_tests.contracts.warehouse import SCHEMA, Stage, avro_file, load_job, record, stage_in

LIVE, REPLAYED, FORMER, GONE = (
    TableReference("shop", name)
    for name in ("orders", "_kbq_replay_1_orders", "_kbq_former_1_orders", "nothing")
)
OTHER, NEW, OTHER_FORMER = (
    TableReference("shop", name) for name in ("sales", "_kbq_replay_1_sales", "_kbq_former_1_sales")
)
DAY = date(2022, 1, 8)  # 19,000 days since 1970


def rows_in(*ranges: tuple[int, int, int]) -> RowRange:
    """Rows of ranges, each a partition with its offsets."""
    return RowRange("t", 1, tuple(OffsetRange(TopicPartition("t", p), a, b) for p, a, b in ranges))


class ReplayTablesContract:
    """Needs fixtures ``warehouse`` and ``replays``."""

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        return stage_in(tmp_path)

    @pytest.fixture(autouse=True)
    def _filled(self, warehouse: Warehouse, stage: Stage) -> None:
        """The live table has offsets 0 to 5 of partition 0, and rows outside of the range. The replay has offsets 2
        to 4, of which 3 differs, and 9."""
        others = [record(2, topic="u", epoch=1), record(2, epoch=0), record(2, partition=1, epoch=1)]
        self.fill(warehouse, stage, LIVE, [*(record(o, epoch=1) for o in range(6)), *others])
        new = [record(o, epoch=1, note="new" if o == 3 else None) for o in (2, 3, 4, 9)]
        self.fill(warehouse, stage, REPLAYED, new)

    def fill(
        self, warehouse: Warehouse, stage: Stage, table: TableReference, rows: list[dict[str, object]]
    ) -> None:
        """Load rows into a new table."""
        warehouse.create_table(table, columns_of(SCHEMA), TableOptions())
        uri = stage(f"{table}.avro", avro_file(rows))
        warehouse.insert_job(load_job(f"kbq-{table.table}-1", uri, table=table))
        self.wait(warehouse, f"kbq-{table.table}-1")

    def wait(self, warehouse: Warehouse, job_id: str) -> None:
        """Until a job has ended; most warehouses end it at once."""

    def run_replacement(self, warehouse: Warehouse, replays: ReplayTables, job: ReplaceJob) -> None:
        replays.replace(job)
        self.wait(warehouse, job.job_id)

    def test_rows_of_a_range_are_counted_by_partition_and_day(self, replays: ReplayTables) -> None:
        found = replays.days([LIVE, REPLAYED, GONE], rows_in((0, 2, 4), (1, 0, 9)))
        assert found == {
            LIVE: {PartitionDay(0, DAY): DayRows(2, 2), PartitionDay(1, DAY): DayRows(1, 1)},
            REPLAYED: {PartitionDay(0, DAY): DayRows(2, 2)},
        }

    def test_distinct_keys_are_counted_where_a_table_has_the_key_s_columns(
        self, warehouse: Warehouse, replays: ReplayTables, stage: Stage
    ) -> None:
        notes = ("a", "b", "a", None, "b")
        self.fill(
            warehouse, stage, OTHER, [record(o, epoch=1, id=o % 2, note=n) for o, n in enumerate(notes)]
        )
        both = rows_in((0, 0, 5))
        for key, expected in (
            (("note",), 2),  # a, b
            (("id", "note"), 3),  # 0 a, 1 b, 0 b
            (("note", "_kafka_offset"), 4),
            (("nothing",), None),
            (("note.of",), None),
            ((), None),
        ):
            found = replays.days([OTHER, LIVE], both, {OTHER: key})
            assert found[OTHER] == {PartitionDay(0, DAY): DayRows(5, 5, expected)}, key
            assert found[LIVE][PartitionDay(0, DAY)].keys is None

    def test_differing_rows_are_named_in_order(self, replays: ReplayTables) -> None:
        assert replays.differences(LIVE, REPLAYED, rows_in((0, 1, 10)), 10) == (
            RowDifference(0, 1, only="live"),
            RowDifference(0, 3, ("note",)),
            RowDifference(0, 5, only="live"),
            RowDifference(0, 9, only="replay"),
        )
        assert len(replays.differences(LIVE, REPLAYED, rows_in((0, 1, 10)), 2)) == 2
        assert replays.differences(LIVE, REPLAYED, rows_in((0, 2, 3)), 10) == ()

    def test_offsets_of_a_range_that_two_sides_have_are_counted_once(self, replays: ReplayTables) -> None:
        assert replays.shared([LIVE], [REPLAYED, GONE], rows_in((0, 0, 10))) == 3
        assert replays.shared([LIVE, REPLAYED], [REPLAYED, LIVE], rows_in((0, 3, 10))) == 4
        assert replays.shared([REPLAYED], [LIVE], rows_in((0, 5, 10))) == 0
        assert replays.shared([LIVE], [GONE], rows_in((0, 0, 10))) == 0
        assert replays.shared([], [LIVE], rows_in((0, 0, 10))) == 0

    def test_asking_what_a_replacement_is_billed_changes_nothing(
        self, warehouse: Warehouse, replays: ReplayTables
    ) -> None:
        assert replays.bytes_billed({LIVE: REPLAYED, GONE: GONE}, rows_in((0, 2, 4))) >= 0
        assert self.places(warehouse, LIVE) == [0, 1, 2, 3, 4, 5]

    def test_a_table_that_does_not_exist_has_no_rows(self, replays: ReplayTables) -> None:
        both = rows_in((0, 2, 4))
        assert [d.only for d in replays.differences(LIVE, GONE, both, 10)] == ["live", "live"]
        assert [d.only for d in replays.differences(GONE, REPLAYED, both, 10)] == ["replay", "replay"]
        assert replays.differences(GONE, GONE, both, 10) == ()

    def replacement(self, job_id: str, *ranges: tuple[int, int, int]) -> ReplaceJob:
        return ReplaceJob(job_id, rows_in(*ranges), (Replacement(LIVE, REPLAYED, FORMER, 1),))

    def places(self, warehouse: Warehouse, table: TableReference) -> list[int]:
        """Offsets of partition 0 and epoch 1."""
        return sorted(warehouse.positions(table, KafkaRange("t", 0, 1)))

    def test_exactly_the_range_is_replaced_and_the_former_rows_are_kept(
        self, warehouse: Warehouse, replays: ReplayTables
    ) -> None:
        warehouse.update_columns(LIVE, [Column("_kbq_replay", "INT64")])
        self.run_replacement(warehouse, replays, self.replacement("kbq-replay-a-1-1", (0, 2, 6)))
        assert (self.places(warehouse, LIVE), self.places(warehouse, FORMER)) == (
            [0, 1, 2, 3, 4],
            [2, 3, 4, 5],
        )
        assert sum(warehouse.kafka_ranges(LIVE).values()) == 8
        assert replays.differences(LIVE, REPLAYED, rows_in((0, 2, 6)), 9) == ()
        status = warehouse.get_job("kbq-replay-a-1-1", warehouse.project, warehouse.location, LIVE)
        assert status and (status.state, status.source_uris) == ("DONE", ("replay:shop.orders",))
        back = Replacement(LIVE, FORMER)
        self.run_replacement(warehouse, replays, ReplaceJob("kbq-replay-a-1-2", rows_in((0, 2, 6)), (back,)))
        assert self.places(warehouse, LIVE) == [0, 1, 2, 3, 4, 5]
        assert replays.differences(LIVE, FORMER, rows_in((0, 2, 6)), 9) == ()

    def test_a_range_without_new_rows_is_deleted(self, warehouse: Warehouse, replays: ReplayTables) -> None:
        job = ReplaceJob("kbq-replay-a-1-1", rows_in((0, 1, 3), (1, 0, 9)), (Replacement(LIVE, None),))
        self.run_replacement(warehouse, replays, job)
        assert self.places(warehouse, LIVE) == [0, 3, 4, 5]
        assert KafkaRange("t", 1, 1) not in warehouse.kafka_ranges(LIVE)

    def test_a_replacement_runs_once_by_its_id(self, warehouse: Warehouse, replays: ReplayTables) -> None:
        warehouse.update_columns(LIVE, [Column("_kbq_replay", "INT64")])
        self.run_replacement(warehouse, replays, self.replacement("kbq-replay-a-1-1", (0, 2, 4)))
        with pytest.raises(JobAlreadyExists):
            replays.replace(ReplaceJob("kbq-replay-a-1-1", rows_in((0, 0, 9)), (Replacement(LIVE, None),)))
        warehouse.burn_job("kbq-replay-a-1-2", warehouse.project, warehouse.location, LIVE)
        with pytest.raises(JobAlreadyExists):
            replays.replace(ReplaceJob("kbq-replay-a-1-2", rows_in((0, 0, 9)), (Replacement(LIVE, None),)))
        assert self.places(warehouse, LIVE) == [0, 1, 2, 3, 4, 5]

    def two_tables(self, warehouse: Warehouse, stage: Stage) -> ReplaceJob:
        """Rows 2 to 4 move from one table to another one."""
        self.fill(warehouse, stage, OTHER, [record(7, epoch=1)])
        self.fill(warehouse, stage, NEW, [record(o, epoch=1) for o in (2, 3, 4)])
        for table in (LIVE, OTHER):
            warehouse.update_columns(table, [Column("_kbq_replay", "INT64")])
        moved = Replacement(LIVE, None, FORMER, 1), Replacement(OTHER, NEW, OTHER_FORMER, 1)
        return ReplaceJob("kbq-replay-a-1-1", rows_in((0, 2, 5)), moved)

    def test_rows_move_from_one_table_to_another(
        self, warehouse: Warehouse, replays: ReplayTables, stage: Stage
    ) -> None:
        job = self.two_tables(warehouse, stage)
        self.run_replacement(warehouse, replays, job)
        assert ReplaceParts(warehouse, job.parts(one_transaction=replays.one_transaction)).is_done
        assert (self.places(warehouse, LIVE), self.places(warehouse, OTHER)) == ([0, 1, 5], [2, 3, 4, 7])
        assert (self.places(warehouse, FORMER), self.places(warehouse, OTHER_FORMER)) == ([2, 3, 4], [])
        with pytest.raises(JobAlreadyExists):
            replays.replace(job)

    def test_an_id_that_is_given_up_replaces_nothing(
        self, warehouse: Warehouse, replays: ReplayTables, stage: Stage
    ) -> None:
        job = self.two_tables(warehouse, stage)
        assert ReplaceParts(warehouse, job.parts(one_transaction=replays.one_transaction)).give_up()
        with pytest.raises(JobAlreadyExists):
            replays.replace(job)
        assert (self.places(warehouse, LIVE), self.places(warehouse, OTHER)) == ([0, 1, 2, 3, 4, 5], [7])

    def test_only_a_replays_own_tables_are_dropped(self, warehouse: Warehouse, replays: ReplayTables) -> None:
        with pytest.raises(Refused):
            replays.drop([REPLAYED, LIVE])
        replays.drop([REPLAYED, REPLAYED])
        assert [warehouse.columns(table) is None for table in (LIVE, REPLAYED)] == [False, True]
        replays.drop([REPLAYED])
