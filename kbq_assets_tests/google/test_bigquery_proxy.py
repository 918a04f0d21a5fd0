"""Rules that local-bigquery does not enforce and the proxy does, tested with the real client."""

from __future__ import annotations

import datetime
import io
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.api_core.exceptions import BadRequest, Conflict, Forbidden, GoogleAPIError, NotFound
from google.api_core.retry import Retry
from google.cloud import bigquery
from google.cloud.bigquery import LoadJob, LoadJobConfig, SchemaField

from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.install import Program
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer, run_bigquery

pytestmark = [pytest.mark.thorough, pytest.mark.google]

ONCE = Retry(predicate=lambda error: False)
LONG = [{"name": "id", "type": "long"}]
COLUMNS = [SchemaField("id", "INTEGER", "REQUIRED"), SchemaField("note", "STRING")]


def finished(job: LoadJob) -> LoadJob:
    """Wait for a job's end; the client's own waiting takes a second at least."""
    deadline = time.monotonic() + 180
    while job.state != "DONE":
        assert time.monotonic() < deadline, "the job does not end"
        time.sleep(0.01)
        job.reload()
    return job


class Scene:
    """A dataset, a bucket, and loads from one to the other."""

    def __init__(self, server: BigQueryServer, gcs: GcsServer) -> None:
        self.server, self.client = server, server.client()
        self.dataset = server.new_dataset()
        self.bucket = gcs.client().bucket(gcs.new_bucket())

    def table(
        self, columns: Sequence[SchemaField] = COLUMNS, name: str = "t", **options: Any
    ) -> bigquery.Table:
        table = bigquery.Table(f"{self.server.project}.{self.dataset}.{name}", schema=list(columns))
        for option, value in options.items():
            setattr(table, option, value)
        return self.client.create_table(table)

    def file(self, fields: list[Any], rows: list[Any], name: str = "f.avro", **how: Any) -> str:
        """Write an Avro file; return its URI."""
        target = io.BytesIO()
        fastavro.writer(target, {"type": "record", "name": "r", "fields": fields}, rows, **how)
        return self.raw(target.getvalue(), name)

    def raw(self, data: bytes, name: str = "f.avro") -> str:
        self.bucket.blob(name).upload_from_string(data)
        return f"gs://{self.bucket.name}/{name}"

    def load(self, *uris: str, job_id: str | None = None, table: str = "t", **overrides: Any) -> LoadJob:
        """Insert a load job as KBQ does."""
        config = LoadJobConfig(
            source_format="AVRO",
            write_disposition="WRITE_APPEND",
            create_disposition="CREATE_NEVER",
            use_avro_logical_types=True,
            decimal_target_types=["NUMERIC", "BIGNUMERIC", "STRING"],
        )
        place = {"location": "US", "retry": None, **overrides}
        destination = f"{self.server.project}.{self.dataset}.{table}"
        return self.client.load_table_from_uri(
            list(uris), destination, job_id=job_id, job_config=config, **place
        )

    def ended(self, *uris: str, **more: Any) -> LoadJob:
        """Load, and wait for the end, whether it succeeds or fails."""
        return finished(self.load(*uris, **more))

    def error(self, *uris: str, **more: Any) -> tuple[str, str]:
        """Reason and message of a load that must fail."""
        result = self.ended(*uris, **more).error_result
        assert result is not None
        return result["reason"], result["message"]

    def rows(self, what: str = "*", table: str = "t") -> list[Any]:
        return [
            tuple(row) for row in self.client.query(f"SELECT {what} FROM {self.dataset}.{table}").result()
        ]


@pytest.fixture
def scene(bigquery_server: BigQueryServer, gcs_server: GcsServer) -> Iterator[Scene]:
    yield Scene(bigquery_server, gcs_server)
    bigquery_server.faults.clear()
    bigquery_server.denied.clear()
    bigquery_server.hold_jobs(False)


def test_a_load_reaches_the_local_server(scene: Scene) -> None:
    scene.table()
    job = scene.ended(scene.file(LONG, [{"id": 1}, {"id": 2}]))
    assert (job.error_result, job.output_rows, job.input_files) == (None, 2, 1)
    assert sorted(scene.rows()) == [(1, None), (2, None)]


