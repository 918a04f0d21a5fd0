"""Batches of files as Google's `gcs_event_based_ingest` documents them: layout, order, failures, decisions."""

from __future__ import annotations

import json
import random

import pytest

from kbq_assets_tests.adapters.filebatches.test_duckdb import FORMATS, ROWS, SCHEMA
from kbq_assets_tests.both_warehouses.conftest import OpenFiles
from kbq_assets_tests.both_warehouses.file_bench import PREFIX, FileBench

HISTORICAL, INCREMENTAL = "historical/2020/01/02", "incremental/2020/01/02"
COLUMNS = [
    {"name": "id", "type": "INT64"},
    {"name": "seen", "type": "TIMESTAMP"},
    {"name": "text", "type": "STRING"},
]
CSV = {"sourceFormat": "CSV", "schema": {"fields": COLUMNS}}
BY_HOUR = {**CSV, "timePartitioning": {"type": "HOUR", "field": "seen"}}
MERGE = """
MERGE INTO {dest_dataset}.{dest_table} AS t USING temp_ext AS s ON t.id = s.id
WHEN MATCHED THEN UPDATE SET text = s.text
WHEN NOT MATCHED THEN INSERT (id, seen, text) VALUES (s.id, s.seen, s.text)
"""
#: Each row says how many there were before its batch.
COUNTED = """
INSERT INTO {dest_dataset}.{dest_table} (id, seen, text)
SELECT id, seen, CAST((SELECT COUNT(*) FROM {dest_dataset}.{dest_table}) AS STRING) FROM temp_ext
"""


def row(id: int, hour: int = 3, text: str = "new") -> str:
    return f"{id},2020-01-02 {hour:02}:30:00,{text}\n"


def configured(bench: FileBench) -> FileBench:
    """With the configuration of Google's page about order: history is loaded, increments are merged."""
    bench.put("historical/_config/load.json", json.dumps(BY_HOUR))
    bench.put("incremental/_config/external.json", json.dumps(CSV))
    bench.put("incremental/_config/bq_transform.sql", MERGE)
    bench.put("incremental/_config/ORDERME")
    return bench


def test_the_life_of_a_table_as_googles_tool_documents_it(open_files: OpenFiles) -> None:
    bench = configured(open_files(order_per_table=True, views=True))
    bench.batch(f"{HISTORICAL}/03", row(1), row(2))
    bench.batch(f"{HISTORICAL}/04", row(3, 4))
    bench.put(f"{INCREMENTAL}/05/foo-data-01.csv", row(2, text="changed") + row(4, 5))
    bench.put(f"{INCREMENTAL}/05/_SUCCESS")
    report = bench.run()
    assert (report.needs_person, report.unfinished, bench.waiting()) == (False, False, {})
    expected = [(1, "new"), (2, "changed"), (3, "new"), (4, "new")]
    assert bench.rows("id, text") == expected
    assert bench.applied() == [f"{HISTORICAL}/03", f"{HISTORICAL}/04", f"{INCREMENTAL}/05"]
    assert bench.steering() == []
    assert bench.run().tables[0].applied == 0
    # "The next day a new incremental arrives": the subscriber has ended by then.
    bench.batch("incremental/2020/01/03/05", row(1, text="next day"))
    assert bench.run().tables[0].applied == 1
    assert bench.rows("id, text") == [(1, "next day"), *expected[1:]]


@pytest.mark.thorough
def test_fifty_shuffled_batches_wait_for_the_history_marker_and_then_run_in_order(
    open_files: OpenFiles,
) -> None:
    bench = open_files(order_per_table=True, start_backfill="_HISTORYDONE")
    bench.put("_config/load.json", json.dumps(CSV))
    bench.put("first/_config/ORDERME")
    bench.put("later/_config/external.json", json.dumps(CSV))
    bench.put("later/_config/bq_transform.sql", COUNTED)
    bench.batch("first", row(0))
    for number in random.Random(7).sample(range(1, 50), 49):
        bench.batch(f"later/{number:03}", row(number))
    bench.run()
    assert bench.applied() == []
    assert set(bench.waiting().values()) == {"waits"}
    bench.put("_HISTORYDONE")
    bench.run()
    assert bench.rows("id, text") == [(0, "new"), *((number, str(number)) for number in range(1, 50))]


def failed(bench: FileBench) -> FileBench:
    """The second of three ordered batches cannot be loaded; another table can."""
    bench.put("_config/load.json", json.dumps(CSV))
    bench.source.create("dataset/other/_config/load.json", json.dumps(CSV).encode())
    for number in (1, 2, 3):
        bench.batch(f"{number}", row(number) if number != 2 else "two,2020-01-02 03:30:00,\n")
    bench.source.create("dataset/other/1/a.csv", row(7).encode())
    bench.source.create("dataset/other/1/_SUCCESS", b"")
    assert bench.run().needs_person
    assert bench.waiting() == {"2": "failed", "3": "waits"}
    assert bench.query(f"SELECT id FROM {bench.table.replace('table', 'other')}") == [(7,)]
    bench.run()
    assert bench.rows() == [(1,)]
    return bench


