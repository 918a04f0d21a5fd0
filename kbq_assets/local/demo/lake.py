"""``kbq demo --lake``: extracts once into DuckDB and a lake, compacts the lake, reads it with ClickHouse, and
reconciles both.

Its state is in KBQ_HOME/lake, separate from that of ``kbq demo``. Both use the same broker and topics.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console

from kbq_assets.cli.context import (
    choose_warehouse,
    pass_compactor,
    pass_deployment,
    pass_extractor,
    pass_loader,
)
from kbq_assets.cli.render import number, table
from kbq_assets.core.compaction.model import ChosenFiles
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import StateError
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction.compactor import Compactor
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.extraction.extractor import Extractor
from kbq_assets.pipelines.loading.loader import Loader

DUCKDB, LAKE = WAREHOUSES = ("db", "lake")
#: Records per extraction: frequent loads create many small files in the lake.
_RUN_RECORDS: Final = 40_000
#: More extractions than the demo's topics need.
_MOST_RUNS: Final = 100
#: The files of all days, regardless of the policy.
_ALL_DAYS: Final = ChosenFiles(range(-1_000_000, 1_000_000))
_DEFAULTS: Final = f"destination: {{warehouses: [{', '.join(WAREHOUSES)}], partitioning: month}}\n"
#: Runs in a separate process, because chdb reads only files below its working folder.
_QUERY: Final = "import chdb, sys; print(chdb.query(sys.argv[1], 'CSV'))"


def lake_settings(settings: Settings) -> Settings:
    home = settings.home / "lake"
    return replace(
        settings,
        staging_url=str(home / "staging"),
        warehouse_urls=f"{DUCKDB}=duckdb:{home / 'warehouse.duckdb'},{LAKE}=iceberg:{home / 'tables'}",
        catalog=replace(settings.catalog, source_topics=home / "catalog"),
        run=replace(settings.run, run_records=_RUN_RECORDS),
    )


def copy_catalog(source: Path, target: Path) -> None:
    """Copy the demo's catalog, and send its topics to both warehouses, with monthly partitions."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    with (target / "defaults.yaml").open("a", encoding="utf-8") as file:
        file.write(_DEFAULTS)


def load_both(shown: Console) -> bool:
    """Extract and load until nothing is left. Returns whether nothing failed."""

    @pass_extractor
    def run(extractor: Extractor) -> bool:
        assert extractor.open_engines is not None
        with extractor.open_engines() as open_engine:
            for _ in range(_MOST_RUNS):
                report = extractor.extract(open_engine(extractor.deployment.settings))
                if report.stops or report.failures:
                    shown.print(f"  {report.stops or report.failures}", style="red")
                    return False
                rows = {name: _load(name) for name in WAREHOUSES}
                if not report.partitions and not any(rows.values()):
                    return True
                loaded = ", ".join(f"{number(count)} into {name}" for name, count in rows.items())
                shown.print(f"  {counted(report.totals.records, 'record')} extracted once; rows: {loaded}")
        return False

    return run()


def _load(name: str) -> int:
    choose_warehouse(name)

    @pass_loader
    def run(loader: Loader) -> int:
        return loader.load().rows

    return run()


def compact(shown: Console) -> bool:
    """Compact all tables of the lake. Returns whether nothing failed."""
    choose_warehouse(LAKE)

    @pass_compactor
    def run(compactor: Compactor) -> bool:
        reports = [compactor.compact(each, _ALL_DAYS) for each in compactor.chosen(())]
        files = table("compacted", "#files", "#files after")
        for each in reports:
            files.add_row(str(each.table), number(each.files_before), number(each.files_after))
        shown.print(files)
        return not any(each.failures or each.message for each in reports)

    return run()


def read_elsewhere(home: Path, shown: Console) -> bool:
    """Count the lake's rows with ClickHouse, and DuckDB's with DuckDB. Returns whether the counts are equal."""
    choose_warehouse(DUCKDB)

    @pass_deployment
    def run(deployment: Deployment) -> bool:
        warehouse = deployment.warehouse
        rows = {each: found.rows for each in warehouse.tables() if (found := warehouse.find_table(each))}
        if find_spec("chdb") is None:
            shown.print("  ClickHouse is not installed: pip install chdb", style="yellow")
            return True
        read = clickhouse_counts(home / "tables", rows)
        counts = table("table", "#rows in DuckDB", "#rows by ClickHouse", "#distinct offsets")
        for each, (by_clickhouse, distinct) in read.items():
            counts.add_row(str(each), number(rows[each]), number(by_clickhouse), number(distinct))
        shown.print(counts)
        return read == {each: (count, count) for each, count in rows.items()}

    return run()


def clickhouse_counts(
    folder: Path, tables: Mapping[TableReference, int]
) -> dict[TableReference, tuple[int, int]]:
    """Rows and distinct offsets of a lake's tables, as ClickHouse reads them."""
    key = "_kafka_topic, _kafka_partition, _kbq_epoch, _kafka_offset"
    queries = (
        f"SELECT {place}, count(), uniqExact({key}) FROM icebergLocal('{folder / each.dataset / each.table}')"
        for place, each in enumerate(tables)
    )
    command = [sys.executable, "-c", _QUERY, " UNION ALL ".join(queries)]
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if ran.returncode:
        raise StateError(
            f"ClickHouse does not read the lake: {ran.stderr.strip()[-500:]}",
            next_step=f"check the files below {folder}",
        )
    lines = csv.reader(ran.stdout.strip().splitlines())  # in any order
    found = {int(place): (int(rows), int(distinct)) for place, rows, distinct in lines}
    return {each: found[place] for place, each in enumerate(tables)}
