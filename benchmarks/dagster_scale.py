"""Dagster's cost with 160 topics of 70 partitions: ``make bench-dagster``.

The product's own jobs report cycles of 11,200 changed partitions with two files each, and loads of their 320 tables,
into a separate Postgres. The state is that of a large installation (`plan_state`) in a folder. Nothing is read from
Kafka. The database's growth per cycle is measured over one cycle, and over the 4 cycles that follow. Ticks of all
sensors are measured with and without changed states. Then `dagster_month` simulates a month, and a browser opens pages.
Results are written to ``benchmarks/results/scale.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorType, TickData, TickStatus

from benchmarks import dagster_month, plan_state
from benchmarks.measure import REPOSITORY
from benchmarks.plan import QuietBroker
from benchmarks.records import LARGE
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.extraction.cost import Usage
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import (
    COMMITS,
    TABLE_REGISTRY,
    TABLES,
    TOPIC_REGISTRY,
    StagedFileName,
    TableReference,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Adapters, Parts
from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.defs.instance.run_retention import delete_old_runs
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport, PartitionReport
from kbq_assets.pipelines.loading.load import LoadReport
from kbq_assets.pipelines.loading.loader import Loader
from kbq_assets.pipelines.loading.ports import TableReport
from kbq_assets_tests.defs.instance.postgres import postgres, query
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore
from kbq_assets_tests.fakes.platform import with_ports

RESULT: Final = REPOSITORY / "benchmarks" / "results" / "scale.json"
CYCLES_A_DAY: Final = 288
CYCLE_SECONDS: Final = 300
DAY_SECONDS: Final = 86_400
FEW, MANY = 1, 4
#: Approximate rows per file. Each partition has two files.
ROWS: Final = 100
#: The limits in the design.
BARS: Final = {"dagster_mb_per_day": 300.0, "page_seconds": 2.0, "ticks_core_share": 0.1}
#: Sensors, and the default seconds between their ticks.
SENSORS: Final = {"extraction": 300, "done_file": 60, "completeness": 60, "check": 300, "notice": 60}
_QUIETLY: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True)
class Read(Extractor):
    """An extractor that has read every partition."""

    def extract(self, *args: Any, **kwargs: Any) -> ExtractionReport:
        """The report alone."""
        partitions = tuple(_partition(tp) for tp, _ in plan_state.positions())
        costs = tuple(
            Usage(topic, "team", "cc-1", 3, 14_000, 14_000, 4_000_000, 900_000, 1.2, 0.9)
            for topic in plan_state.topics()
        )
        return ExtractionReport(ExtractionPlan(), partitions, (), {}, 0, 60.0, costs)


def _partition(tp: TopicPartition) -> PartitionReport:
    """A partition with its own numbers, since equal numbers would take less space."""
    number, now = zlib.crc32(str(tp).encode()), int(time.time())
    rows, first = ROWS // 2 + number % ROWS, number % 10**9 + now % 10**6
    files = tuple(
        StagedFile(
            StagedFileName(tp, plan_state.table_of(tp, window), 100_000, first, 1, f"{window:016x}").format(),
            first, first + 2 * rows, rows, 9_000, 36_000, "AAAAAA==", "f" * 64, (20_000,), 1000 * (now - 60),
        )
        for window in range(2)
    )  # fmt: skip
    counts = Counts(
        positions=2 * rows, records=2 * rows, bytes=72_000, rows={str(f.table): f.rows for f in files}
    )
    return PartitionReport(tp, first, first + 2 * rows, counts, 1, files)


@dataclass(frozen=True)
class Loaded(Loader):
    """A loader that has loaded every table."""

    def load(self, *args: Any, on_table: Callable[[TableReport], None], **kwargs: Any) -> LoadReport:
        """The report alone, table by table, as a load tells it."""
        columns = columns_of(json.dumps(LARGE))
        oldest = int(time.time() * 1000) - 120_000
        tables = sorted({plan_state.table_of(tp, w) for tp, _ in plan_state.positions() for w in range(2)})
        reports = tuple(
            TableReport(table, "idle", 70 * ROWS, 70, 630_000, oldest, columns, (_job(table),))
            for table in tables
        )
        for report in reports:
            on_table(report)
        return LoadReport(reports, 45.0)


def _job(table: TableReference) -> str:
    return f"kbq_{table.dataset}_{table.table}_{time.time_ns():x}_0123456789abcdef"


class Installation:
    """The product with the state in ``home``, and Dagster's instance on ``url``."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self.url = home, url
        self.reasons: dict[str, str | None] = {}
        (home / "topics.txt").write_text("shop.*\n")
        (home / "url").write_text(url)
        self.environ = {
            "KBQ_HOME": str(home),
            "KBQ_SOURCE_TOPICS": str(home / "topics.txt"),
            "KBQ_DAGSTER_POSTGRES_URL": f"file:{home / 'url'}",
        }
        self.store = FaultyMemoryStore()
        registries = LocalObjectStore(home / "staging")  # what the webserver's code location reads
        for path, data in plan_state.objects():
            self.store.create(path, data)
            if path in (TABLE_REGISTRY, TOPIC_REGISTRY):
                registries.create(path, data)
        parts = self._open()
        self.sensors = parts.definitions(resources={ENGINE: _nothing()})
        nothing: Any = None  # nothing is extracted or loaded
        parts.__dict__.update(extractor=Read(parts.deployment, nothing), loader=Loaded(parts.deployment))
        self.jobs = parts.definitions(resources={ENGINE: _nothing()})

    def _open(self) -> Parts:
        store, broker = (lambda: self.store), QuietBroker()
        return with_ports(
            Parts(Adapters(parse_settings(self.environ))),
            store=store,
            load_store=store,
            offsets=lambda: broker,
        )

    def cycle(self, instance: dg.DagsterInstance) -> None:
        """Report an extraction and a load."""
        for job in ("extract_job", "load_job"):
            ran = self.jobs.resolve_job_def(job).execute_in_process(_QUIETLY, instance)
            assert ran.success

    def change(self) -> None:
        """Rewrite all commits and table states, as an extraction and a load do."""
        for prefix in (COMMITS, TABLES):
            for entry in list(self.store.list(prefix)):
                self.store.swap(entry.path, self.store.get(entry.path).data, entry.generation)

    def tick(
        self, instance: dg.DagsterInstance, name: str, cursor: str | None, is_first: bool = False
    ) -> str | None:
        """Run a tick of a sensor, and return its cursor. The first tick of a new installation writes the checks of
        every page. Of these, only those over all topics and tables are kept."""
        sensor = self.sensors.resolve_sensor_def(f"{name}_sensor")
        with dg.build_sensor_context(
            instance=instance, definitions=self.sensors, cursor=cursor, sensor_name=sensor.name
        ) as context:
            found = sensor.evaluate_tick(context)
        for event in found.asset_events:
            if is_first and len(event.asset_key.path) > 1:  # type: ignore[union-attr]
                continue
            instance.report_runless_asset_event(event)  # type: ignore[arg-type]
        self.reasons[name] = found.skip_message
        return found.cursor

    def bytes_of_tick(self, instance: dg.DagsterInstance, name: str, cursor: str | None) -> float:
        """The bytes that Dagster's daemon stores per tick."""
        before, count, now = size(self.url), 50, time.time()
        for _ in range(count):
            instance.create_tick(
                TickData(
                    "o" * 40, f"{name}_sensor", InstigatorType.SENSOR, TickStatus.SKIPPED, now, cursor=cursor,
                    skip_reason=self.reasons[name], selector_id="s" * 40, end_timestamp=now,
                )
            )  # fmt: skip
        return (size(self.url) - before) / count


