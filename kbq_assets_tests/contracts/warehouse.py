"""What every warehouse adapter promises (`kbq_assets.ports.warehouse`). Subclass it and give the fixtures.

`WarehouseContract` is for any warehouse; `SharedWarehouseContract` adds what only several processes can show.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import fastavro
import pytest

from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.loading.completeness import HOUR_SCHEMA, HourRow
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of, plan_table_change
from kbq_assets.core.protocol.names import COMPLETENESS_TABLE, TableReference
from kbq_assets.ports.warehouse import (
    Comparable,
    DoubledOffset,
    ErrorQuery,
    ErrorRow,
    JobStatus,
    KafkaRange,
    LoadJob,
    OffsetSummary,
    RowComparison,
    Warehouse,
)
from kbq_assets.wire.files.error_rows import error_schema_json
from kbq_assets.wire.files.hour_rows import hour_file
from kbq_assets_tests.contracts.processes import forked_pool

#: Writes an object of this name with these bytes where the warehouse can read it; returns its URI.
Stage: TypeAlias = Callable[[str, bytes], str]
Opener: TypeAlias = Callable[[], Warehouse]

TABLE = TableReference("shop", "orders-v1")
POLICY_TAG, OTHER_TAG = (f"projects/p/locations/us/taxonomies/1/policyTags/{n}" for n in (2, 3))
METADATA: tuple[tuple[str, Any], ...] = (
    ("_kafka_topic", "string"),
    ("_kafka_partition", "int"),
    ("_kafka_offset", "long"),
    ("_kbq_epoch", "int"),
    ("event_date", {"type": "int", "logicalType": "date"}),
)


def schema_of(*fields: tuple[str, Any]) -> str:
    """A staged schema: these fields and KBQ's, among them `_event_time`."""
    times = [field for field in fields if field[0] == "_event_time"]
    pairs = (*(field for field in fields if field not in times), *METADATA[:-1], *times, METADATA[-1])
    return json.dumps(
        {"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in pairs]}, sort_keys=True
    )


SCHEMA = schema_of(("id", "long"), ("note", ["null", "string"]))


def record(
    offset: int, *, topic: str = "t", partition: int = 0, epoch: int = 0, **fields: Any
) -> dict[str, Any]:
    """A staged record of `SCHEMA`."""
    own = {"_kafka_topic": topic, "_kafka_partition": partition, "_kafka_offset": offset, "_kbq_epoch": epoch}
    return {"id": offset, "note": None, "event_date": 19_000, **own, **fields}


def records(offsets: Iterable[int], **fields: Any) -> list[dict[str, Any]]:
    """Staged records at these offsets."""
    return [record(offset, **fields) for offset in offsets]


def avro_file(rows: Iterable[Mapping[str, Any]], schema: str = SCHEMA, codec: str = "snappy") -> bytes:
    """An Avro container file."""
    stream = io.BytesIO()
    fastavro.writer(stream, json.loads(schema), rows, codec=codec)
    return stream.getvalue()


def load_job(
    job_id: str,
    *uris: str,
    table: TableReference = TABLE,
    schema: str = SCHEMA,
    project: str = "local",
    location: str = "local",
) -> LoadJob:
    """A load job."""
    return LoadJob(job_id, project, location, table, uris, schema, {"kbq": "test"})


def stage_in(folder: Path) -> Stage:
    """Writes files into a folder, and returns the URI of each."""

    def write(name: str, data: bytes) -> str:
        (folder / name).write_bytes(data)
        return (folder / name).as_uri()

    return write


def insert_or_lose(opener: Opener, job: LoadJob) -> bool:
    """Insert a job in a separate process. Returns whether this process inserted it."""
    try:
        opener().insert_job(job)
    except JobAlreadyExists:
        return False
    return True


class WarehouseFixtures:
    """Give a ``warehouse`` fixture, and `reopened` and `finish` if the defaults do not fit. ``policy_tags`` are two
    tags that exist for the warehouse, "" for none."""

    policy_tags: tuple[str, str] = (POLICY_TAG, OTHER_TAG)
    #: new columns are always the last ones
    appends_columns = False

    @pytest.fixture
    def warehouse(self) -> Warehouse:
        raise NotImplementedError

    @pytest.fixture
    def stage(self, tmp_path: Path) -> Stage:
        folder = tmp_path / "staging of %this% test"  # a URI must quote some of it
        folder.mkdir()
        return stage_in(folder)

    @pytest.fixture
    def table(self, warehouse: Warehouse) -> TableReference:
        """`TABLE`, created with the columns of `SCHEMA`."""
        warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
        return TABLE

    def reopened(self, warehouse: Warehouse) -> Warehouse:
        """The same warehouse, as a fresh process sees it."""
        return warehouse

    def finish(self, warehouse: Warehouse, job_id: str, table: TableReference = TABLE) -> JobStatus:
        """Wait for a job to be DONE."""
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            status = self.status(warehouse, job_id, table)
            if status.state == "DONE":
                return status
            time.sleep(0.05)
        raise AssertionError(f"{job_id} is not DONE")

    def status(self, warehouse: Warehouse, job_id: str, table: TableReference = TABLE) -> JobStatus:
        """A job's status, but for the time of its insertion."""
        status = warehouse.get_job(job_id, warehouse.project, warehouse.location, table)
        assert status is not None
        return replace(status, created_ms=0)

    def run(self, warehouse: Warehouse, job: LoadJob) -> JobStatus:
        warehouse.insert_job(job)
        return self.finish(warehouse, job.job_id, job.table)


class WarehouseContract(WarehouseFixtures):
    """Jobs, tables, and what is read about rows."""

    # Jobs

    def test_a_job_loads_all_rows_of_all_its_files(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        uris = (
            stage("a.avro", avro_file(records(range(3)))),
            stage("b.avro", avro_file(records(range(3, 7)))),
        )
        status = self.run(warehouse, load_job("j1", *uris))
        assert status == JobStatus("j1", "DONE", uris, 7)
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == dict.fromkeys(range(7), 1)

    def test_an_id_never_inserted_has_no_job(self, warehouse: Warehouse) -> None:
        assert warehouse.get_job("j1", warehouse.project, warehouse.location, TABLE) is None

    def test_an_id_inserted_again_conflicts_and_loads_nothing(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        first, second = stage("a.avro", avro_file(records([0]))), stage("b.avro", avro_file(records([1])))
        done = self.run(warehouse, load_job("j1", first))
        for uri in (first, second):
            with pytest.raises(JobAlreadyExists, match="j1"):
                warehouse.insert_job(load_job("j1", uri))
        assert self.status(warehouse, "j1") == done
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {0: 1}

    def test_of_eight_threads_with_one_id_one_wins(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        uri = stage("a.avro", avro_file(records(range(100))))
        start = threading.Barrier(8)

        def insert(_: int) -> bool:
            start.wait()
            return insert_or_lose(lambda: warehouse, load_job("j1", uri))

        with ThreadPoolExecutor(8) as pool:
            assert Counter(pool.map(insert, range(8))) == {True: 1, False: 7}
        self.finish(warehouse, "j1")
        assert warehouse.kafka_ranges(table) == {KafkaRange("t", 0, 0): 100}

    def test_other_ids_load_the_same_file_again(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        uri = stage("a.avro", avro_file(records([5, 6])))
        for job_id in ("j1", "j2"):
            assert self.run(warehouse, load_job(job_id, uri)).output_rows == 2
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {5: 2, 6: 2}

    def test_a_job_that_replaces_leaves_its_own_rows_alone(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        first, second = (stage(f"{n}.avro", avro_file(records(range(n)))) for n in (5, 2))
        self.run(warehouse, load_job("j1", first))
        self.run(warehouse, load_job("j2", first))
        assert self.run(warehouse, replace(load_job("j3", second), replace=True)).output_rows == 2
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {0: 1, 1: 1}
        self.run(warehouse, replace(load_job("j4", stage("none.avro", avro_file([]))), replace=True))
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {}

    def test_a_job_that_fails_replaces_nothing(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records([0, 1])))))
        bad = self.run(warehouse, replace(load_job("j2", stage("b.avro", b"not Avro")), replace=True))
        assert bad.error is not None
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {0: 1, 1: 1}

    def test_the_table_of_hours_is_created_and_replaced(self, warehouse: Warehouse, stage: Stage) -> None:
        table = TableReference(TABLE.dataset, COMPLETENESS_TABLE)
        columns = plan_table_change(HOUR_SCHEMA, warehouse.columns(table)).columns
        warehouse.create_table(table, columns, TableOptions())
        rows = [
            HourRow("t", 472_222, True, 1_700_000_000_123, 5, 1),
            HourRow("t", 472_223, False, None, 7, 0),
        ]
        for number in (1, 2):
            uri = stage(f"h{number}.avro", hour_file(rows[:number]))
            job = replace(load_job(f"h{number}", uri), table=table, schema=HOUR_SCHEMA, replace=True)
            assert self.run(warehouse, job).output_rows == number
        assert not plan_table_change(HOUR_SCHEMA, warehouse.columns(table))
        assert table not in warehouse.tables()

    def test_a_file_without_records_loads_none(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        status = self.run(warehouse, load_job("j1", stage("a.avro", avro_file([]))))
        assert (status.state, status.output_rows, status.error) == ("DONE", 0, None)

    def test_jobs_and_rows_are_there_after_a_restart(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        good = self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records([0, 1])))))
        bad = self.run(warehouse, load_job("j2", stage("b.avro", b"not Avro")))
        again = self.reopened(warehouse)
        assert [self.status(again, "j1"), self.status(again, "j2")] == [good, bad]
        assert again.positions(table, KafkaRange("t", 0, 0)) == {0: 1, 1: 1}
        with pytest.raises(JobAlreadyExists):
            again.insert_job(load_job("j1", *good.source_uris))

    # Atomicity

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_bad_file_among_good_ones_keeps_all_out(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, place: int
    ) -> None:
        good = [stage(f"good{i}.avro", avro_file(records(range(i * 10, i * 10 + 10)))) for i in range(2)]
        bad = stage("bad.avro", avro_file(records(range(90, 99)))[:-20])
        status = self.run(warehouse, load_job("j1", *good[:place], bad, *good[place:]))
        assert status.error is not None
        assert (status.error.reason, status.error.transient, status.output_rows) == ("invalid", False, 0)
        assert "bad.avro" in status.error.message
        assert warehouse.kafka_ranges(table) == {}
        with pytest.raises(JobAlreadyExists):
            warehouse.insert_job(load_job("j1", *good))
        assert self.run(warehouse, load_job("j2", *good)).output_rows == 20

    def test_a_missing_file_keeps_all_out(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        good = stage("good.avro", avro_file(records([0])))
        status = self.run(warehouse, load_job("j1", good, good.replace("good", "gone")))
        assert status.error is not None
        assert (status.error.reason, status.error.transient) == ("notFound", False)
        assert "gone.avro" in status.error.message
        assert warehouse.kafka_ranges(table) == {}

    def test_a_job_for_a_missing_table_fails(self, warehouse: Warehouse, stage: Stage) -> None:
        status = self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records([0])))))
        assert status.error is not None
        assert (status.error.reason, status.error.transient) == ("notFound", False)
        assert str(TABLE.table) in status.error.message
        assert warehouse.columns(TABLE) is None

    @pytest.mark.parametrize(
        "schema",
        [
            schema_of(("id", "string"), ("note", ["null", "string"])),
            schema_of(("id", ["null", "long"]), ("note", ["null", "string"])),
            schema_of(("id", "long"), ("note", ["null", "string"]), ("extra", "int")),
            schema_of(("note", ["null", "string"])),
        ],
        ids=["another type", "nullable in a required column", "a column more", "a required column less"],
    )
    def test_a_schema_that_does_not_fit_the_table_is_refused(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, schema: str
    ) -> None:
        row = record(0) | {"extra": 1, "id": "x" if '"name": "id", "type": "string"' in schema else 1}
        uri = stage("a.avro", avro_file([row], schema))
        status = self.run(warehouse, load_job("j1", uri, schema=schema))
        assert status.error is not None
        assert (status.error.reason, status.error.transient) == ("invalid", False)
        assert warehouse.kafka_ranges(table) == {}

    # Burning and probing

    def test_a_burned_id_cannot_be_inserted(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        warehouse.burn_job("j1", warehouse.project, warehouse.location, TABLE)
        assert self.finish(warehouse, "j1") == JobStatus("j1", "DONE", ())
        with pytest.raises(JobAlreadyExists):
            warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records([0])))))
        assert warehouse.kafka_ranges(table) == {}

    def test_an_id_in_use_cannot_be_burned(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        done = self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records([0])))))
        with pytest.raises(JobAlreadyExists):
            warehouse.burn_job("j1", warehouse.project, warehouse.location, TABLE)
        assert self.status(warehouse, "j1") == done

    def test_probing_good_files_leaves_no_trace(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        job = load_job("j1", stage("a.avro", avro_file(records([0]))))
        assert warehouse.probe(job) is None
        assert warehouse.kafka_ranges(table) == {}
        assert warehouse.tables() == (table,)
        assert warehouse.get_job("j1", warehouse.project, warehouse.location, TABLE) is None
        assert self.run(warehouse, job).output_rows == 1

    def test_rows_are_compared_with_those_of_files_and_nothing_changes(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records(range(4), note="a")))))
        others = [record(0, note="a", epoch=3), record(1, note="b"), record(2, id=9), record(7)]
        job = load_job("j2", stage("b.avro", avro_file(others)))
        found = warehouse.compare(job)
        assert found is not None
        assert found.compared == 3
        assert [(each.offset, each.columns) for each in found.differing] == [
            (1, ("note",)),
            (2, ("id", "note")),
        ]
        ids = warehouse.compare(job, 10, Comparable(without=frozenset({"note"})))
        assert ids is not None
        assert (ids.compared, [each.columns for each in ids.differing]) == (3, [("id",)])
        same = warehouse.compare(job, 10, Comparable(same=("note", "none")))
        assert same == RowComparison(1, (), 2)
        assert warehouse.compare(job, 10, Comparable(since=1)) == RowComparison(0)
        other = TableReference(TABLE.dataset, "other")
        assert warehouse.compare(replace(job, table=other)) == RowComparison(0)
        assert warehouse.kafka_ranges(table) == {KafkaRange("t", 0, 0): 4}
        assert warehouse.get_job("j2", warehouse.project, warehouse.location, TABLE) is None

    def test_probing_finds_the_bad_file(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        uris = [stage(f"{i}.avro", avro_file(records([i]))[: None if i != 2 else -3]) for i in range(4)]
        errors = [warehouse.probe(load_job("j1", uri)) for uri in uris]
        assert [error is None for error in errors] == [True, True, False, True]
        assert errors[2] is not None
        assert not errors[2].transient
        assert warehouse.kafka_ranges(table) == {}

    def test_a_probe_for_a_table_that_is_gone_blames_no_file(
        self, warehouse: Warehouse, stage: Stage
    ) -> None:
        error = warehouse.probe(load_job("j1", stage("a.avro", avro_file(records([0])))))
        assert error is not None
        assert error.transient

    # Tables

    def test_a_missing_table_has_nothing(self, warehouse: Warehouse) -> None:
        assert warehouse.columns(TABLE) is None
        assert warehouse.tables() == ()
        assert warehouse.kafka_ranges(TABLE) == {}
        assert warehouse.positions(TABLE, KafkaRange("t", 0, 0)) == {}

    def test_creating_a_table_again_changes_nothing(
        self, warehouse: Warehouse, table: TableReference
    ) -> None:
        warehouse.create_table(table, [Column("other", "STRING")], TableOptions())
        assert warehouse.columns(table) == columns_of(SCHEMA)

    def test_only_tables_with_positions_are_listed(self, warehouse: Warehouse, table: TableReference) -> None:
        warehouse.create_table(TableReference("shop", "plain"), [Column("a", "STRING")], TableOptions())
        other = TableReference("other", "orders")
        warehouse.create_table(other, columns_of(SCHEMA), TableOptions())
        assert warehouse.tables() == (other, table)

    def test_columns_are_added_and_relaxed_as_planned(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        self.run(warehouse, load_job("j1", stage("a.avro", avro_file(records([0])))))
        inner = {"type": "record", "name": "i", "fields": [{"name": "x", "type": "int"}]}
        tags, marks = ({"type": "array", "items": item} for item in ("string", "long"))
        schema = schema_of(("id", ["null", "long"]), ("tags", tags), ("more", inner), ("marks", marks))
        change = plan_table_change(schema, warehouse.columns(table))
        assert (change.added, change.relaxed) == (("tags", "more", "marks"), ("id",))
        for _ in range(2):
            warehouse.update_columns(table, change.columns)
            assert warehouse.columns(table) == change.columns
        row = record(1, more={"x": 7}, tags=["a", "b"], marks=[]) | {"id": None}
        uri = stage("b.avro", avro_file([row], schema))
        assert self.run(warehouse, load_job("j2", uri, schema=schema)).error is None
        old = stage("c.avro", avro_file(records([2])))
        assert self.run(warehouse, load_job("j3", old)).error is None
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {0: 1, 1: 1, 2: 1}

    def test_columns_of_records_come_before_those_of_tombstones(
        self, warehouse: Warehouse, stage: Stage
    ) -> None:
        notes, own = TableNotes("Orders.", {"owner": "sales"}), schema_of()
        warehouse.create_table(TABLE, columns_of(own), TableOptions(notes=notes))
        tombstone = {name: value for name, value in record(0).items() if name not in ("id", "note")}
        assert self.run(warehouse, load_job("j1", stage("a.avro", avro_file([tombstone], own)), schema=own))
        schema = schema_of(("id", "long"), ("tags", {"type": "array", "items": "string"}))
        change = plan_table_change(schema, warehouse.columns(TABLE))
        for _ in range(2):
            warehouse.update_columns(TABLE, change.columns)
            found = self.reopened(warehouse).find_table(TABLE)
            assert found is not None
            assert sorted(found.columns, key=str) == sorted(change.columns, key=str)
            assert ([c.name for c in found.columns][:2] == ["id", "tags"]) is not self.appends_columns
            assert (found.description, found.labels, found.rows) == ("Orders.", {"owner": "sales"}, 1)
        uri = stage("b.avro", avro_file([record(1, tags=["a"])], schema))
        assert self.run(warehouse, load_job("j2", uri, schema=schema)).error is None
        assert warehouse.positions(TABLE, KafkaRange("t", 0, 0)) == {0: 1, 1: 1}

    def test_notes_about_a_table_stay_with_it(self, warehouse: Warehouse, stage: Stage) -> None:
        inner = Column("street", "STRING", description="With 'number'.", policy_tag=self.policy_tags[0])
        home = Column("home", "STRUCT", "NULLABLE", (inner, Column("zip", "STRING")), "Where it goes.")
        columns = (*columns_of(SCHEMA), home)
        notes = TableNotes("Orders of the shop.", {"owner": "sales"})
        warehouse.create_table(TABLE, columns, TableOptions(labels={"kbq": "v1"}, notes=notes))
        labels = {"kbq": "v1", "owner": "sales"}
        assert warehouse.find_table(TABLE) == StoredTable(columns, "Orders of the shop.", labels)
        uri = stage("a.avro", avro_file(records([0])))
        assert self.run(warehouse, load_job("j1", uri)).error is None

        zip_code = Column("zip", "STRING", description="Five digits.", policy_tag=self.policy_tags[1])
        silent = (Column("home", "STRUCT", "NULLABLE", (Column("street", "STRING"), zip_code)),)
        said = TableNotes("Orders, as they come.", {"owner": "shop", "domain": "sales"})
        for _ in range(2):
            warehouse.update_columns(TABLE, (*columns[:-1], *silent), said)
            after = (*columns[:-1], replace(home, fields=(inner, zip_code)))
            labels = {"kbq": "v1", "owner": "shop", "domain": "sales"}
            assert warehouse.find_table(TABLE) == StoredTable(after, "Orders, as they come.", labels, 1)
        warehouse.update_columns(TABLE, after)
        uri = stage("b.avro", avro_file(records([1])))
        assert self.run(warehouse, load_job("j2", uri)).error is None
        warehouse.update_columns(TABLE, (), TableNotes(labels={"kbq_staging": "a-1"}))
        labels["kbq_staging"] = "a-1"
        assert warehouse.find_table(TABLE) == StoredTable(after, "Orders, as they come.", labels, 2)

    def test_nested_fields_are_added_as_planned(self, warehouse: Warehouse, stage: Stage) -> None:
        def nested(*names: str) -> Any:
            return {
                "type": "record",
                "name": "n",
                "fields": [{"name": n, "type": ["null", "int"]} for n in names],
            }

        def both(*names: str) -> str:
            return schema_of(("one", ["null", nested(*names)]), ("many", {"type": "array", "items": "n"}))

        warehouse.create_table(TABLE, columns_of(both("x")), TableOptions())
        before = avro_file([record(0, one={"x": 1}, many=[{"x": 2}])], both("x"))
        self.run(warehouse, load_job("j1", stage("a.avro", before), schema=both("x")))
        change = plan_table_change(both("y", "x"), warehouse.columns(TABLE))
        assert change.added == ("one.y", "many.y")
        for _ in range(2):
            warehouse.update_columns(TABLE, change.columns)
            assert warehouse.columns(TABLE) == change.columns
        after = avro_file([record(1, one={"y": 1, "x": 2}, many=[])], both("y", "x"))
        status = self.run(warehouse, load_job("j2", stage("b.avro", after), schema=both("y", "x")))
        assert (status.error, status.output_rows) == (None, 1)

    # Positions

    def test_rows_are_counted_by_topic_partition_and_epoch(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        rows = [
            *records([1, 2], topic="a.b", partition=1),
            *records([1], topic="a.b", partition=2),
            *records([1], topic="a.b", partition=1, epoch=3),
            *records([9], topic="c", partition=1),
        ]
        self.run(warehouse, load_job("j1", stage("a.avro", avro_file(rows))))
        assert warehouse.kafka_ranges(table) == {
            KafkaRange("a.b", 1, 0): 2,
            KafkaRange("a.b", 2, 0): 1,
            KafkaRange("a.b", 1, 3): 1,
            KafkaRange("c", 1, 0): 1,
        }
        assert warehouse.positions(table, KafkaRange("a.b", 1, 0)) == {1: 1, 2: 1}
        assert warehouse.positions(table, KafkaRange("a.b", 1, 3)) == {1: 1}
        assert warehouse.positions(table, KafkaRange("nowhere", 1, 3)) == {}

    def test_a_row_that_is_there_twice_is_counted_twice(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        for job_id, offsets in (("j1", [0, 1, 2]), ("j2", [2, 3])):
            self.run(warehouse, load_job(job_id, stage(f"{job_id}.avro", avro_file(records(offsets)))))
        assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {0: 1, 1: 1, 2: 2, 3: 1}
        assert warehouse.positions(table, KafkaRange("t", 0, 0), 2) == {2: 2}
        assert warehouse.positions(table, KafkaRange("t", 0, 0), 9) == {}

    def test_rows_are_summed_up_by_topic_partition_and_epoch(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        rows = [
            *records([7, 2, 9], topic="a.b", partition=1),
            *records([7, 7, 2], topic="a.b", partition=1),
            *records([1], topic="a.b", partition=2),
            *records([2**40, 5], topic="a.b", partition=1, epoch=3),
            *records([9], topic="c", partition=1),
        ]
        self.run(warehouse, load_job("j1", stage("a.avro", avro_file(rows))))
        summary = warehouse.kafka_summary(table)
        assert summary == {
            KafkaRange("a.b", 1, 0): OffsetSummary(rows=6, distinct=3, first=2, last=9),
            KafkaRange("a.b", 2, 0): OffsetSummary(1, 1, 1, 1),
            KafkaRange("a.b", 1, 3): OffsetSummary(2, 2, 5, 2**40),
            KafkaRange("c", 1, 0): OffsetSummary(1, 1, 9, 9),
        }
        assert summary[KafkaRange("a.b", 1, 0)].duplicates == 3

    def test_a_summary_since_a_date_leaves_older_rows_out(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        days = [date(2024, 2, 28), date(2024, 2, 29), date(2024, 3, 1)]
        numbers = [(day - date(1970, 1, 1)).days for day in days]
        rows = [record(offset, event_date=day) for offset, day in enumerate(numbers)]
        uri = stage("a.avro", avro_file([*rows, record(5, partition=1, event_date=numbers[0])]))
        for job_id in ("j1", "j2"):
            self.run(warehouse, load_job(job_id, uri))
        found = {day: warehouse.kafka_summary(table, day) for day in (*days, days[-1] + timedelta(1))}
        assert [found[day].get(KafkaRange("t", 0, 0)) for day in found] == [
            OffsetSummary(6, 3, 0, 2),
            OffsetSummary(4, 2, 1, 2),
            OffsetSummary(2, 1, 2, 2),
            None,
        ]
        assert [len(summary) for summary in found.values()] == [2, 1, 1, 0]
        assert [d.offset for d in warehouse.doubled_offsets([table], days[1])] == [1, 2]

    def test_doubled_offsets_are_named_with_their_tables(
        self, warehouse: Warehouse, table: TableReference, stage: Stage
    ) -> None:
        other = TableReference("shop", "other")
        warehouse.create_table(other, columns_of(SCHEMA), TableOptions())
        both = records([1, 2, 3, 4, 4, 4]) + records([1, 2], topic="u", epoch=1)
        self.run(warehouse, load_job("j1", stage("a.avro", avro_file(both))))
        more = records([3, 8]) + records([1], partition=1) + records([2], topic="u", epoch=1)
        self.run(warehouse, load_job("j2", stage("b.avro", avro_file(more)), table=other))
        in_one = DoubledOffset(KafkaRange("t", 0, 0), 4, (table, table, table))
        in_two = DoubledOffset(KafkaRange("t", 0, 0), 3, (table, other))
        in_another = DoubledOffset(KafkaRange("u", 0, 1), 2, (table, other))
        assert warehouse.doubled_offsets([table]) == (in_one,)
        assert warehouse.doubled_offsets([other, table]) == (in_two, in_one, in_another)
        assert [d.offset for d in warehouse.doubled_offsets([table, other], limit=1)] == [3, 2]
        assert warehouse.doubled_offsets([other]) == ()
        assert warehouse.doubled_offsets([]) == ()

    def test_a_missing_table_has_nothing_to_sum_up(self, warehouse: Warehouse, table: TableReference) -> None:
        missing = TableReference("shop", "missing")
        assert warehouse.kafka_summary(missing) == {}
        assert warehouse.kafka_summary(table) == {}
        assert warehouse.doubled_offsets([missing, table]) == ()

    # Error rows

    def test_error_rows_come_newest_first_chosen_by_position_and_cut_where_asked(
        self, warehouse: Warehouse, stage: Stage
    ) -> None:
        errors = TableReference("shop", "kbq_errors")
        warehouse.create_table(errors, columns_of(error_schema_json()), TableOptions())
        rows = [
            error_record(1, time=5),
            error_record(2, time=9, value=None),
            error_record(1, partition=3, time=7),
        ]
        uri = stage("errors.avro", avro_file(rows, error_schema_json()))
        self.run(warehouse, load_job("j1", uri, table=errors, schema=error_schema_json()))
        found = warehouse.error_rows(errors, ErrorQuery())
        assert [(row.partition, row.offset, row.timestamp_ms) for row in found] == [
            (0, 2, 9),
            (3, 1, 7),
            (0, 1, 5),
        ]
        assert (found[0].value, found[0].value_size) == (None, None)
        (row,) = warehouse.error_rows(errors, ErrorQuery("t", 0, 1))
        assert row == ErrorRow(
            "t",
            0,
            1,
            1,
            5,
            "WRONG_MAGIC",
            "no",
            7,
            b"key",
            b"\x00\xffvalue",
            7,
            (("h", b"\xfe"), ("n", None)),
        )
        (cut,) = warehouse.error_rows(errors, ErrorQuery("t", partition=0, offset=1, value_bytes=2))
        assert (cut.key, cut.value, cut.value_size) == (b"ke", b"\x00\xff", 7)
        assert len(warehouse.error_rows(errors, ErrorQuery(limit=2))) == 2
        assert warehouse.error_rows(errors, ErrorQuery("other")) == ()

    def test_a_missing_error_table_has_no_rows(self, warehouse: Warehouse) -> None:
        assert warehouse.error_rows(TableReference("shop", "kbq_errors"), ErrorQuery()) == ()


def error_record(
    offset: int, *, time: int, partition: int = 0, value: bytes | None = b"\x00\xffvalue"
) -> dict[str, Any]:
    """A row of an error table, of topic ``t`` and epoch 1, at ``time`` milliseconds."""
    return {
        "_kafka_topic": "t",
        "_kafka_partition": partition,
        "_kafka_offset": offset,
        "_kafka_timestamp": time,
        "_kbq_epoch": 1,
        "reason": "WRONG_MAGIC",
        "message": "no",
        "schema_id": 7,
        "key": b"key",
        "value": value,
        "headers": [{"key": "h", "value": b"\xfe"}, {"key": "n", "value": None}],
        "event_date": 0,
    }


class SharedWarehouseContract(WarehouseContract):
    """Adds races of processes. Give an ``opener`` fixture: a picklable callable that opens the warehouse."""

    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError

    def test_of_four_processes_with_one_id_one_wins(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, opener: Opener
    ) -> None:
        uri = stage("a.avro", avro_file(records(range(100))))
        jobs = [load_job(f"j{i // 4}", uri) for i in range(12)]
        with forked_pool(4, type(self).__module__) as pool:
            won = list(pool.map(insert_or_lose, [opener] * 12, jobs))
        assert [sum(won[i : i + 4]) for i in (0, 4, 8)] == [1, 1, 1]
        for job_id in ("j0", "j1", "j2"):
            self.finish(warehouse, job_id)
        assert warehouse.kafka_ranges(table) == {KafkaRange("t", 0, 0): 300}