@pytest.mark.parametrize(("decision", "ids"), [("retry", [1, 2, 3]), ("skip", [1, 3])])
def test_a_batch_that_fails_stops_its_table_alone_until_somebody_decides(
    open_files: OpenFiles, decision: str, ids: list[int]
) -> None:
    bench = failed(open_files(order_per_table=True))
    if decision == "retry":
        bench.put("2/foo-data-00.csv", row(2))
    getattr(bench.batches(), decision)(PREFIX, f"{PREFIX}/2", "by hand", "me")
    bench.run()
    assert (bench.rows(), bench.waiting()) == ([(each,) for each in ids], {})
    [entry] = bench.batches().decisions(PREFIX)
    assert (entry.action, entry.by, entry.reason) == (decision, "me", "by hand")


@pytest.mark.parametrize(("keeps_pointer", "ids"), [(True, [1, 2, 3]), (False, [1, 3])])
def test_operators_of_googles_tool_decide_by_its_objects(
    open_files: OpenFiles, keeps_pointer: bool, ids: list[int]
) -> None:
    bench = failed(open_files(order_per_table=True, views=True))
    assert bench.steering() == ["_backlog/2/_SUCCESS", "_backlog/3/_SUCCESS", "_bqlock"]
    if keeps_pointer:
        bench.put("2/foo-data-00.csv", row(2))
    else:
        bench.source.delete(f"{PREFIX}/_backlog/2/_SUCCESS")
    bench.source.delete(f"{PREFIX}/_bqlock")
    bench.put("_BACKFILL")
    bench.run()
    bench.run()
    assert (bench.rows(), bench.waiting(), bench.steering()) == ([(each,) for each in ids], {}, [])


def test_a_partition_is_replaced_alone_and_takes_no_rows_of_another(open_files: OpenFiles) -> None:
    bench = open_files(order_per_table=True)
    bench.put("_config/load.json", json.dumps(BY_HOUR))
    bench.batch("2020/01/02/03", row(1) + row(2))
    bench.batch("2020/01/02/04", row(3, 4))
    bench.run()
    bench.put("$2020010203/_config/load.json", '{"writeDisposition": "WRITE_TRUNCATE"}')
    bench.batch("$2020010203", row(9))
    bench.run()
    assert bench.rows() == [(3,), (9,)]
    bench.batch("2020/01/02/05", row(4, 6))
    bench.run()
    assert (bench.rows(), bench.waiting()) == ([(3,), (9,)], {"2020/01/02/05": "failed"})


def test_a_statement_that_changes_no_row_fails_and_hive_directories_become_columns(
    open_files: OpenFiles,
) -> None:
    bench = open_files(order_per_table=True)
    bench.put("_config/load.json", json.dumps(CSV))
    bench.batch("0", row(1))
    bench.put("h/_config/external.json", json.dumps({**CSV, "hivePartitioningOptions": {"mode": "AUTO"}}))
    bench.put("h/_config/bq_transform.sql", "UPDATE {dest_dataset}.{dest_table} AS t SET text = s.region"
              " FROM temp_ext AS s WHERE t.id = s.id")  # fmt: skip
    bench.batch("h/region=EU", row(1))
    bench.batch("h/region=US", row(2))
    bench.run()
    assert (bench.rows("id, text"), bench.waiting()) == ([(1, "EU")], {"h/region=US": "failed"})


def test_more_files_than_a_job_names_are_one_job_by_patterns(open_files: OpenFiles) -> None:
    bench = open_files()
    bench.limit_files(2)
    bench.put("_config/load.json", json.dumps(CSV))
    bench.batch("1", *(row(number) for number in range(5)))
    bench.batch("1/deeper", row(7))
    report = bench.run()
    assert sorted((done.files, done.rows) for done in report.tables[0].done) == [(1, 1), (5, 5)]
    assert bench.rows() == [(0,), (1,), (2,), (3,), (4,), (7,)]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_each_format_is_loaded_and_read_by_statements(open_files: OpenFiles, form: str) -> None:
    bench = open_files(order_per_table=True)
    encode = FORMATS[form]
    load = {"sourceFormat": form, "schema": SCHEMA}
    bench.put("_config/load.json", json.dumps(load))
    external = load if form in ("CSV", "NEWLINE_DELIMITED_JSON") else {"sourceFormat": form}
    bench.put("2/_config/external.json", json.dumps(external))
    bench.put("2/_config/only.sql", "UPDATE {dest_dataset}.{dest_table} AS t SET name = s.name FROM temp_ext AS s"
              " WHERE t.id = s.id")  # fmt: skip
    for batch, rows in {"1": ROWS, "2": [{**ROWS[0], "name": "new"}]}.items():
        bench.source.create(f"{PREFIX}/{batch}/data", encode(rows))
        bench.put(f"{batch}/_SUCCESS")
    report = bench.run()
    assert [each.why for table in report.tables for each in table.stopped] == []
    assert bench.rows("id, name, day") == [(1, "new", ROWS[0]["day"]), (2, None, ROWS[1]["day"])]