def test_of_many_inserts_of_one_id_one_is_accepted_and_loads_once(scene: Scene) -> None:
    scene.table()
    uri = scene.file(LONG, [{"id": 1}])

    def insert(_: int) -> bool:
        try:
            scene.ended(uri, job_id=f"{scene.dataset}-1")
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(insert, range(24))) == 1
    assert scene.rows("count(*)") == [(1,)]


def test_without_the_rule_one_id_loads_twice(scene: Scene) -> None:
    scene.table()
    uri = scene.file(LONG, [{"id": 1}])
    scene.server.judge.strict_ids = False
    try:
        for _ in range(2):
            scene.ended(uri, job_id=f"{scene.dataset}-1")
    finally:
        scene.server.judge.strict_ids = True
    assert scene.rows("count(*)") == [(2,)]


def test_a_query_occupies_its_id(scene: Scene) -> None:
    scene.table()
    scene.client.query("SELECT 1", job_id=f"{scene.dataset}-1", job_retry=None).result()
    with pytest.raises(Conflict, match="Already Exists: Job"):
        scene.load(scene.file(LONG, [{"id": 1}]), job_id=f"{scene.dataset}-1")
    assert scene.client.get_job(f"{scene.dataset}-1").job_type == "query"


def test_a_job_is_found_in_its_location_only(scene: Scene) -> None:
    scene.table()
    job = scene.ended(scene.file(LONG, [{"id": 1}]))
    assert scene.client.get_job(job.job_id, location="US").state == "DONE"
    with pytest.raises(NotFound):
        scene.client.get_job(job.job_id, location="EU")
    with pytest.raises(NotFound, match="was not found in location EU"):
        scene.load(scene.file(LONG, [{"id": 1}]), location="EU")


@pytest.mark.parametrize(
    ("fields", "row", "message"),
    [
        ([*LONG, {"name": "x", "type": ["null", "long"]}], {"id": 1, "x": 2}, "Cannot add fields (field: x)"),
        ([{"name": "id", "type": "string"}], {"id": "1"}, "Field id has changed type from INTEGER to STRING"),
        (
            [{"name": "id", "type": ["null", "long"]}],
            {"id": 1},
            "Field id has changed mode from REQUIRED to NULLABLE",
        ),
        ([{"name": "note", "type": "string"}], {"note": "n"}, "Field id is missing in new schema"),
        (
            [{"name": "id", "type": {"type": "array", "items": "long"}}],
            {"id": [1]},
            "Field id has changed mode from REQUIRED to REPEATED",
        ),
    ],
)
def test_a_file_that_contradicts_the_table_fails_the_job(
    scene: Scene, fields: list[Any], row: Any, message: str
) -> None:
    scene.table()
    good = scene.file(LONG, [{"id": 1}])
    label = f"{scene.server.project}:{scene.dataset}.t"
    reason, said = scene.error(good, scene.file(fields, [row], "bad.avro"))
    assert (reason, said) == ("invalid", f"Provided Schema does not match Table {label}. {message}")
    assert scene.rows() == []


def test_modes_come_back_as_they_were_set(scene: Scene) -> None:
    member = SchemaField("x", "INTEGER", "REQUIRED")
    scene.table([*COLUMNS, SchemaField("s", "RECORD", "REPEATED", fields=[member])])
    table = scene.client.get_table(f"{scene.dataset}.t")
    assert [field.mode for field in table.schema] == ["REQUIRED", "NULLABLE", "REPEATED"]
    assert table.schema[2].fields[0].mode == "REQUIRED"


