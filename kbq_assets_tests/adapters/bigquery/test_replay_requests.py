"""Requests of a promotion, field by field, and the meaning of a failed job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kbq_assets.adapters.bigquery.renaming import insertion, value_of
from kbq_assets.core.errors import Refused, UnknownOutcome
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.replay import ReplaceJob, Replacement, RowRange
from kbq_assets_tests.adapters.bigquery.canned import (
    LOCATION,
    PROJECT,
    TABLE,
    CannedBigQuery,
    canned_bigquery,
    job_resource,
    table_resource,
)

SHADOW, FORMER = (TableReference(TABLE.dataset, f"_kbq_{kind}_7_orders-v1") for kind in ("replay", "former"))
ROWS = RowRange("shop.orders", 2, (OffsetRange(TopicPartition("shop.orders", 3), 10, 20),))
FIELDS = (
    {"name": "_kafka_offset", "type": "INTEGER"},
    {"name": "event_date", "type": "DATE"},
    {"name": "_kbq_replay", "type": "INTEGER"},
)
WHERE = (
    "_kafka_topic = @topic AND _kbq_epoch = 2"
    " AND (_kafka_partition = 3 AND _kafka_offset >= 10 AND _kafka_offset < 20)"
)
ANSWER: dict[str, Any] = {"jobComplete": True, "jobReference": {"projectId": PROJECT, "jobId": "q"}}


def answer(kinds: list[str], *rows: list[Any]) -> dict[str, Any]:
    """The result of a query."""
    return {
        **ANSWER,
        "schema": {"fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]},
        "rows": [{"f": [{"v": value} for value in row]} for row in rows],
        "totalRows": str(len(rows)),
    }


@pytest.fixture
def server() -> Iterator[CannedBigQuery]:
    with canned_bigquery() as found:
        partitions = {"type": "DAY", "field": "event_date"}
        found.reply(
            "tables.get", table_resource(*FIELDS, timePartitioning=partitions, requirePartitionFilter=True)
        )
        found.reply("tables.insert", table_resource(*FIELDS))
        days = [["3", day, "5", "5"] for day in ("2026-11-20", "2026-11-21")]
        found.reply("jobs.query", answer(["INTEGER", "DATE", "INTEGER", "INTEGER"], *days))
        found.reply("jobs.insert", job_resource("kbq-r", {"jobType": "QUERY", "query": {"query": ""}}))
        yield found


def test_a_promotion_is_one_transaction_that_copies_only_the_ranges_days_and_counts_them(
    server: CannedBigQuery,
) -> None:
    job = ReplaceJob("kbq-replay-a-7-1", ROWS, (Replacement(TABLE, SHADOW, FORMER, 7),))
    server.warehouse().replays.replace(job)
    [sent] = server.sent("jobs.insert")
    configuration = sent.json["configuration"]
    assert sent.json["jobReference"] == {"projectId": PROJECT, "jobId": job.job_id, "location": LOCATION}
    assert configuration["labels"] == {"kbq_replay": "true"}
    live, shadow, former = ("`shop-prod.shop.orders-v1`",) * 2 + (f"`shop-prod.{FORMER}`",)
    every = "(`event_date` >= DATE '0001-01-01' OR `event_date` IS NULL)"
    assert configuration["query"]["query"] == "\n".join(
        (
            "-- source: replay:shop.orders-v1",
            "BEGIN TRANSACTION;",
            "INSERT INTO `shop-prod.shop._kbq_replay_jobs` (job) VALUES (@job);",
            f"DELETE FROM {former} WHERE TRUE;",
            f"INSERT INTO {former} (`_kafka_offset`, `event_date`, `_kbq_replay`)"
            f" SELECT s.`_kafka_offset`, s.`event_date`, s.`_kbq_replay` FROM {live} AS s"
            f" WHERE {every} AND (event_date IN UNNEST(@dates_0)) AND {WHERE};",
            f"DELETE FROM {live} WHERE {every} AND {WHERE};",
            f"IF @@row_count != (SELECT COUNT(*) FROM {former}) THEN",
            f"  RAISE USING MESSAGE = 'kbq: rows of {TABLE} changed meanwhile';",
            "END IF;",
            f"INSERT INTO {live} (`_kafka_offset`, `event_date`, `_kbq_replay`)"
            f" SELECT s.`_kafka_offset`, s.`event_date`, 7 FROM {shadow} AS s WHERE {every} AND {WHERE};",
            "COMMIT TRANSACTION;",
        )
    )
    given = {p["name"]: p["parameterValue"] for p in configuration["query"]["queryParameters"]}
    assert given["job"] == {"value": job.job_id} and given["topic"] == {"value": "shop.orders"}
    assert [v["value"] for v in given["dates_0"]["arrayValues"]] == ["2026-11-20", "2026-11-21"]


def test_what_a_promotion_is_billed_is_the_sum_of_dry_runs() -> None:
    with canned_bigquery() as other:
        partitions = {"type": "DAY", "field": "event_date"}
        other.reply("tables.get", table_resource(*FIELDS, timePartitioning=partitions))
        other.reply(
            "jobs.query", answer(["INTEGER", "DATE", "INTEGER", "INTEGER"], ["3", "2026-11-20", "5", "5"])
        )
        for read in ("4000", "360", "500"):  # former rows, narrow columns, new rows
            found = {"query": {"totalBytesProcessed": read}, "totalBytesProcessed": read}
            configuration = {"jobType": "QUERY", "query": {"query": ""}}
            other.reply("jobs.insert", job_resource("", configuration, statistics=found))
        billed = other.warehouse().replays.bytes_billed({TABLE: SHADOW}, ROWS)
        sent = [request.json["configuration"] for request in other.sent("jobs.insert")]
    assert billed == 2 * 4000 + 5 * 360 + 500
    assert all(each["dryRun"] and each["query"]["useQueryCache"] is False for each in sent)
    kept, counted, new = (each["query"]["query"] for each in sent)
    assert kept.startswith("SELECT * FROM") and "event_date IN UNNEST(@dates)" in kept
    assert "COUNT(*)" in counted and "UNNEST" not in counted
    assert new.startswith("SELECT * FROM") and "UNNEST" not in new


def test_the_text_of_an_upsert_table_runs_in_the_transaction_of_all_others(server: CannedBigQuery) -> None:
    keyed = Replacement(TABLE, SHADOW, FORMER, 7, sql="DELETE FROM a WHERE TRUE;\nMERGE INTO a")
    server.warehouse().replays.replace(ReplaceJob("kbq-r", ROWS, (keyed, Replacement(TABLE, None))))
    text = server.sent("jobs.insert")[0].json["configuration"]["query"]["query"]
    assert text.startswith(
        "-- source: replay:shop.orders-v1\n-- source: replay:shop.orders-v1\nBEGIN TRANSACTION;"
    )
    assert f"{keyed.sql};\nDELETE FROM `shop-prod.shop.orders-v1` WHERE" in text


def test_a_rollback_keeps_the_replays_numbers_of_the_former_rows(server: CannedBigQuery) -> None:
    server.warehouse().replays.replace(ReplaceJob("kbq-r", ROWS, (Replacement(TABLE, FORMER),)))
    text = server.sent("jobs.insert")[0].json["configuration"]["query"]["query"]
    assert "_kbq_former" not in text.replace("orders-v1", "") and "s.`_kbq_replay`" in text


def test_a_lost_reply_of_a_promotion_is_an_unknown_outcome() -> None:
    job = ReplaceJob("kbq-r", ROWS, (Replacement(TABLE, None),))
    with canned_bigquery() as other:
        other.reply("tables.get", table_resource(*FIELDS))
        other.reply("tables.insert", table_resource(*FIELDS))
        other.refuse("jobs.insert", 503)
        with pytest.raises(UnknownOutcome):
            other.warehouse().replays.replace(job)


def test_more_tables_than_one_transaction_takes_are_refused_before_anything_is_sent(
    server: CannedBigQuery,
) -> None:
    many = tuple(Replacement(TableReference("shop", f"t{n}"), None) for n in range(50))
    keyed = tuple(replace(each, sql="SELECT 1") for each in many[:25])
    for found, text in ((many, "50 tables, 101 with"), (keyed, "25 tables, 101 with")):
        with pytest.raises(Refused, match=text):
            server.warehouse().replays.replace(ReplaceJob("kbq-r", ROWS, found))
    assert server.requests == []


@pytest.mark.parametrize(("committed", "failed"), [(0, True), (1, False)])
def test_a_script_that_failed_after_its_commit_has_replaced_the_rows(committed: int, failed: bool) -> None:
    text = "-- source: replay:shop.a\n-- source: replay:shop.b\nBEGIN TRANSACTION;"
    configuration = {
        "jobType": "QUERY",
        "query": {"query": text},
        "labels": {"kbq_replay": "true"},
    }
    error = {"reason": "jobInternalError", "message": "try again"}
    job = job_resource("kbq-r", configuration, status={"state": "DONE", "errorResult": error})
    with canned_bigquery() as other:
        other.reply("jobs.get", job)
        other.reply("tables.get", table_resource({"name": "job", "type": "STRING"}))
        other.reply("jobs.query", answer(["INTEGER"], [str(committed)]))
        status = other.warehouse().get_job("kbq-r", PROJECT, LOCATION)
    assert status is not None and (status.error is not None) == failed
    assert status.source_uris == ("replay:shop.a", "replay:shop.b")


INT, TEXT = Column("i", "INT64"), Column("s", "STRING")


@pytest.mark.parametrize(
    ("target", "source", "sql"),
    [
        (INT, INT, "s.`i`"),
        (
            Column("r", "STRUCT", fields=(INT, TEXT)),
            Column("R", "STRUCT", fields=(INT, Column("S", "STRING"))),
            "s.`R`",
        ),
        (
            Column("r", "STRUCT", fields=(TEXT, INT)),
            Column("r", "STRUCT", fields=(INT, TEXT)),
            "IF(s.`r` IS NULL, NULL, STRUCT(s.`r`.`s` AS `s`, s.`r`.`i` AS `i`))",
        ),
        (
            Column("r", "STRUCT", "REPEATED", (INT, Column("n", "STRUCT", "REPEATED", (TEXT,)))),
            Column("r", "STRUCT", "REPEATED", (INT,)),
            "ARRAY(SELECT AS STRUCT e0.`i` AS `i`, CAST([] AS ARRAY<STRUCT<`s` STRING>>) AS `n`"
            " FROM UNNEST(s.`r`) AS e0 WITH OFFSET AS o0 ORDER BY o0)",
        ),
        (
            Column("r", "STRUCT", fields=(Column("q", "STRUCT", fields=(INT, TEXT)),)),
            Column("r", "STRUCT", fields=(Column("q", "STRUCT", fields=(TEXT,)),)),
            "IF(s.`r` IS NULL, NULL, STRUCT(IF(s.`r`.`q` IS NULL, NULL,"
            " STRUCT(CAST(NULL AS INT64) AS `i`, s.`r`.`q`.`s` AS `s`)) AS `q`))",
        ),
    ],
)
def test_fields_of_records_go_by_name(target: Column, source: Column, sql: str) -> None:
    assert value_of(f"s.`{source.name}`", target, source) == sql


def test_columns_that_the_source_lacks_are_left_out() -> None:
    assert (
        insertion("t", (INT, TEXT), "u", (Column("S", "STRING"),))
        == "INSERT INTO t (`s`) SELECT s.`S` FROM u AS s"
    )