def _nothing() -> dg.ResourceDefinition:
    return dg.ResourceDefinition.hardcoded_resource(None)


def cycles(installation: Installation, instance: dg.DagsterInstance) -> dict[str, float]:
    """Growth and CPU time of a cycle, over few and over many cycles."""
    installation.cycle(instance)  # registers keys, which is not part of a usual cycle's cost
    found = {}
    for count in (FEW, MANY):
        before, started = size(installation.url), time.process_time()
        for _ in range(count):
            installation.cycle(instance)
        grown = (size(installation.url) - before) / count
        found[f"kb_per_cycle_of_{count}"] = round(grown / 1000, 1)
        found[f"cpu_per_cycle_of_{count}"] = round((time.process_time() - started) / count, 2)
        print(f"  {count} cycles: {found}", flush=True)
    return found


def size(url: str) -> int:
    """Bytes of the database, without the space that a vacuum frees."""
    [[found]] = query(url, "SELECT pg_database_size(current_database())")
    return int(str(found))


def ticks(installation: Installation, instance: dg.DagsterInstance) -> dict[str, Any]:
    """CPU time of each sensor's ticks, as a share of a core. Every fifth minute, all states have changed."""
    cursors: dict[str, str | None] = dict.fromkeys(SENSORS)
    found: dict[str, Any] = {}

    def measured(name: str, is_first: bool = False) -> float:
        started = time.process_time()
        cursors[name] = installation.tick(instance, name, cursors[name], is_first)
        return time.process_time() - started

    for name in SENSORS:
        measured(name, is_first=True)
    share, kept = 0.0, 0.0
    for name, seconds in SENSORS.items():
        installation.change()
        changed, again = measured(name), measured(name)
        share += (changed + again * (CYCLE_SECONDS / seconds - 1)) / CYCLE_SECONDS
        found[f"{name}_cpu"] = [round(changed, 2), round(again, 2)]
        print(f"  {name}_sensor: {changed:.2f} CPU s after changes, {again:.2f} without", flush=True)
        kept += DAY_SECONDS / seconds * installation.bytes_of_tick(instance, name, cursors[name])
    found["mb_per_day"] = round(kept / 1e6, 1)
    print(f"  ticks: {share:.3f} of a core, {found}", flush=True)
    return {"ticks_core_share": round(share, 3), "ticks": found}