@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_a_truncated_file_ends_the_job_as_invalid(scene: Scene, codec: str) -> None:
    scene.table()
    uri = scene.file(LONG, [{"id": n} for n in range(5000)], codec=codec)
    data = scene.bucket.blob("f.avro").download_as_bytes()
    scene.raw(data[: len(data) // 2])
    reason, message = scene.error(uri)
    assert reason == "invalid"
    assert uri in message


def test_one_bad_file_of_many_leaves_no_row(scene: Scene) -> None:
    scene.table()
    uris = [scene.file(LONG, [{"id": n}], f"{n}.avro") for n in range(5)]
    assert scene.error(*uris, scene.raw(b"Obj\x01", "bad.avro"))[0] == "invalid"
    assert scene.rows() == []


def test_a_missing_file_ends_the_job_as_not_found(scene: Scene) -> None:
    scene.table()
    missing = f"gs://{scene.bucket.name}/missing.avro"
    assert scene.error(missing) == ("notFound", f"Not found: URI {missing}")


def test_a_missing_table_ends_the_job_as_not_found(scene: Scene) -> None:
    label = f"{scene.server.project}:{scene.dataset}.t"
    assert scene.error(scene.file(LONG, [{"id": 1}])) == ("notFound", f"Not found: Table {label}")


def test_a_missing_dataset_refuses_the_job(scene: Scene) -> None:
    uri, scene.dataset = scene.file(LONG, [{"id": 1}]), "missing"
    with pytest.raises(NotFound):
        scene.load(uri, job_id="free-1")
    with pytest.raises(NotFound):
        scene.client.get_job("free-1")


def test_more_than_ten_thousand_files_are_refused(scene: Scene) -> None:
    scene.table()
    with pytest.raises(BadRequest, match="10001"):
        scene.load(*(f"gs://b/{n}" for n in range(10_001)))


def test_a_partition_decorator_is_refused(scene: Scene) -> None:
    scene.table()
    with pytest.raises(BadRequest, match="decorator"):
        scene.load(scene.file(LONG, [{"id": 1}]), table="t$20260101")


def test_more_than_four_thousand_dates_end_the_job(scene: Scene) -> None:
    day = {"type": "int", "logicalType": "date"}
    scene.table([SchemaField("d", "DATE")], time_partitioning=bigquery.TimePartitioning(field="d"))
    start = datetime.date(2000, 1, 1)
    rows = [{"d": start + datetime.timedelta(days=n)} for n in range(4001)]
    uri = scene.file([{"name": "d", "type": day}], rows)
    reason, message = scene.error(uri)
    assert (reason, message[:35]) == ("invalid", "Too many partitions produced by que")


def test_a_held_job_is_running_until_it_is_cancelled(scene: Scene) -> None:
    scene.table()
    scene.server.hold_jobs()
    job = scene.load(scene.file(LONG, [{"id": 1}]))
    job.reload()
    assert job.state == "RUNNING"
    job.cancel()
    job.reload()
    assert (job.state, job.error_result["reason"]) == ("DONE", "stopped")
    scene.server.hold_jobs(False)
    assert scene.rows() == []


def test_cancelling_what_has_ended_changes_nothing(scene: Scene) -> None:
    scene.table()
    job = scene.ended(scene.file(LONG, [{"id": 1}]))
    job.cancel()
    job.reload()
    assert (job.state, job.error_result) == ("DONE", None)


EVERY_TYPE: list[tuple[Any, Any, str, Any]] = [
    ("boolean", True, "BOOLEAN", True),
    ("int", 3, "INTEGER", 3),
    ("double", 1.5, "FLOAT", 1.5),
    ("bytes", b"\x00\xff", "BYTES", b"\x00\xff"),
    ({"type": "fixed", "name": "fx", "size": 2}, b"ab", "BYTES", b"ab"),
    ({"type": "enum", "name": "en", "symbols": ["A", "B"]}, "B", "STRING", "B"),
    ({"type": "string", "logicalType": "uuid"}, "0" * 8 + "-0000-0000-0000-" + "0" * 12, "STRING", None),
    ({"type": "int", "logicalType": "date"}, datetime.date(2026, 1, 2), "DATE", datetime.date(2026, 1, 2)),
    ({"type": "int", "logicalType": "time-millis"}, datetime.time(1, 2, 3, 4000), "TIME", None),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
        "TIMESTAMP",
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, datetime.UTC),
    ),
    (
        {"type": "long", "logicalType": "local-timestamp-millis"},
        datetime.datetime(2026, 1, 2, 3, 4, 5),
        "DATETIME",
        None,
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
        Decimal("12.3456"),
        "NUMERIC",
        Decimal("12.3456"),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 12},
        Decimal("1.000000000002"),
        "BIGNUMERIC",
        Decimal("1.000000000002"),
    ),
    ({"type": "array", "items": "string"}, ["a", "b"], "STRING REPEATED", ["a", "b"]),
    (["null", {"type": "array", "items": "long"}], None, "INTEGER REPEATED", []),
]


@pytest.mark.parametrize(("avro", "value", "column", "expected"), EVERY_TYPE)
def test_every_type_arrives(scene: Scene, avro: Any, value: Any, column: str, expected: Any) -> None:
    kind, _, mode = column.partition(" ")
    scene.table([SchemaField("x", kind, mode or "NULLABLE")])
    job = scene.ended(scene.file([{"name": "x", "type": avro}], [{"x": value}]))
    assert job.error_result is None
    assert scene.rows() == [(value if expected is None else expected,)]


