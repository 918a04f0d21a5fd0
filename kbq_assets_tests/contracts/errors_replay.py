"""What every warehouse that replays error rows promises (`kbq_assets.ports.errors_replay`). Mix it into a contract of
warehouses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import JobAlreadyExists, JobFailed
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference, schema_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.pipelines.errors_replay.steps import replays_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.errors_replay import (
    REPLAYED_AT,
    ErrorReplay,
    ErrorReplays,
    ErrorReplaySteps,
    Replayed,
    ReplayStatement,
)
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.statements import LedgerRow
from kbq_assets.ports.warehouse import ErrorQuery, KafkaRange, Warehouse
from kbq_assets.wire.files.error_rows import error_schema_json
from kbq_assets_tests.contracts.statements import statements_of
from kbq_assets_tests.contracts.warehouse import (
    SCHEMA,
    TABLE,
    Stage,
    WarehouseFixtures,
    avro_file,
    load_job,
    records,
)

ERRORS = TableReference(TABLE.dataset, "kbq_errors")
RANGE = KafkaRange("t", 0, 0)
_FINGERPRINT = "00"


def error_record(offset: int, **fields: Any) -> dict[str, Any]:
    """A staged error row."""
    [place] = records([offset])
    own = {name: place[name] for name in place if name.startswith("_k")}
    bad = {
        "reason": "UNKNOWN_SCHEMA",
        "message": "",
        "schema_id": 1,
        "key": None,
        "value": b"x",
        "headers": [],
    }
    return {**own, "_kafka_timestamp": 0, **bad, "event_date": 0, **fields}


class ErrorReplaysContract(WarehouseFixtures):
    """Replays of error rows."""

    @pytest.fixture
    def errors(self, warehouse: Warehouse, table: TableReference, stage: Stage) -> TableReference:
        """Five error rows, none of which was replayed, next to a table with three rows."""
        mark = Column(REPLAYED_AT, "TIMESTAMP")
        columns = columns_of(error_schema_json())
        warehouse.create_table(ERRORS, (*columns, mark), TableOptions())
        warehouse.update_columns(table, (*columns_of(SCHEMA), mark))
        rows = [error_record(offset) for offset in range(10, 15)]
        schema = error_schema_json()
        staged = stage("errors.avro", avro_file(rows, schema))
        self.run(warehouse, load_job("e1", staged, table=ERRORS, schema=schema))
        self.run(warehouse, load_job("a1", stage("rows.avro", avro_file(records(range(3))))))
        return ERRORS

    def replays(self, warehouse: Warehouse) -> ErrorReplays:
        """The warehouse's replays."""
        found = warehouse.errors_replay
        assert found is not None
        assert not isinstance(found, ErrorReplaySteps)
        return found

    def staged(self, stage: Stage, name: str, data: bytes) -> ErrorReplay:
        """The replay of a file."""
        return ErrorReplay(TABLE, ERRORS, (stage(name, data),), SCHEMA, 1_700_000_000_000)

    def replay(self, warehouse: Warehouse, stage: Stage, name: str, offsets: Iterable[int]) -> int:
        """Replay the records of these offsets."""
        replay = self.staged(stage, name, avro_file(records(offsets)))
        return self.replays(warehouse).replay(replay).added

    def test_a_replay_adds_rows_and_marks_their_error_rows_at_once(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        assert self.replay(warehouse, stage, "r1.avro", [10, 12]) == 2
        assert set(warehouse.positions(table, RANGE)) == {0, 1, 2, 10, 12}
        assert set(warehouse.positions(errors, RANGE)) == {11, 13, 14}
        assert warehouse.kafka_ranges(errors) == {RANGE: 3}
        assert warehouse.doubled_offsets([table, errors]) == ()

    def test_the_same_replay_again_adds_nothing_and_one_that_overlaps_adds_the_rest(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        assert self.replay(warehouse, stage, "r1.avro", [10, 12]) == 2
        assert self.replay(warehouse, stage, "r2.avro", [10, 12]) == 0
        assert self.replay(warehouse, stage, "r3.avro", [10, 11, 12, 13]) == 2
        assert set(warehouse.positions(table, RANGE).values()) == {1}
        assert set(warehouse.positions(errors, RANGE)) == {14}

    def test_a_row_without_an_error_row_is_left_out(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        assert self.replay(warehouse, stage, "r1.avro", [2, 7, 14]) == 1
        assert set(warehouse.positions(table, RANGE)) == {0, 1, 2, 14}

    def test_summaries_count_what_load_jobs_wrote(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        self.replay(warehouse, stage, "r1.avro", [10, 11])
        assert warehouse.kafka_summary(table)[RANGE].rows == 3
        assert warehouse.kafka_summary(errors)[RANGE].rows == 5

    def test_error_rows_are_read_from_an_offset_on_and_replayed_ones_only_if_asked_for(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        self.replay(warehouse, stage, "r1.avro", [11])
        found = warehouse.error_rows(errors, ErrorQuery("t", 0, epoch=0, from_offset=10, limit=2))
        assert [row.offset for row in found] == [10, 12]
        all_ = warehouse.error_rows(errors, ErrorQuery(from_offset=11, replayed=True))
        assert [row.offset for row in all_] == [11, 12, 13, 14]
        assert warehouse.error_rows(errors, ErrorQuery(reason="TOMBSTONE")) == ()
        assert warehouse.error_rows(errors, ErrorQuery(epoch=1)) == ()

    def test_files_that_do_not_load_change_nothing(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        bad = self.staged(stage, "bad.avro", avro_file(records([10]))[:-3])
        with pytest.raises(JobFailed):
            self.replays(warehouse).replay(bad)
        assert set(warehouse.positions(errors, RANGE)) == set(range(10, 15))
        assert set(warehouse.positions(table, RANGE)) == {0, 1, 2}


class StatementErrorReplaysContract(ErrorReplaysContract):
    """Replays of error rows in a warehouse that has statements."""

    def test_a_statement_applies_the_rows_if_the_ledger_is_at_its_batch(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        statements = statements_of(warehouse)
        statements.open_ledger(table)
        sql = f"INSERT INTO {statements.sql_name(table)} SELECT * FROM {SCRATCH} AS b"
        effective = f"SELECT COUNT(*) AS effective FROM {SCRATCH} AS b WHERE b._kafka_offset > 9"
        replay = self.staged(stage, "r1.avro", avro_file(records([2, 10, 12])))
        with pytest.raises(JobFailed, match="ledger"):
            self.replays(warehouse).replay(replace(replay, statement=ReplayStatement(1, sql, effective)))
        assert set(warehouse.positions(table, RANGE)) == {0, 1, 2}
        assert set(warehouse.positions(errors, RANGE)) == set(range(10, 15))
        wanted = replace(replay, statement=ReplayStatement(0, sql, effective))
        assert self.replays(warehouse).replay(wanted) == Replayed(2)
        assert warehouse.positions(table, RANGE) == dict.fromkeys((0, 1, 2, 10, 12), 1)
        assert set(warehouse.positions(errors, RANGE)) == {11, 13, 14}
        assert self.replays(warehouse).replay(wanted) == Replayed(0)
        assert warehouse.positions(table, RANGE) == dict.fromkeys((0, 1, 2, 10, 12), 1)
        assert statements.read_ledger(table) == LedgerRow(0)


class SteppedErrorReplaysContract(ErrorReplaysContract):
    """Replays of error rows by steps (PROTOCOL ER7)."""

    @pytest.fixture
    def area(self) -> ObjectStore:
        """The staging area."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _area(self, area: ObjectStore) -> None:
        """With the state of the error table."""
        state.create_table_state(area, ERRORS, "4f2a")
        area.create(schema_path(_FINGERPRINT), SCHEMA.encode())
        self._store = area

    def replays(self, warehouse: Warehouse) -> ErrorReplays:
        return replays_of(self._store, warehouse)

    def staged(self, stage: Stage, name: str, data: bytes) -> ErrorReplay:
        named = StagedFileName(TopicPartition("t", 0), TABLE, 1, 0, 0, name.replace(".", "-"))
        stream = self._store.open_write(named.format())
        stream.write(data)
        stored = stream.close()
        file = StagedFile(stored.path, 0, 100, 1, stored.size, stored.size, stored.crc32c, _FINGERPRINT)
        uri = self._store.uri(file.path)
        return replace(super().staged(lambda *_: uri, name, data), files={uri: file})

    def test_an_id_that_has_ended_adds_and_marks_nothing(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        steps = warehouse.errors_replay
        assert isinstance(steps, ErrorReplaySteps)
        replay = self.staged(stage, "r1.avro", avro_file(records([10, 12])))
        places = steps.places(replay)
        assert places == RowPlaces("t", ((0, 0, (10, 11, 12, 13)),))
        steps.land("kbq-errors-4f2a-1", replay, places)
        steps.mark("kbq-errors-4f2a-1", errors, RowPlaces("t", ((0, 0, (10, 11)),)), 1)
        with pytest.raises(JobAlreadyExists):
            steps.land("kbq-errors-4f2a-1", replay, places)
        with pytest.raises(JobAlreadyExists):
            steps.mark("kbq-errors-4f2a-1", errors, places, 1)
        assert warehouse.positions(table, RANGE) == dict.fromkeys((0, 1, 2, 10, 12), 1)
        assert set(warehouse.positions(errors, RANGE)) == {11, 12, 13, 14}
        warehouse.burn_job("kbq-errors-4f2a-2", warehouse.project, warehouse.location, table)
        with pytest.raises(JobAlreadyExists):
            steps.land("kbq-errors-4f2a-2", replay, places)
        assert warehouse.kafka_summary(table)[RANGE].rows == 3

    def test_a_target_that_is_gone_ends_the_job(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, errors: TableReference
    ) -> None:
        """It does not come late when the table is back (I4)."""
        steps = warehouse.errors_replay
        assert isinstance(steps, ErrorReplaySteps)
        replay = self.staged(stage, "r1.avro", avro_file(records([10])))
        gone = replace(replay, table=TableReference(TABLE.dataset, "gone"))
        with pytest.raises(JobFailed):
            steps.places(gone)
        steps.land("kbq-errors-4f2a-1", gone, steps.places(replay))
        found = warehouse.get_job("kbq-errors-4f2a-1", warehouse.project, warehouse.location, gone.table)
        assert found is not None
        assert found.error is not None
