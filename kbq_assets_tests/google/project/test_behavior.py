"""What KBQ expects of BigQuery beyond the contracts, in a real project: types, defaults, partitions, changes.

Each test is one or a few load jobs, which are free, and reads rows by listing them, which is free too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from google.cloud.bigquery import Dataset

from kbq_assets.core.avro.header import header_schema
from kbq_assets.core.loading.tables import TableOptions, columns_of, plan_table_change
from kbq_assets.ports.warehouse import JobStatus, KafkaRange, OffsetSummary
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, record, schema_of
from kbq_assets_tests.core.avro.test_header import REFUSED_AS_THEY_ARE
from kbq_assets_tests.google.project.place import Place
from kbq_assets_tests.google.project.warehouse import OpenProject, ProjectWarehouse
from kbq_assets_tests.google.test_bigquery_proxy import EVERY_TYPE

pytestmark = pytest.mark.slow

#: Loads records of a schema under a job id, and waits.
Load: TypeAlias = Callable[..., JobStatus]
DAY_MS = 86_400_000


@pytest.fixture
def warehouse(gcp: Place, corner: str) -> ProjectWarehouse:
    return OpenProject(gcp, corner)()


@pytest.fixture
def load(gcp: Place, corner: str, warehouse: ProjectWarehouse) -> Load:
    store = gcp.store(corner)

    def load(schema: str, rows: list[dict[str, Any]], job_id: str = "j1") -> JobStatus:
        store.create(f"{job_id}.avro", avro_file(rows, schema))
        warehouse.insert_job(load_job(job_id, store.uri(f"{job_id}.avro"), schema=schema))

        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            found = warehouse.get_job(job_id, warehouse.project, warehouse.location)
            if found is not None and found.state == "DONE":
                return found
            time.sleep(0.2)
        raise AssertionError(f"{job_id} is not DONE")

    return load


@pytest.fixture
def values(gcp: Place, corner: str) -> Callable[[str], list[Any]]:
    """The values of a column, read by listing rows."""

    def read(column: str) -> list[Any]:
        client = gcp.client()
        return [row[column] for row in client.list_rows(client.get_table(f"{gcp.project}.{corner}_{TABLE}"))]

    return read


@pytest.mark.parametrize(
    ("avro", "value", "expected"), [(avro, value, expected) for avro, value, _, expected in EVERY_TYPE]
)
def test_a_type_arrives_in_the_column_that_kbq_creates_for_it(
    warehouse: ProjectWarehouse,
    load: Load,
    values: Callable[[str], list[Any]],
    avro: Any,
    value: Any,
    expected: Any,
) -> None:
    schema = schema_of(("id", "long"), ("x", avro))
    warehouse.create_table(TABLE, columns_of(schema), TableOptions())
    assert load(schema, [record(0, x=value)]).error is None
    assert values("x") == [value if expected is None else expected]


def test_maps_with_nullable_values_arrive(warehouse: ProjectWarehouse, load: Load) -> None:
    schema = schema_of(("id", "long"), ("m", {"type": "map", "values": ["null", "long"]}))
    warehouse.create_table(TABLE, columns_of(schema), TableOptions())
    assert load(schema, [record(0, m={"a": 1, "b": None})]).error is None


def test_an_array_with_a_null_item_fails_its_file(warehouse: ProjectWarehouse, load: Load) -> None:
    """So `null_items=bad` is the default with BigQuery."""
    schema = schema_of(("id", "long"), ("xs", {"type": "array", "items": ["null", "long"]}))
    warehouse.create_table(TABLE, columns_of(schema), TableOptions())
    assert load(schema, [record(0, xs=[1, 2])]).error is None
    assert load(schema, [record(1, xs=[1, None])], "j2").error is not None


def test_documents_arrive_in_a_json_column(
    warehouse: ProjectWarehouse, load: Load, values: Callable[[str], list[Any]]
) -> None:
    schema = schema_of(("id", "long"), ("doc", ["null", {"type": "string", "sqlType": "JSON"}]))
    warehouse.create_table(TABLE, columns_of(schema), TableOptions())
    rows = [record(0, doc='{"a": [1, null, "ä"]}'), record(1, doc=None), record(2, doc="3")]
    assert load(schema, rows).output_rows == 3
    assert sorted(map(str, values("doc"))) == sorted(map(str, [{"a": [1, None, "ä"]}, None, 3]))


@pytest.mark.parametrize("odd", REFUSED_AS_THEY_ARE)
def test_a_header_of_an_odd_schema_is_read(
    warehouse: ProjectWarehouse, load: Load, odd: dict[str, Any]
) -> None:
    """Google's reader is Avro C++. Some reader refused each of these schemas in its original form."""
    own = json.loads(schema_of(("id", "long")))["fields"]
    schema = json.dumps({**odd, "type": "record", "fields": [*own, *odd["fields"]]})
    warehouse.create_table(TABLE, columns_of(schema), TableOptions())
    assert load(header_schema(schema), []).error is None


def test_rows_older_than_their_dataset_s_default_stay(
    gcp: Place, corner: str, warehouse: ProjectWarehouse, load: Load
) -> None:
    dataset = Dataset(f"{gcp.project}.{corner}_{TABLE.dataset}")
    dataset.location, dataset.default_partition_expiration_ms = gcp.location, 30 * DAY_MS
    gcp.client().create_dataset(dataset)
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    stored = warehouse.find_table(TABLE)
    assert stored is not None
    assert (stored.partition_expiry_ms, stored.expires) == (0, False)
    assert load(SCHEMA, [record(0, event_date=365)]).error is None
    assert warehouse.positions(TABLE, KafkaRange("t", 0, 0)) == {0: 1}


def test_a_table_that_requires_a_partition_filter_is_counted(warehouse: ProjectWarehouse, load: Load) -> None:
    options = TableOptions(require_partition_filter=True)
    warehouse.create_table(TABLE, columns_of(SCHEMA), options)
    assert load(SCHEMA, [record(n, event_date=18_000 + n) for n in range(3)]).error is None
    assert warehouse.kafka_summary(TABLE) == {KafkaRange("t", 0, 0): OffsetSummary(3, 3, 0, 2)}


@pytest.mark.parametrize(("dates", "loads"), [(3_900, True), (4_001, False)])
def test_a_job_may_change_four_thousand_partitions(
    warehouse: ProjectWarehouse, load: Load, dates: int, loads: bool
) -> None:
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    status = load(SCHEMA, [record(n, event_date=10_000 + n) for n in range(dates)])
    assert (status.error is None) is loads, status


def test_a_load_right_after_a_change_of_its_table_succeeds(warehouse: ProjectWarehouse, load: Load) -> None:
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    for number in range(5):
        names = [(f"c{n}", ["null", "string"]) for n in range(number + 1)]
        schema = schema_of(("id", "long"), ("note", ["null", "string"]), *names)
        change = plan_table_change(schema, warehouse.columns(TABLE))
        warehouse.update_columns(TABLE, change.columns)
        status = load(schema, [{**record(number), f"c{number}": "x"}], f"j{number}")
        assert (status.error, status.output_rows) == (None, 1)
