"""Rows are grouped by the partitions of their table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import partitions
from kbq_assets.adapters.iceberg.partitions import partitioned
from kbq_assets.adapters.iceberg.spill import HeldRows
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets_tests.adapters.iceberg.test_warehouse import EVENT_TIME, HOUR, opened, stored
from kbq_assets_tests.contracts.warehouse import TABLE, schema_of

COLUMNS = {
    "id": pa.int64(),
    "event_date": pa.date32(),
    "_event_time": pa.timestamp("us", "UTC"),
    "_kbq_schema_id": pa.int64(),
}
Row = tuple[int | None, int | None, int]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    lake = opened(tmp_path_factory.mktemp("lake"))
    schema = schema_of(("id", "long"), EVENT_TIME)
    lake.create_table(TABLE, columns_of(schema), TableOptions(partition_by="event_date"))
    return stored(lake)


def rows_of(rows: list[Row]) -> pa.Table:
    found = {
        "id": list(range(len(rows))),
        "event_date": [day for day, _, _ in rows],
        "_event_time": [time for _, time, _ in rows],
        "_kbq_schema_id": [schema for _, _, schema in rows],
    }
    return pa.table({name: pa.array(values, COLUMNS[name]) for name, values in found.items()})


def folder_of(row: Row) -> str:
    day, time, schema = row
    date = "null" if day is None else str(pa.scalar(day, pa.date32()).as_py())
    hour = "null" if time is None else f"{time // HOUR % 24:02}"
    return f"data/schema_version={schema}/event_date={date}/event_hour={hour}"


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-3, 3),
            st.none() | st.integers(-3 * HOUR, 3 * HOUR),
            st.integers(1, 2),
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([1, 4, 1 << 16]),
)
def test_each_partition_has_its_rows_in_their_order(table: Table, given_rows: list[Row], few: int) -> None:
    wanted: dict[str, list[int]] = {}
    for number, row in enumerate(given_rows):
        # another hour of another day may have the same name
        key = f"{folder_of(row)} {row[1] if row[1] is None else row[1] // HOUR}"
        wanted.setdefault(key, []).append(number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "_FEW", few)
        found = partitioned(table, rows_of(given_rows))
    for parts in (list(found.parts()), list(found.slices())):
        ids = [(folder, rows["id"].to_pylist()) for rows, folder in parts]
        assert sorted(ids) == sorted((key.rpartition(" ")[0], numbers) for key, numbers in wanted.items())


def test_rows_that_are_held_keep_no_others_in_memory(table: Table) -> None:
    rows: list[Row] = [(0, number % 7 * HOUR, 1) for number in range(7_000)]
    before = pa.total_allocated_bytes()
    batch = rows_of(rows)
    [(one, _), *others] = partitioned(table, batch).parts()
    size = batch.nbytes
    del batch, others
    assert pa.total_allocated_bytes() - before < size // 4
    assert one.num_rows == 1_000


def test_the_partition_with_most_rows_is_taken_first() -> None:
    held = HeldRows()
    for size, folder in ((10, "a"), (7, "b"), (7, "b"), (9, "c")):
        held.add([(pa.table({"x": list(range(1000 * size))}), folder)])
    taken: list[Any] = []
    while held.bytes:
        rows, folder = held.take_largest()
        taken.append((folder, rows.num_rows))
    assert taken == [("b", 14_000), ("a", 10_000), ("c", 9_000)]
    assert not held.folders
