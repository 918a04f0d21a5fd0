"""The whole way on Google's servers, by the command line: Kafka, Spark, a bucket, load jobs, BigQuery, Dagster.

The demo's topics with fewer flights; real but for fake-gcs-server and local-bigquery. In order: each test leaves the
world to the next.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from google.cloud.bigquery import SchemaField

from kbq_assets.local.demo.produce import produce_demo
from kbq_assets.local.demo.topics import FLIGHTS, TOPICS, DemoTopic, Ids, Step
from kbq_assets_tests.google.faults import Fault, Request
from kbq_assets_tests.google.servers import BigQueryServer, GcsServer
from kbq_assets_tests.integration.demo_home import Demo, demo_home, document_of, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.google,
    pytest.mark.timeout(3600),
]

FLIGHT_ROWS = 4_000
#: Columns that every table has; the rest comes from the records.
ADDED = {
    "_kafka_topic": "STRING REQUIRED",
    "_kafka_partition": "INTEGER REQUIRED",
    "_kafka_offset": "INTEGER REQUIRED",
    "_kafka_timestamp": "TIMESTAMP REQUIRED",
    "_kbq_epoch": "INTEGER REQUIRED",
    "event_date": "DATE REQUIRED",
}


@dataclass(frozen=True)
class GoogleDemo:
    """A demo whose bucket and project are on local servers."""

    demo: Demo
    gcs: GcsServer
    bigquery: BigQueryServer
    bucket: str

    def staged(self) -> list[str]:
        """Staged files, committed or not."""
        return list(self.generations("kbq/staging/"))

    def generations(self, prefix: str) -> dict[str, int]:
        """Which writing of each object is there."""
        return {
            blob.name: blob.generation for blob in self.gcs.client().list_blobs(self.bucket, prefix=prefix)
        }

    def document(self, *arguments: str) -> Any:
        """What a command prints as JSON; it must succeed."""
        ran = self.demo.run(*arguments, "--json")
        assert ran.returncode == 0, ran.stdout
        return document_of(ran)

    def first_row(self, table: str) -> dict[str, Any]:
        """The record at the lowest offset of the lowest partition."""
        order = "ORDER BY _kafka_topic, _kafka_partition, _kafka_offset LIMIT 1"
        [row] = self.bigquery.client().query(f"SELECT * FROM {table} {order}").result()
        return dict(row.items())


def few_records() -> Iterator[DemoTopic]:
    """The demo's topics with fewer flights and hours of weather: local-bigquery takes its time over rows."""
    for topic in TOPICS:
        if topic.name == FLIGHTS:
            yield dataclasses.replace(topic, records=FLIGHT_ROWS)
        elif topic.transactional:
            # Eight transactions of a thousand records, and two that are aborted.
            yield dataclasses.replace(topic, records=8_000, sequence=first_steps(topic, 10))
        else:
            yield topic


def first_steps(topic: DemoTopic, count: int) -> Callable[[Ids, int], Iterator[Step]]:
    return lambda ids, records: itertools.islice(topic.sequence(ids, records), count)


@pytest.fixture(scope="module")
def google(gcs_server: GcsServer, bigquery_server: BigQueryServer) -> Iterator[GoogleDemo]:
    """The demo's records on a broker, nothing extracted."""
    bucket = gcs_server.new_bucket()
    settings = {
        "KBQ_STAGING": f"gs://{bucket}/kbq",
        "KBQ_WAREHOUSE": f"bigquery://{bigquery_server.project}?location=US",
        "KBQ_GCS_ENDPOINT": gcs_server.endpoint,
        "KBQ_BIGQUERY_ENDPOINT": bigquery_server.endpoint,
        "KBQ_EXTRACT_CREDENTIALS": "anonymous",
        "KBQ_LOAD_CREDENTIALS": "anonymous",
        "KBQ_POLL_SECONDS": "1",
        "KBQ_QUIET_SECONDS": "0",
    }
    with demo_home("google-demo", settings) as demo:
        demo.stack.up()
        produce_demo(
            demo.stack.bootstrap_servers, demo.stack.registry_url, demo.home, topics=tuple(few_records())
        )
        yield GoogleDemo(demo, gcs_server, bigquery_server, bucket)


def is_swap(request: Request) -> bool:
    """Whether an object is to be replaced, as commits are."""
    return request.query.get("ifGenerationMatch", "0") != "0"


def test_a_killed_extraction_is_completed_by_the_next_and_its_late_commits_lose(google: GoogleDemo) -> None:
    faults, late = google.gcs.faults, threading.Event()

    def delay(request: Request) -> None:
        """Before it is answered: the first swap after a file was staged is late, and so is all that follow."""
        if is_swap(request) and (late.is_set() or google.staged()):
            faults.add(Fault("objects.insert", "late", lambda other: other is request))
            late.set()

    google.gcs.watchers.append(delay)
    with google.demo.started("extract") as killed:
        wait_until(late.is_set, pause=0.05)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    google.gcs.watchers.remove(delay)
    report = google.document("extract")
    assert (report["stops"], report["failures"], report["unfinished"]) == ([], {}, 0)
    commits = google.generations("kbq/commits/")
    assert faults.deliver_late() > 0
    faults.clear()
    assert google.generations("kbq/commits/") == commits
    assert google.document("extract")["records"] == 0


