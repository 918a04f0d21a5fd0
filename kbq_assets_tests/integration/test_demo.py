"""The demo end to end: `kbq demo` as a user runs it, twice, killed, with its warehouse tampered with, and in the UI.

One home for all tests of this file, in order: each leaves it accounted for.
"""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kbq_assets.definitions import parts
from kbq_assets.local.demo.topics import FLIGHTS
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets_tests.browser.ui import UiSuite
from kbq_assets_tests.extras.metrics.scrape import Scrape, parsed
from kbq_assets_tests.integration.demo_home import PATIENCE_SECONDS, Demo, demo_home, wait_until
from kbq_assets_tests.sizes import DEMO_KILLS

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(3600)]

ONE_ROW = "_kafka_topic = 'nyc.flights.v1' AND _kafka_partition = 2 AND _kafka_offset = 1234"
ANOTHER_ROW = "_kafka_topic = 'nyc.flights.v1' AND _kafka_partition = 1 AND _kafka_offset = 4321"
#: What the demo prints when it is killed. Each costs a demo and a half.
KILLED_AT = ["queued as run", r"records of \d+ partitions", "2 of 4", "starting Spark"][:DEMO_KILLS]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A demo that ran once."""
    events = {
        "KBQ_SPARK_CONF_spark.eventLog.enabled": "true",
        "KBQ_SPARK_CONF_spark.eventLog.compress": "false",
    }
    with demo_home("demo", events) as made:
        first = made.run("demo")
        assert first.returncode == 0, made.explain(first)
        assert "every record accounted for: yes" in first.stdout
        yield made


@pytest.fixture(scope="module")
def account(demo: Demo) -> dict[str, Any]:
    """What `kbq reconcile` prints after the first demo."""
    return demo.reconcile()


def test_the_account_is_what_the_producers_counted(demo: Demo, account: dict[str, Any]) -> None:
    produced = demo.produced()
    assert account["accounted"]
    assert account["values"]["compared"] > 1_000
    assert account["values"]["differing"] == []
    assert account["topics"] == produced
    assert account["totals"] == {key: sum(t[key] for t in produced.values()) for key in account["totals"]}
    assert produced[FLIGHTS]["loaded"] == 336_776


def test_metrics_show_what_the_producers_counted_under_kafka_bigquery_express_s_names(
    demo: Demo, account: dict[str, Any]
) -> None:
    totals = account["totals"]
    found: Scrape = {}

    def scraped() -> bool:
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_SECONDS) as response:
            found.update(parsed(response.read().decode()))
        return found.get("kbq_up") == {("broker",): 1, ("warehouse",): 1, ("store",): 1}

    with demo.started("serve", "--port", "0", KBQ_SERVE_SECONDS="5") as service:
        assert service.stdout is not None
        url = service.stdout.readline().split()[2].rstrip(";")
        wait_until(lambda: scraped() and "kbq_lag_records" in found)
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_SECONDS) == 0
    rows = totals["loaded"] + totals["errors"]
    view = read_view(StateCache(parts(demo.environ).deployment.store))
    windows = [w for c in view.commits for p in c.partitions.values() for w in p.windows if w.files]
    files = [file for window in windows for file in window.files]
    assert sum(file.rows for file in files) == rows, (
        "one extraction: its commits still name all that it published"
    )
    staged, done = ([*(demo.home / "staging").rglob(f"*.{kind}")] for kind in ("avro", "done"))
    assert found["gcswriter_consumedmessages"] == {(): totals["produced"]}
    assert found["gcswriter_publishbatchsize_sum"] == {(): rows}
    counts = [found[f"gcswriter_{name}_count"][()] for name in ("publishbatchsize", "latency")]
    assert counts == [len(windows)] * 2
    assert found["gcswriter_filecount"] == found["gcswriter_closedfilecount"] == {(): len(files)}
    sizes = Counter[tuple[str]]()
    for file in files:
        sizes[file.table.dataset,] += file.raw_bytes
    assert found["gcswriter_bytes_written"] == sizes
    assert found["bqwriter_stagingfiles"] == {(): len(staged) + len(done)}
    made = len(files) + len({file.done for file in files})
    assert found["bqwriter_stagingfilesdeleted"] == {(): made - len(staged) - len(done)}
    assert sum(found["kbq_loaded_rows_total"].values()) == rows
    assert sum(found["kbq_error_rows_total"].values()) == totals["errors"]
    assert sum(found["kbq_skipped_records_total"].values()) == totals["skipped"]
    assert found["bqwriter_failed_bqjobs"] == found["bqwriter_bqjobs_count"] == {(): 0}
    assert found["bqwriter_submittedjobstobq"][()] >= len(found["kbq_loaded_rows_total"])
    assert sum(found["kbq_lag_records"].values()) == 0
    assert max(found["kbq_worker_memory_bytes"].values()) > 50 * 1024 * 1024


def test_every_unit_was_a_task_of_spark(demo: Demo) -> None:
    """The driver reads no records: a job with one task, in a Python worker, read each partition."""
    events = [
        json.loads(line)
        for path in (demo.home / "spark-events").rglob("events_*")
        for line in path.read_text().splitlines()
    ]
    jobs = [e["Properties"]["spark.job.description"] for e in events if e["Event"] == "SparkListenerJobStart"]
    tasks = [e for e in events if e["Event"] == "SparkListenerTaskEnd"]
    assert len(tasks) == len(jobs)
    assert all(e["Task End Reason"]["Reason"] == "Success" for e in tasks)
    flights = {match[1] for job in jobs if (match := re.match(r"extract (nyc\.flights\.v1\[\d\])", job))}
    assert len(flights) == 4


@pytest.mark.slow
def test_the_demo_with_a_lake_accounts_for_every_record_in_both(demo: Demo) -> None:
    ran = demo.run("demo", "--lake")
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("every record accounted for: yes") == 2
    [flights] = re.findall(r"nyc.flights +(\d+) +(\d+)\n", ran.stdout)
    assert int(flights[1]) < int(flights[0])
    assert re.search(r"nyc.flights +336,776 +336,776 +336,776\n", ran.stdout)  # DuckDB, ClickHouse, distinct


@pytest.mark.slow
def test_a_second_demo_loads_nothing(demo: Demo, account: dict[str, Any]) -> None:
    second = demo.run("demo")
    assert second.returncode == 0, demo.explain(second)
    assert "0 rows into 0 tables" in second.stdout
    assert "starting Spark" not in second.stdout
    assert {**demo.reconcile(), "values": None} == {**account, "values": None}  # each run samples other rows
    assert demo.dagster_processes() == []


@pytest.mark.slow
def test_rows_deleted_and_doubled_by_hand_are_named(demo: Demo, tmp_path: Path) -> None:
    kept = tmp_path / "row.parquet"
    with duckdb.connect(str(demo.home / "warehouse.duckdb")) as warehouse:
        warehouse.execute(f"COPY (SELECT * FROM nyc.flights WHERE {ONE_ROW}) TO '{kept}'")
        warehouse.execute(f"DELETE FROM nyc.flights WHERE {ONE_ROW}")
        warehouse.execute(f"INSERT INTO nyc.flights SELECT * FROM nyc.flights WHERE {ANOTHER_ROW}")
    ran = demo.run("reconcile")
    with duckdb.connect(str(demo.home / "warehouse.duckdb")) as warehouse:
        warehouse.execute(f"INSERT INTO nyc.flights SELECT * FROM '{kept}'")
        one = f"SELECT min(rowid) FROM nyc.flights WHERE {ANOTHER_ROW}"
        warehouse.execute(f"DELETE FROM nyc.flights WHERE rowid = ({one})")
    assert ran.returncode == 1
    assert "every record accounted for: no" in ran.stdout
    assert re.search(r"nyc\.flights\.v1\[2\].*missing.*1234", ran.stdout)
    assert re.search(r"nyc\.flights\.v1\[1\].*doubled.*4321", ran.stdout)
    assert demo.reconcile()["accounted"]


class TestUi(UiSuite):
    """The demo in the UI."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_demo_killed_at_any_moment_is_completed_by_the_next(demo: Demo, moment: str) -> None:
    demo.produce(50)
    with demo.started("demo") as killed:
        assert killed.stdout is not None
        seen = next((line for line in killed.stdout if re.search(moment, line)), None)
        killed.send_signal(signal.SIGKILL)
    assert seen is not None
    again = demo.run("demo")
    assert again.returncode == 0, demo.explain(again)
    assert demo.reconcile()["topics"] == demo.produced()
    assert demo.dagster_processes() == []
