"""Requests that the client sends, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest
from google.cloud import bigquery

from kbq_assets.adapters.bigquery import comparison
from kbq_assets.core.errors import ConfigurationError, NotFound, Unavailable
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import EVERYTHING, ErrorQuery, JobError, KafkaRange
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    TABLE,
    URIS,
    CannedBigQuery,
    canned_bigquery,
    job_resource,
    load_job,
    loaded,
    table_resource,
)
from kbq_assets_tests.google.faults import Fault

ID = {"name": "id", "type": "INTEGER", "mode": "REQUIRED"}
NAME = {"projectId": PROJECT, "datasetId": "shop", "tableId": "orders-v1"}
ANSWER: dict[str, Any] = {"jobComplete": True, "jobReference": {"projectId": PROJECT, "jobId": "q"}}


@pytest.fixture
def server() -> Iterator[CannedBigQuery]:
    with canned_bigquery() as found:
        yield found


def parameter(name: str, kind: str, value: str) -> dict[str, Any]:
    return {"name": name, "parameterType": {"type": kind}, "parameterValue": {"value": value}}


# Jobs


def load_request(job_id: str, table: str, timeout: int, **labels: str) -> dict[str, Any]:
    return {
        "jobReference": {"projectId": PROJECT, "jobId": job_id, "location": LOCATION},
        "configuration": {
            "jobTimeoutMs": str(timeout),
            "labels": labels,
            "load": {
                "sourceUris": list(URIS),
                "destinationTable": {**NAME, "tableId": table},
                "sourceFormat": "AVRO",
                "writeDisposition": "WRITE_APPEND",
                "createDisposition": "CREATE_NEVER",
                "useAvroLogicalTypes": True,
                "decimalTargetTypes": ["NUMERIC", "BIGNUMERIC", "STRING"],
            },
        },
    }


def test_a_load_says_this_and_nothing_else(server: CannedBigQuery) -> None:
    server.reply("jobs.insert", loaded("kbq-1a2b-7"))
    server.warehouse().insert_job(load_job("kbq-1a2b-7", kbq="load", topic="orders"))
    (request,) = server.sent("jobs.insert")
    assert request.path == f"/bigquery/v2/projects/{PROJECT}/jobs"
    assert request.json == load_request(
        "kbq-1a2b-7", "orders-v1", 6 * 3600 * 1000, kbq="load", topic="orders"
    )


def test_a_load_is_sent_to_the_place_of_its_job_whatever_the_settings_say_now(
    server: CannedBigQuery,
) -> None:
    server.reply("jobs.insert", loaded("kbq-1a2b-7"))
    server.warehouse().insert_job(replace(load_job(), project="old-project", location="US"))
    (request,) = server.sent("jobs.insert")
    assert request.path == "/bigquery/v2/projects/old-project/jobs"
    assert request.json["jobReference"]["projectId"] == "old-project"
    assert request.json["jobReference"]["location"] == "US"
    assert request.json["configuration"]["load"]["destinationTable"]["projectId"] == "old-project"


def test_a_burned_id_is_a_query_that_reads_nothing(server: CannedBigQuery) -> None:
    server.reply("jobs.insert", job_resource("kbq-1a2b-7", {"query": {"query": "SELECT 1"}}))
    server.warehouse().burn_job("kbq-1a2b-7", "old-project", "US")
    (request,) = server.sent("jobs.insert")
    assert request.path == "/bigquery/v2/projects/old-project/jobs"
    assert request.json == {
        "jobReference": {"projectId": "old-project", "jobId": "kbq-1a2b-7", "location": "US"},
        "configuration": {"labels": {"kbq": "burned"}, "query": {"query": "SELECT 1", "useLegacySql": False}},
    }


def test_every_request_has_a_time_limit(server: CannedBigQuery) -> None:
    server.reply("jobs.insert", loaded("kbq-1a2b-7"))
    server.reply("jobs.get", loaded("kbq-1a2b-7"))
    server.reply("tables.get", table_resource(ID))
    server.reply("jobs.query", ANSWER)
    server.reply("datasets.list", {})
    warehouse = server.warehouse()
    warehouse.insert_job(load_job())
    warehouse.get_job("kbq-1a2b-7", PROJECT, LOCATION)
    warehouse.kafka_ranges(TABLE)
    warehouse.tables()
    requests = [r for method, _ in server.requests for r in server.sent(method)]
    assert {request.headers.get("X-Server-Timeout") for request in requests} == {"60.0"}


# Probes


def scratch_of(server: CannedBigQuery) -> str:
    (request,) = server.sent("tables.insert")
    return str(request.json["tableReference"]["tableId"])


def probed(server: CannedBigQuery, **status: Any) -> JobError | None:
    described = {
        **ID,
        "description": "no need",
        "policyTags": {"names": ["projects/p/taxonomies/1/policyTags/2"]},
    }
    partitioning = {"type": "DAY", "field": "event_date", "expirationMs": "86400000"}
    server.reply("tables.get", table_resource(described, timePartitioning=partitioning, labels={"a": "b"}))
    server.reply("tables.insert", table_resource(ID))
    server.reply("jobs.insert", loaded("p"))
    server.reply("jobs.get", loaded("p", status={"state": "RUNNING"}))
    server.reply("jobs.get", loaded("p", status={"state": "DONE", **status}))
    server.reply("tables.delete", b"", 204)
    return server.warehouse().probe(load_job())


def test_a_probe_loads_into_a_scratch_table_and_deletes_it(server: CannedBigQuery) -> None:
    before = datetime.now(UTC).timestamp() * 1000
    assert probed(server) is None
    scratch = scratch_of(server)
    (created,), (inserted,) = server.sent("tables.insert"), server.sent("jobs.insert")
    assert created.json == {
        "tableReference": {**NAME, "tableId": scratch},
        "schema": {"fields": [ID]},
        "timePartitioning": {"type": "DAY", "field": "event_date"},
        "expirationTime": created.json["expirationTime"],
        "labels": {},
    }
    assert 3_500_000 < int(created.json["expirationTime"]) - before < 3_700_000
    own_id = inserted.json["jobReference"]["jobId"]
    assert inserted.json == load_request(own_id, scratch, 1_800_000)
    assert own_id.startswith("kbq-probe-")
    assert [method for method, _ in server.requests] == [
        "tables.get", "tables.insert", "jobs.insert", "jobs.get", "jobs.get", "tables.delete",
    ]  # fmt: skip
    (deleted,) = server.sent("tables.delete")
    assert deleted.path.endswith(f"/datasets/shop/tables/{scratch}")


@pytest.mark.parametrize(
    ("reason", "transient", "blames_files"),
    [
        ("invalid", False, True),
        ("resourcesExceeded", False, True),
        ("accessDenied", False, False),
        ("notFound", False, False),
        ("odd", False, False),
        ("backendError", True, False),
    ],
)
def test_only_an_error_that_speaks_against_the_files_blames_them(
    server: CannedBigQuery, reason: str, transient: bool, blames_files: bool
) -> None:
    error = {"reason": reason, "message": "no", "location": URIS[1]}
    expected = JobError(reason, f"no ({URIS[1]})", transient, blames_files)
    assert probed(server, errorResult=error) == expected
    assert server.requests[-1][0] == "tables.delete"


@pytest.mark.parametrize("fault", ["503", "drop_reply"])
def test_a_probe_without_an_answer_leaves_no_table(server: CannedBigQuery, fault: str) -> None:
    server.faults.add(Fault("jobs.insert", fault, reason="backendError"))
    with pytest.raises(Unavailable):
        probed(server)
    assert server.requests[-1][0] == "tables.delete"


def test_a_probe_that_does_not_end_is_given_up(server: CannedBigQuery) -> None:
    server.reply("jobs.get", loaded("p", status={"state": "RUNNING"}))
    server.reply("tables.get", table_resource(ID))
    server.reply("tables.insert", table_resource(ID))
    server.reply("jobs.insert", loaded("p"))
    server.refuse("tables.delete", 503)  # it expires
    with pytest.raises(Unavailable, match="did not end"):
        server.warehouse().probe(load_job())


def test_a_probe_for_a_table_that_is_gone_blames_no_file(server: CannedBigQuery) -> None:
    server.refuse("tables.get", 404, "notFound")
    error = server.warehouse().probe(load_job())
    assert error == JobError("notFound", "table shop.orders-v1 does not exist", transient=True)


def test_a_refused_probe_blames_no_file(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(ID))
    server.reply("tables.insert", table_resource(ID))
    server.refuse("jobs.insert", 403, "accessDenied", "Access Denied")
    server.reply("tables.delete", b"", 204)
    error = server.warehouse().probe(load_job())
    assert error is not None
    assert (error.reason, error.transient, error.blames_files) == ("refused", False, False)


# Creating tables

COLUMNS = (
    Column("id", "INT64", "REQUIRED"),
    Column("ok", "BOOL"),
    Column("ratio", "FLOAT64"),
    Column("tags", "STRUCT", "REPEATED", (Column("key", "STRING"), Column("value", "BIGNUMERIC"))),
    Column("event_date", "DATE"),
)
OPTIONS = TableOptions(
    cluster_by=("ID", "missing", "ok"),
    labels={"kbq": "table", "owner": "sales"},
    require_partition_filter=True,
    expiry_days=30,
)


def test_a_table_is_created_with_all_its_options(server: CannedBigQuery) -> None:
    server.refuse("datasets.get", 404, "notFound")
    server.reply(
        "datasets.insert",
        {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}, "location": LOCATION},
    )
    server.reply("tables.insert", table_resource(ID))
    server.warehouse().create_table(TABLE, COLUMNS, OPTIONS)
    assert server.requests == [
        ("datasets.get", None),
        (
            "datasets.insert",
            {
                "datasetReference": {"projectId": PROJECT, "datasetId": "shop"},
                "location": LOCATION,
                "labels": {},
            },
        ),
        (
            "tables.insert",
            {
                "tableReference": NAME,
                "schema": {
                    "fields": [
                        ID,
                        {"name": "ok", "type": "BOOLEAN", "mode": "NULLABLE"},
                        {"name": "ratio", "type": "FLOAT", "mode": "NULLABLE"},
                        {
                            "name": "tags",
                            "type": "RECORD",
                            "mode": "REPEATED",
                            "fields": [
                                {"name": "key", "type": "STRING", "mode": "NULLABLE"},
                                {"name": "value", "type": "BIGNUMERIC", "mode": "NULLABLE"},
                            ],
                        },
                        {"name": "event_date", "type": "DATE", "mode": "NULLABLE"},
                    ]
                },
                "timePartitioning": {"type": "DAY", "field": "event_date", "expirationMs": "2592000000"},
                "requirePartitionFilter": True,
                "clustering": {"fields": ["id", "ok"]},
                "labels": {"kbq": "table", "owner": "sales"},
            },
        ),
    ]


@pytest.mark.parametrize(
    ("unit", "names", "kind", "field"),
    [
        ("hour", ["_kafka_topic", "_event_time"], "HOUR", "_event_time"),
        ("hour", ["_kafka_topic", "_kafka_timestamp"], "HOUR", "_kafka_timestamp"),
        ("hour", ["_event_time", "_kafka_topic"], "DAY", "event_date"),
        ("day", ["_kafka_topic", "_event_time"], "DAY", "event_date"),
        ("month", ["_kafka_topic", "_event_time"], "MONTH", "event_date"),
    ],
)
def test_a_table_is_partitioned_by_its_options_unit(
    server: CannedBigQuery, unit: str, names: list[str], kind: str, field: str
) -> None:
    """Hours need a time of KBQ's own: a record's own field may differ from `event_date`."""
    server.reply(
        "datasets.get", {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}, "location": "eu"}
    )
    server.reply("tables.insert", table_resource(ID))
    columns = [*(Column(name, "TIMESTAMP") for name in names), Column("event_date", "DATE")]
    server.warehouse().create_table(TABLE, columns, replace(OPTIONS, partition_unit=unit))
    (request,) = server.sent("tables.insert")
    assert request.json["timePartitioning"] == {"type": kind, "field": field, "expirationMs": "2592000000"}


def test_a_table_without_the_columns_is_neither_partitioned_nor_clustered(server: CannedBigQuery) -> None:
    server.reply(
        "datasets.get", {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}, "location": "eu"}
    )
    server.reply("tables.insert", table_resource(ID))
    server.warehouse().create_table(TABLE, COLUMNS[2:3], OPTIONS)
    (request,) = server.sent("tables.insert")
    assert set(request.json) == {"tableReference", "schema", "labels"}


def test_a_table_and_a_dataset_that_exist_are_left_alone(server: CannedBigQuery) -> None:
    server.refuse("datasets.get", 404, "notFound")
    server.refuse("datasets.insert", 409, "duplicate")
    server.reply(
        "datasets.get",
        {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}, "location": LOCATION},
    )
    server.refuse("tables.insert", 409, "duplicate")
    server.reply("tables.get", table_resource(ID))
    server.warehouse().create_table(TABLE, COLUMNS, OPTIONS)
    assert not server.sent("tables.patch")


def test_a_dataset_elsewhere_is_refused_before_any_job_fails_for_it(server: CannedBigQuery) -> None:
    server.reply(
        "datasets.get", {"datasetReference": {"projectId": PROJECT, "datasetId": "shop"}, "location": "US"}
    )
    with pytest.raises(ConfigurationError, match=r"shop is in US.*\n.*bigquery://shop-prod\?location=US"):
        server.warehouse().create_table(TABLE, COLUMNS, OPTIONS)
    assert not server.sent("tables.insert")


@pytest.mark.parametrize(
    "options",
    [
        TableOptions(partition_by="id"),
        TableOptions(partition_by="tags"),
        TableOptions(cluster_by=("tags",)),
        TableOptions(cluster_by=("ratio",)),
        TableOptions(cluster_by=("id", "ok", "event_date", "id", "ok")),
    ],
)
def test_options_that_bigquery_would_refuse_are_refused_with_the_column(
    server: CannedBigQuery, options: TableOptions
) -> None:
    with pytest.raises(ConfigurationError, match=r"shop\.orders-v1"):
        server.warehouse().create_table(TABLE, COLUMNS, options)
    assert server.requests == []


# Changing tables

DESCRIBED = {
    "name": "note",
    "type": "STRING",
    "mode": "REQUIRED",
    "description": "as written",
    "policyTags": {"names": ["projects/p/taxonomies/1/policyTags/2"]},
    "defaultValueExpression": "'x'",
    "somethingNew": {"from": "Google"},
}
INNER = {"name": "inner", "type": "STRUCT", "mode": "NULLABLE", "fields": [dict(ID, description="inside")]}


def test_a_change_keeps_what_it_does_not_change(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(DESCRIBED, INNER, {"name": "other", "type": "FLOAT64"}))
    server.reply("tables.patch", table_resource())
    wanted = (
        Column("new", "STRUCT", "REQUIRED", (Column("x", "INT64", "REQUIRED"),)),
        Column("INNER", "STRUCT", "NULLABLE", (Column("id", "INT64"), Column("list", "DATE", "REPEATED"))),
        Column("note", "STRING"),
    )
    server.warehouse().update_columns(TABLE, wanted)
    (request,) = server.sent("tables.patch")
    assert request.headers["If-Match"] == "e1"
    assert request.json == {
        "schema": {
            "fields": [
                dict(DESCRIBED, mode="NULLABLE"),
                dict(
                    INNER,
                    fields=[
                        dict(ID, description="inside", mode="NULLABLE"),
                        {"name": "list", "type": "DATE", "mode": "REPEATED"},
                    ],
                ),
                {"name": "other", "type": "FLOAT64", "mode": "NULLABLE"},
                {
                    "name": "new",
                    "type": "RECORD",
                    "mode": "NULLABLE",
                    "fields": [{"name": "x", "type": "INTEGER", "mode": "NULLABLE"}],
                },
            ]
        }
    }


def test_a_change_that_is_made_is_not_sent(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(ID, INNER))
    inner = Column("inner", "STRUCT", "NULLABLE", (Column("id", "INT64", "REQUIRED"),))
    server.warehouse().update_columns(TABLE, (Column("id", "INT64", "REQUIRED"), inner))
    assert [method for method, _ in server.requests] == ["tables.get"]


def test_a_change_that_somebody_else_overtook_is_planned_anew(server: CannedBigQuery) -> None:
    theirs = {"name": "theirs", "type": "STRING", "mode": "NULLABLE"}
    server.reply("tables.get", table_resource(ID))
    server.reply("tables.get", table_resource(ID, theirs, etag="e2"))
    server.refuse("tables.patch", 412, "conditionNotMet")
    server.reply("tables.patch", table_resource())
    server.warehouse().update_columns(TABLE, (Column("mine", "STRING"),))
    first, second = server.sent("tables.patch")
    assert (first.headers["If-Match"], second.headers["If-Match"]) == ("e1", "e2")
    assert [field["name"] for field in second.json["schema"]["fields"]] == ["id", "theirs", "mine"]


def test_a_change_without_an_end_of_others_is_unavailable(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(ID))
    server.refuse("tables.patch", 412, "conditionNotMet")
    with pytest.raises(Unavailable, match="others keep changing it"):
        server.warehouse().update_columns(TABLE, (Column("mine", "STRING"),))


def test_a_change_whose_reply_is_lost_is_found_made(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(ID))
    server.reply("tables.get", table_resource(ID, {"name": "mine", "type": "STRING"}, etag="e2"))
    server.refuse("tables.patch", 412, "conditionNotMet")
    server.faults.add(Fault("tables.patch", "drop_reply"))
    server.warehouse(patience_seconds=120).update_columns(TABLE, (Column("mine", "STRING"),))
    assert len(server.sent("tables.patch")) == 2


def test_a_table_that_is_gone_cannot_be_changed(server: CannedBigQuery) -> None:
    server.refuse("tables.get", 404, "notFound")
    with pytest.raises(NotFound, match=r"shop\.orders-v1"):
        server.warehouse().update_columns(TABLE, COLUMNS)


# Queries


def queried(server: CannedBigQuery) -> tuple[str, list[dict[str, Any]]]:
    """The text and the parameters of the one query."""
    (request,) = server.sent("jobs.query")
    body = dict(request.json)
    sql, parameters = str(body.pop("query")), body.pop("queryParameters", [])
    assert body.pop("requestId")
    assert body.pop("parameterMode", "NAMED") == "NAMED"
    assert body == {
        "useLegacySql": False,
        "labels": {"kbq": "read"},
        "location": LOCATION,
        "formatOptions": {"useInt64Timestamp": True},
        "timeoutMs": 59750,
    }
    return sql, parameters


FILTER = "(`event_date` >= DATE '0001-01-01' OR `event_date` IS NULL)"
DATES = {"timePartitioning": {"type": "DAY", "field": "event_date"}}
DATE_FIELD = {"name": "event_date", "type": "DATE"}


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        (table_resource(DATE_FIELD, **DATES), "TRUE"),
        (table_resource(DATE_FIELD, **DATES, requirePartitionFilter=True), FILTER),
        (
            table_resource(
                {"name": "at", "type": "TIMESTAMP"},
                timePartitioning={"type": "HOUR", "field": "at"},
                requirePartitionFilter=True,
            ),
            "(`at` >= TIMESTAMP '0001-01-01' OR `at` IS NULL)",
        ),
        (
            table_resource(timePartitioning={"type": "DAY"}, requirePartitionFilter=True),
            "(`_PARTITIONTIME` >= TIMESTAMP '0001-01-01' OR `_PARTITIONTIME` IS NULL)",
        ),
    ],
)
def test_a_table_that_requires_a_partition_filter_gets_one_that_leaves_no_row_out(
    server: CannedBigQuery, table: dict[str, Any], condition: str
) -> None:
    server.reply("tables.get", table)
    server.reply("jobs.query", ANSWER)
    server.warehouse().kafka_ranges(TABLE)
    key = "_kafka_topic, _kafka_partition, _kbq_epoch"
    sql = f"SELECT {key}, COUNT(*) FROM `{PROJECT}.shop.orders-v1` WHERE {condition} GROUP BY {key} ORDER BY {key}"
    assert queried(server) == (sql, [])


def test_positions_are_asked_for_by_parameters(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(DATE_FIELD, **DATES, requirePartitionFilter=True))
    server.reply("jobs.query", ANSWER)
    server.warehouse().positions(TABLE, KafkaRange("o'rders", 3, 2))
    sql, parameters = queried(server)
    assert "rders'" not in sql
    assert f"WHERE {FILTER} AND _kafka_topic = @topic AND _kafka_partition = @partition" in sql
    assert parameters == [
        parameter("topic", "STRING", "o'rders"),
        parameter("partition", "INT64", "3"),
        parameter("epoch", "INT64", "2"),
    ]


def test_a_summary_since_a_date_prunes_by_it(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(DATE_FIELD, **DATES))
    server.reply("jobs.query", ANSWER)
    server.warehouse().kafka_summary(TABLE, date(2024, 2, 29))
    sql, parameters = queried(server)
    assert f"FROM `{PROJECT}.shop.orders-v1` WHERE event_date >= @since GROUP BY" in sql
    assert parameters == [parameter("since", "DATE", "2024-02-29")]


def test_a_summary_since_a_date_of_a_table_by_hours_reads_their_hours_alone(server: CannedBigQuery) -> None:
    hours = {"timePartitioning": {"type": "HOUR", "field": "_event_time"}}
    time = {"name": "_event_time", "type": "TIMESTAMP"}
    server.reply("tables.get", table_resource(DATE_FIELD, time, **hours, requirePartitionFilter=True))
    server.reply("jobs.query", ANSWER)
    server.warehouse().kafka_summary(TABLE, date(2024, 2, 29))
    sql, _ = queried(server)
    pruned = "(`_event_time` >= TIMESTAMP(@since) OR `_event_time` IS NULL)"
    assert f"WHERE {pruned} AND event_date >= @since GROUP BY" in sql


@pytest.mark.parametrize(
    ("days", "condition"),
    [
        (
            [date(2024, 2, 29), date(2024, 2, 1)],
            "(t.`_event_time` >= TIMESTAMP(@first) OR t.`_event_time` IS NULL)",
        ),
        ([date(2024, 2, 1), None], "(t.`_event_time` >= TIMESTAMP '0001-01-01' OR t.`_event_time` IS NULL)"),
    ],
)
def test_a_comparison_reads_the_hours_of_its_days_and_passes_a_required_filter(
    days: list[date | None], condition: str
) -> None:
    resource = table_resource(
        DATE_FIELD,
        {"name": "_event_time", "type": "TIMESTAMP"},
        timePartitioning={"type": "HOUR", "field": "_event_time"},
        requirePartitionFilter=True,
    )
    table = bigquery.Table.from_api_repr(resource)
    query = comparison.count(comparison.Both(table.reference, table, EVERYTHING), days)
    assert query.sql.endswith(f" AND {condition}")
    assert [p.to_api_repr()["name"] for p in query.parameters][1:] == (["first"] if None not in days else [])


def test_error_rows_are_chosen_by_parameters(server: CannedBigQuery) -> None:
    server.reply("tables.get", table_resource(DATE_FIELD, **DATES))
    server.reply("jobs.query", ANSWER)
    server.warehouse().error_rows(TABLE, ErrorQuery("t", offset=5, limit=7, value_bytes=9))
    sql, parameters = queried(server)
    assert "WHERE _kafka_topic = @topic AND _kafka_offset = @offset ORDER BY" in sql
    assert parameters == [
        parameter("topic", "STRING", "t"),
        parameter("offset", "INT64", "5"),
        parameter("value_bytes", "INT64", "9"),
        parameter("rows", "INT64", "7"),
    ]


def names_answer(*names: str) -> dict[str, Any]:
    schema = {"fields": [{"name": "table_name", "type": "STRING"}]}
    return {
        **ANSWER,
        "schema": schema,
        "rows": [{"f": [{"v": name}]} for name in names],
        "totalRows": str(len(names)),
    }


def test_tables_are_listed_by_one_query_a_dataset_of_this_location(server: CannedBigQuery) -> None:
    places = {"shop": "EU", "elsewhere": "US"}
    server.reply(
        "datasets.list",
        {
            "datasets": [
                {"datasetReference": {"projectId": PROJECT, "datasetId": d}, "location": at}
                for d, at in places.items()
            ]
        },
    )
    server.reply("jobs.query", names_answer("orders", "_kbq_probe_1f", "bücher", "a-b"))
    assert server.warehouse().tables() == (TableReference("shop", "a-b"), TableReference("shop", "orders"))
    sql, parameters = queried(server)
    assert f"FROM `{PROJECT}.shop`.INFORMATION_SCHEMA.COLUMNS WHERE column_name = '_kafka_offset'" in sql
    assert "table_type = 'BASE TABLE'" in sql
    assert parameters == []


@pytest.mark.parametrize(("status", "reason"), [(404, "notFound"), (403, "accessDenied")])
def test_a_dataset_that_is_gone_or_closed_has_no_tables_of_ours(
    server: CannedBigQuery, status: int, reason: str
) -> None:
    server.reply(
        "datasets.list",
        {"datasets": [{"datasetReference": {"projectId": PROJECT, "datasetId": "d"}, "location": "EU"}]},
    )
    server.refuse("jobs.query", status, reason)
    assert server.warehouse().tables() == ()


def test_sixteen_threads_share_a_warehouse(server: CannedBigQuery) -> None:
    server.reply("jobs.insert", loaded("j"))
    server.reply("jobs.get", loaded("j"))
    warehouse = server.warehouse()

    def use(number: int) -> str:
        warehouse.insert_job(load_job(f"kbq-1a2b-{number}"))
        found = warehouse.get_job(f"kbq-1a2b-{number}", PROJECT, LOCATION)
        return found.job_id if found else ""

    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(use, range(64)))
    sent = {request.json["jobReference"]["jobId"] for request in server.sent("jobs.insert")}
    assert found == sent == {f"kbq-1a2b-{number}" for number in range(64)}
