"""The cost of a run's events in Dagster: ``make bench-events``.

Nothing is read from Kafka. Through the product's own steps, a run reports that 1,000 or 10,000 partitions changed, into
SQLite or a separate Postgres. It does so as automation (`extract_job`) and as backfills of all partitions, one per
topic, which Dagster plans first. Each measurement is a separate process. Seconds are wall time; CPU seconds are those
of the run's process without the database's. ``load_before`` is the machine's load at the start. Results are written to
``benchmarks/results/dagster_events.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

from benchmarks.measure import REPOSITORY
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Adapters, Parts
from kbq_assets.defs.events import BATCH_SIZE, BATCH_VARIABLE
from kbq_assets.defs.extraction.engine import ENGINE
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.extraction.ports import ExtractionReport, PartitionReport
from kbq_assets_tests.fakes.platform import with_ports

RESULT = REPOSITORY / "benchmarks" / "results" / "dagster_events.json"
POSTGRES_BIN = Path("/usr/lib/postgresql/15/bin")
#: The limit in the design, for 10,000 changed partitions in one run on Postgres.
BAR_SECONDS = 600.0
ROWS = 1000
PARTITIONS_PER_TOPIC = 50


@dataclass(frozen=True)
class Changed(Extractor):
    """An extractor that reports ``count`` changed partitions, each with a file."""

    count: int = 0

    def extract(self, *args: Any, **kwargs: Any) -> ExtractionReport:
        """Return only the report."""
        partitions = tuple(_partition(number) for number in range(self.count))
        return ExtractionReport(ExtractionPlan(), partitions, (), {}, 0, 60.0)


def _topic_partition(number: int) -> TopicPartition:
    topic, partition = divmod(number, PARTITIONS_PER_TOPIC)
    return TopicPartition(f"shop.orders-{topic}.v1", partition)


def _partition(number: int) -> PartitionReport:
    tp = _topic_partition(number)
    path = f"staging/1-0123456789abcdef/{tp.topic}.{tp.partition}.sales.orders_{number // 50}.17.4200.avro"
    file = StagedFile(path, 4200, 4200 + ROWS, ROWS, 50_000, 90_000, "AAAAAA==", "f" * 64, (20_000,), 1)
    counts = Counts(positions=ROWS, records=ROWS, bytes=90_000, rows={str(file.table): ROWS})
    return PartitionReport(tp, 4200, 4200 + ROWS, counts, 1, (file,))


def measure(how: str, count: int, home: Path) -> dict[str, float]:
    """One run in this process, on the Dagster instance of ``home``."""
    definitions = _definitions(count, home)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        if how == "backfill":
            seconds, cpu = _timed(lambda: _backfill(definitions, instance))
        else:
            seconds, cpu = _timed(lambda: _run(definitions, "extract_job", instance))
        assert len(_materialized(instance)) == count
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}


def _definitions(count: int, home: Path) -> dg.Definitions:
    sources = home / "topics.txt"
    sources.write_text("\n".join(sorted({_topic_partition(n).topic for n in range(count)})))
    settings = parse_settings(
        {"KBQ_HOME": str(home / "kbq"), "KBQ_SOURCE_TOPICS": str(sources), "KBQ_PARTITION_EVENTS": str(count)}
    )
    nothing: Any = None  # no engine is opened
    store = LocalObjectStore(home / "staging")
    parts = with_ports(Parts(Adapters(settings)), store=lambda: store, load_store=lambda: store)
    parts.__dict__["extractor"] = Changed(parts.deployment, nothing, count)
    return parts.definitions(resources={ENGINE: dg.ResourceDefinition.hardcoded_resource(None)})


def _run(definitions: dg.Definitions, job: str, instance: dg.DagsterInstance) -> None:
    assert definitions.resolve_job_def(job).execute_in_process(instance=instance).success


def _materialized(instance: dg.DagsterInstance) -> set[str]:
    """The partition keys of all topics that have an event."""
    staged = (key for key in instance.get_asset_keys() if key.path[0] == "staged")
    return {partition for key in staged for partition in instance.get_materialized_partitions(key)}


def _backfill(definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
    """Do the same as a backfill's run: a range of one topic's keys, whose events are planned before it starts."""
    topic = _topic_partition(0).topic
    keys = list(instance.get_dynamic_partitions(f"staged/{topic}"))
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[-1]}
    assets = [a for a in definitions.assets or () if isinstance(a, dg.AssetsDefinition | dg.AssetSpec)]
    resources = dict(definitions.resources or {})
    ran = dg.materialize(
        assets, selection=[dg.AssetKey(["staged", topic])], instance=instance, resources=resources, tags=tags
    )
    assert ran.success


def _timed(call: Any) -> tuple[float, float]:
    before, started = _cpu(), time.monotonic()
    call()
    return time.monotonic() - started, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def sqlite(work: Path) -> Iterator[tuple[str, Any]]:
    """A Dagster home on SQLite, and its size in bytes."""
    yield (
        "telemetry: {enabled: false}\n",
        lambda: sum(p.stat().st_size for p in (work / "home").rglob("*.db*") if p.is_file()),
    )


@contextmanager
def postgres(work: Path) -> Iterator[tuple[str, Any]]:
    """A separate Postgres, and its database's size. Postgres refuses to run as root, so then it runs as user
    postgres."""
    data, port = work / "postgres", "45432"
    data.mkdir()
    as_postgres = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_postgres:
        shutil.chown(data, "postgres", "postgres")
        work.chmod(0o755)

    def run(program: str, *options: str) -> str:
        command = [*as_postgres, str(POSTGRES_BIN / program), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=data).stdout

    run("initdb", "-D", str(data), "-U", "kbq", "-A", "trust")
    listen = f"-p {port} -c listen_addresses=127.0.0.1 -k {data}"
    run("pg_ctl", "-D", str(data), "-w", "-l", str(data / "log"), "-o", listen, "start")
    try:
        run("createdb", "-h", "127.0.0.1", "-p", port, "-U", "kbq", "dagster")
        query = [
            "-h",
            "127.0.0.1",
            "-p",
            port,
            "-U",
            "kbq",
            "-Atc",
            "SELECT pg_database_size('dagster')",
            "dagster",
        ]
        url = f"postgresql+psycopg2://kbq@127.0.0.1:{port}/dagster"
        yield (
            f"telemetry: {{enabled: false}}\nstorage: {{postgres: {{postgres_url: '{url}'}}}}\n",
            lambda: int(run("psql", *query)),
        )
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")


HOW = ["automated", "backfill"]
DATABASES = {"sqlite": sqlite, "postgres": postgres}


def measured(database: str, how: str, count: int) -> dict[str, Any]:
    """One measurement, in a separate process and database."""
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="kbq-events-") as folder:
        work = Path(folder)
        home = work / "home"
        home.mkdir()
        with DATABASES[database](work) as (configuration, size):
            (home / "dagster.yaml").write_text(configuration)
            _one("automated", count, home)  # registers the keys, which is not part of a usual run's cost
            before = size()
            found = _one(how, count, home)
            megabytes = round((size() - before) / 1e6, 1)
    result = {
        "database": database,
        "how": how,
        "partitions": count,
        **found,
        "megabytes": megabytes,
        "load_before": load,
    }
    print(json.dumps(result), flush=True)
    return result


def _one(how: str, count: int, home: Path) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.dagster_events", "--one", how]
    ran = subprocess.run(
        [*command, "--counts", str(count), "--home", str(home)],
        env={BATCH_VARIABLE: BATCH_SIZE, **os.environ},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(ran.stderr[-2000:])
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """All measurements, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", choices=HOW, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--databases", nargs="+", choices=list(DATABASES), default=list(DATABASES))
    parser.add_argument("--how", nargs="+", choices=HOW, default=HOW)
    parser.add_argument("--result", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.counts[0], options.home)))
        return
    results = [
        measured(database, how, count)
        for database in options.databases
        for count in options.counts
        for how in options.how
    ]
    keep(results, options.result)
    slow = [r for r in results if r["database"] == "postgres" and r["seconds"] > BAR_SECONDS]
    sys.exit(1 if slow else 0)


def keep(results: list[dict[str, Any]], path: Path) -> None:
    """Write results, and keep those of other measurements."""
    old = json.loads(path.read_text())["results"] if path.exists() else []
    found = {(r["database"], r["partitions"], r["how"]): r for r in (*old, *results)}
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "dagster": dg.__version__}
    text = json.dumps({"machine": machine, "results": [found[key] for key in sorted(found)]}, indent=1)
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