def test_records_maps_and_unions_arrive(scene: Scene) -> None:
    inner = {"type": "record", "name": "in", "fields": [{"name": "y", "type": ["null", "string"]}]}
    fields = [
        {"name": "s", "type": inner},
        {"name": "again", "type": ["null", "in"]},
        {"name": "m", "type": {"type": "map", "values": "in"}},
        {"name": "u", "type": ["null", "long", "string", "in"]},
    ]
    members = [SchemaField("y", "STRING")]
    union = [SchemaField("long_value", "INTEGER"), SchemaField("string_value", "STRING")]
    entry = [SchemaField("key", "STRING"), SchemaField("value", "RECORD", fields=members)]
    scene.table(
        [
            SchemaField("s", "RECORD", fields=members),
            SchemaField("again", "RECORD", fields=members),
            SchemaField("m", "RECORD", "REPEATED", fields=entry),
            SchemaField("u", "RECORD", fields=[*union, SchemaField("in_value", "RECORD", fields=members)]),
        ]
    )
    row = {"s": {"y": "a"}, "again": {"y": "b"}, "m": {"k": {"y": "c"}}}
    job = scene.ended(scene.file(fields, [{**row, "u": u} for u in (None, 7, "text", ("in", {"y": "d"}))]))
    assert job.error_result is None
    rows = scene.rows()
    assert rows[0][:3] == ({"y": "a"}, {"y": "b"}, [{"key": "k", "value": {"y": "c"}}])
    empty = {"long_value": None, "string_value": None, "in_value": None}
    assert [row[3] for row in rows] == [
        None,
        {**empty, "long_value": 7},
        {**empty, "string_value": "text"},
        {**empty, "in_value": {"y": "d"}},
    ]


def test_nested_fields_are_added_and_relaxed(scene: Scene) -> None:
    inner = SchemaField("x", "INTEGER", "REQUIRED")
    scene.table(
        [SchemaField("s", "RECORD", fields=[inner]), SchemaField("r", "RECORD", "REPEATED", fields=[inner])]
    )
    grown = [SchemaField("x", "INTEGER"), SchemaField("y", "STRING")]
    table = scene.client.get_table(f"{scene.dataset}.t")
    table.schema = [
        SchemaField("s", "RECORD", fields=grown),
        SchemaField("r", "RECORD", "REPEATED", fields=grown),
    ]
    scene.client.update_table(table, ["schema"])
    again = scene.client.get_table(f"{scene.dataset}.t")
    assert [[(f.name, f.mode) for f in field.fields] for field in again.schema] == [
        [("x", "NULLABLE"), ("y", "NULLABLE")]
    ] * 2
    record = {
        "type": "record",
        "name": "in",
        "fields": [{"name": "x", "type": ["null", "long"]}, {"name": "y", "type": "string"}],
    }
    fields = [{"name": "s", "type": record}, {"name": "r", "type": {"type": "array", "items": "in"}}]
    value = {"x": None, "y": "a"}
    assert scene.ended(scene.file(fields, [{"s": value, "r": [value]}])).error_result is None
    assert scene.rows() == [(value, [value])]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (SchemaField("note", "INTEGER"), "Field note has changed type from STRING to INTEGER"),
        (SchemaField("note", "STRING", "REQUIRED"), "Field note has changed mode from NULLABLE to REQUIRED"),
        (SchemaField("other", "STRING"), "Field note is missing in new schema"),
    ],
)
def test_a_patch_that_bigquery_refuses_is_refused(scene: Scene, field: SchemaField, message: str) -> None:
    table = scene.table()
    table.schema = [COLUMNS[0], field]
    with pytest.raises(BadRequest) as refusal:
        scene.client.update_table(table, ["schema"])
    assert message in str(refusal.value)


def test_a_required_column_cannot_be_added(scene: Scene) -> None:
    table = scene.table()
    table.schema = [*COLUMNS, SchemaField("x", "STRING", "REQUIRED")]
    with pytest.raises(BadRequest, match=r"Cannot add required fields to an existing schema \(field: x\)"):
        scene.client.update_table(table, ["schema"])