def test_jobs_of_a_killed_load_are_adopted_by_the_next(google: GoogleDemo) -> None:
    before = len(google.bigquery.requested("jobs.insert"))  # other tests' jobs: the server is shared
    google.bigquery.hold_jobs()
    with google.demo.started("load") as killed:
        wait_until(lambda: google.bigquery.requested("jobs.insert")[before:], pause=0.05)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
    google.bigquery.hold_jobs(False)
    begun = {r.json["jobReference"]["jobId"] for r in google.bigquery.requested("jobs.insert")[before:]}
    report = google.document("load")
    assert [(t["state"], t["message"]) for t in report["tables"] if t["state"] != "idle"] == []
    assert begun <= {job for table in report["tables"] for job in table["jobs"]}


def test_the_account_is_what_the_producers_counted(google: GoogleDemo) -> None:
    account = google.document("reconcile")
    assert account["accounted"]
    assert account["topics"] == google.demo.produced()
    assert account["topics"][FLIGHTS]["loaded"] == FLIGHT_ROWS
    assert google.document("reconcile", "--counts")["accounted"]


def test_a_second_run_moves_nothing(google: GoogleDemo) -> None:
    assert google.document("extract")["records"] == 0
    assert google.document("load")["rows"] == 0
    google.document("clean")
    assert google.staged() == []


def test_hours_can_be_queried(google: GoogleDemo) -> None:
    client = google.bigquery.client()
    [(wanted,)] = client.query("SELECT COUNT(*) FROM nyc.airports").result()
    sql = "SELECT SUM(row_count), SUM(late_rows) FROM nyc._kbq_completeness WHERE table_name = 'airports'"
    assert [tuple(row) for row in client.query(sql).result()] == [(wanted, 0)]


def test_records_have_arrived_as_they_were_sent(google: GoogleDemo) -> None:
    airport = google.first_row("nyc.airports")
    assert airport["position"] == {"lat": 41.1304722, "lon": -80.6195833}
    assert (airport["faa"], airport["alt"], airport["tzone"]) == ("04G", 1044, "America/New_York")
    assert airport["_kafka_headers"] == [{"key": "producer", "value": b"nycflights13"}]
    penguin = google.first_row("palmer.penguins")
    assert (penguin["date_egg"], penguin["event_date"]) == (date(2007, 11, 11), date(2007, 11, 11))
    assert penguin["_event_time"].isoformat() == "2007-11-11T00:00:00+00:00"
    assert (penguin["bill_length_mm"], penguin["study"], penguin["_kafka_key"]) == (39.1, None, b"N1A1")
    in_flight = google.first_row("nyc.flights")
    assert in_flight["time_hour"].replace(minute=0) == in_flight["_kafka_timestamp"].replace(minute=0)
    assert in_flight["time_hour"] > datetime(2013, 1, 1, tzinfo=UTC)
    assert google.first_row("palmer.penguins_raw")["payload"]["studyName"] == "PAL0708"
    assert google.first_row("nyc.planes")["type"] in ("MULTI_ENGINE", "SINGLE_ENGINE", "ROTORCRAFT")


def test_tables_have_the_types_and_modes_of_their_records(google: GoogleDemo) -> None:
    def columns(table: str) -> dict[str, str]:
        found = google.bigquery.client().get_table(f"{google.bigquery.project}.{table}")
        return {field.name: described(field) for field in found.schema}

    assert columns("nyc.airports") == ADDED | {
        "faa": "STRING REQUIRED",
        "name": "STRING REQUIRED",
        "position": "RECORD(lat FLOAT REQUIRED, lon FLOAT REQUIRED) REQUIRED",
        "alt": "INTEGER REQUIRED",
        "tz": "INTEGER REQUIRED",
        "dst": "STRING REQUIRED",
        "tzone": "STRING NULLABLE",
        "_kafka_headers": "RECORD(key STRING REQUIRED, value BYTES NULLABLE) REPEATED",
    }
    assert columns("palmer.penguins_raw") == ADDED | {
        "payload": "JSON NULLABLE",
        "_kafka_key": "BYTES NULLABLE",
    }
    grown = columns("palmer.penguins")
    assert (grown["date_egg"], grown["study"]) == ("DATE REQUIRED", "STRING NULLABLE")
    assert grown["_event_time"] == "TIMESTAMP REQUIRED"


def described(field: SchemaField) -> str:
    """A column in short. Example: ``RECORD(lat FLOAT REQUIRED) NULLABLE``."""
    members = ", ".join(f"{member.name} {described(member)}" for member in field.fields)
    return f"{field.field_type}{f'({members})' if members else ''} {field.mode}"


def test_new_records_go_through_dagsters_job(google: GoogleDemo) -> None:
    google.demo.produce(50)
    ran = google.demo.run("demo")
    assert ran.returncode == 0, google.demo.explain(ran)
    assert "every record accounted for: yes" in ran.stdout
    [row] = google.bigquery.client().query("SELECT COUNT(*) AS flights FROM nyc.flights").result()
    assert row.flights == FLIGHT_ROWS + 50
    assert google.demo.dagster_processes() == []