def history(instance: dg.DagsterInstance, days: int) -> dict[str, float]:
    """CPU time of the job that deletes old runs, by the number of runs that it deletes."""
    found, oldest = {}, datetime.now(UTC) - timedelta(days=days)
    for hours in (1, 5):  # an hour of cycles, and the four that follow
        started = time.process_time()
        deleted, _ = delete_old_runs(instance, oldest + timedelta(hours=hours))
        found[str(deleted)] = round(time.process_time() - started, 1)
    print(f"  history: {found}", flush=True)
    return found


def main() -> None:
    """Measure everything. Returns 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    options = parser.parse_args()
    os.environ.setdefault(BATCH_VARIABLE, BATCH_SIZE)
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="kbq-dagster-") as folder, postgres() as url:
        home = Path(folder)
        installation = Installation(home, url)
        with _instance(home, url) as instance:
            of_cycles = cycles(installation, instance)
            of_ticks = ticks(installation, instance)
            dagster_month.fill(url, options.days, CYCLES_A_DAY)
            installation.cycle(instance)
            filled = round(size(url) / 1e9, 1)
            of_history = history(instance, options.days)
        table = plan_state.table_of(TopicPartition(plan_state.topics()[0], 0), 0)
        pages = dagster_month.pages(installation.environ, plan_state.topics()[0], str(table), home / "ui.log")
    found = {
        "dagster_mb_per_day": round(
            of_cycles[f"kb_per_cycle_of_{MANY}"] * CYCLES_A_DAY / 1000 + of_ticks["ticks"]["mb_per_day"], 1
        ),
        "page_seconds": max(pages[name] for name in dagster_month.OF_ASSETS),
        "ticks_core_share": of_ticks["ticks_core_share"],
    }
    details = {
        "days": options.days, "gb": filled, "pages": pages, **of_cycles, "ticks": of_ticks["ticks"],
        "history_cpu": of_history,
    }  # fmt: skip
    machine = {"cores": os.cpu_count(), "load_average": [load, round(os.getloadavg()[0], 1)]}
    print(json.dumps({**found, "dagster": {**details, "machine": machine}}, indent=1))
    known = json.loads(RESULT.read_text())
    RESULT.write_text(
        json.dumps({**known, **found, "dagster": {**details, "machine": machine}}, indent=2) + "\n"
    )
    sys.exit(1 if any(found[name] > bar for name, bar in BARS.items()) else 0)


def _instance(home: Path, url: str) -> dg.DagsterInstance:
    folder = home / "dagster"
    folder.mkdir()
    shutil.copy(REPOSITORY / "kbq_assets/defs/home/dagster-postgres.yaml", folder / "dagster.yaml")
    os.environ["KBQ_DAGSTER_POSTGRES_URL"] = url.replace("postgresql:", "postgresql+psycopg2:")
    return dg.DagsterInstance.from_config(str(folder))


if __name__ == "__main__":
    main()