def test_a_permission_that_is_taken_away_is_missed(scene: Scene) -> None:
    table = scene.table()
    scene.server.denied.add("bigquery.tables.get")
    with pytest.raises(Forbidden, match=r"bigquery\.tables\.get"):
        scene.client.get_table(table)
    permissions = ["bigquery.tables.get", "bigquery.tables.update"]
    assert scene.client.test_iam_permissions(table, permissions)["permissions"] == ["bigquery.tables.update"]


FAULTS_OF_A_JOB: list[tuple[Fault, str, tuple[int, ...]]] = [
    (Fault("jobs.insert", "job_error", reason="quotaExceeded"), "quotaExceeded", ()),
    (Fault("jobs.insert", "job_rows"), "", (1,)),
]


@pytest.mark.parametrize(("fault", "reason", "ids"), FAULTS_OF_A_JOB)
def test_a_job_can_be_made_to_end_badly(
    scene: Scene, fault: Fault, reason: str, ids: tuple[int, ...]
) -> None:
    scene.table()
    scene.server.faults.add(fault)
    job = scene.ended(scene.file(LONG, [{"id": 1}]))
    assert (job.error_result or {"reason": ""})["reason"] == reason
    assert scene.rows("id") == [(value,) for value in ids]
    assert job.output_rows == (None if reason else 2)


def test_a_stuck_job_ends_when_it_is_cancelled(scene: Scene) -> None:
    scene.table()
    scene.server.faults.add(Fault("jobs.insert", "job_stuck"))
    job = scene.load(scene.file(LONG, [{"id": 1}]))
    other = scene.ended(scene.file(LONG, [{"id": 2}], "other.avro"))
    assert other.error_result is None
    job.reload()
    assert job.state == "RUNNING"
    job.cancel()
    assert finished(job).error_result["reason"] == "stopped"
    assert scene.rows("id") == [(2,)]


@pytest.fixture
def own_server(
    bigquery_program: Program, gcs_server: GcsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BigQueryServer]:
    """A server that a test may kill."""
    with run_bigquery(bigquery_program, tmp_path_factory.mktemp("own"), gcs_server) as server:
        yield server


def test_a_killed_server_keeps_rows_jobs_and_ids(own_server: BigQueryServer, gcs_server: GcsServer) -> None:
    scene = Scene(own_server, gcs_server)
    scene.table()
    uri = scene.file(LONG, [{"id": 1}])
    scene.ended(uri, job_id="j-1")
    own_server.kill()
    with pytest.raises((GoogleAPIError, OSError)):
        scene.client.get_job("j-1", retry=ONCE)
    own_server.start()
    assert scene.client.get_job("j-1").state == "DONE"
    with pytest.raises(Conflict):
        scene.load(uri, job_id="j-1")
    assert scene.rows("id") == [(1,)]


def test_a_job_cut_off_by_a_kill_ends_with_all_its_rows_or_with_an_error(
    own_server: BigQueryServer, gcs_server: GcsServer
) -> None:
    scene = Scene(own_server, gcs_server)
    scene.table()
    uri = scene.file(LONG, [{"id": n} for n in range(20_000)])
    loaded = 0
    for attempt in range(4):
        scene.load(uri, job_id=f"j-{attempt}")
        threading.Event().wait(0.05 + 0.1 * attempt)  # whenever it strikes, the promise holds
        own_server.restart()
        job = scene.client.get_job(f"j-{attempt}")
        assert job.state == "DONE"
        loaded += 0 if job.error_result else 20_000
    assert scene.rows("count(*)") == [(loaded,)]


def test_a_new_proxy_on_old_data_knows_its_jobs(
    bigquery_program: Program, gcs_server: GcsServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("again")
    with run_bigquery(bigquery_program, folder, gcs_server) as first:
        scene = Scene(first, gcs_server)
        scene.table()
        uri = scene.file(LONG, [{"id": 1}])
        scene.ended(uri, job_id="j-1")
        first.hold_jobs()
        scene.load(uri, job_id="j-2")
    with run_bigquery(bigquery_program, folder, gcs_server) as second:
        scene.server, scene.client = second, second.client()
        assert scene.client.get_job("j-1").error_result is None
        assert scene.client.get_job("j-2").error_result["reason"] == "backendError"
        with pytest.raises(Conflict):
            scene.load(uri, job_id="j-1")
        assert scene.rows("id") == [(1,)]
