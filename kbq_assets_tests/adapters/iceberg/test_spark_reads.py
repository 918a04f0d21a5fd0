"""Spark's own Parquet reader reads the files in a table's metadata: rows as loaded, and as compacted."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.compaction.model import DAY_MS, ChosenFiles, CompactionRule
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.pipelines.compaction.table import TableCompaction
from kbq_assets_tests.adapters.iceberg.test_compaction import TIMES, Lake
from kbq_assets_tests.contracts.warehouse import schema_of

DAY = 19_000
HOUR_US = 3_600_000_000
ITEM = {"type": "record", "name": "item", "fields": [{"name": "sku", "type": ["null", "string"]}]}
FIELDS: tuple[tuple[str, Any], ...] = (
    ("id", "long"),
    ("note", ["null", "string"]),
    ("items", {"type": "array", "items": ITEM}),
    ("counts", {"type": "map", "values": "int"}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("raw", "bytes"),
    ("ratio", "double"),
    ("flag", "boolean"),
    ("day", {"type": "int", "logicalType": "date"}),
    ("wall", {"type": "long", "logicalType": "local-timestamp-micros"}),
    TIMES,
)
#: Reads the files that its arguments name, and writes their rows.
PROGRAM = """
import json, pickle, sys
from pathlib import Path
from pyspark.sql import SparkSession
from kbq_assets.adapters.spark.session import prepare_environment
from kbq_assets.core.config.parts import SparkSettings

home, paths = Path(sys.argv[1]), json.loads(sys.argv[2])
prepare_environment(SparkSettings("local[1]"), home)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
rows = session.read.option("mergeSchema", "true").parquet(*paths).collect()
(home / "rows").write_bytes(pickle.dumps([row.asDict(recursive=True) for row in rows]))
"""


def row(offset: int, hour: int) -> dict[str, Any]:
    """A record's fields."""
    return {
        "note": None if offset % 2 else "ünï",
        "items": [{"sku": None}, {"sku": "x"}][: offset % 3],
        "counts": {"a": offset},
        "price": b"\x01\x00",
        "raw": b"\x00\xff",
        "ratio": offset / 4,
        "flag": offset % 2 == 0,
        "day": DAY + offset,
        "wall": DAY * 24 * HOUR_US + offset,
        "event_date": DAY,
        "_event_time": (DAY * 24 + hour) * HOUR_US + offset,
    }


def by_offset(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Rows by offset, from any reader."""
    return {each["_kafka_offset"]: {name: plain(value) for name, value in each.items()} for each in rows}


def plain(value: object) -> object:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


def read_by_spark(folder: Path, paths: list[str]) -> dict[int, dict[str, Any]]:
    command = [sys.executable, "-c", PROGRAM, str(folder), json.dumps(paths)]
    environ = {**os.environ, "TZ": "UTC"}  # of naive times
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return by_offset(pickle.loads((folder / "rows").read_bytes()))


@pytest.mark.slow
def test_spark_reads_files_of_hours_and_of_whole_days_with_all_types(tmp_path: Path) -> None:
    lake = Lake(tmp_path, schema_of(*FIELDS))
    for offset in range(4):
        lake.load(offset, **row(offset, offset % 2))
    rule = CompactionRule(days_after_ms=1)
    later = (DAY + 2) * DAY_MS
    compaction = TableCompaction(
        lake.compaction, lake.reference, lambda: later, pytest.fail, ChosenFiles({DAY}), lambda: rule
    )
    assert compaction.run().files_after == 1
    lake.schema = schema_of(*FIELDS, ("late", ["null", "double"]))
    lake.warehouse.update_columns(lake.reference, columns_of(lake.schema))
    for offset in (4, 5):
        lake.load(offset, **row(offset, offset % 2), late=1.5)
    paths = [str(task.file.file_path) for task in lake.table.scan().plan_files()]
    assert len(paths) == 3
    found = read_by_spark(tmp_path, paths)
    assert found == by_offset(lake.table.scan().to_arrow().to_pylist())
    assert [(found[n]["note"], found[n]["late"]) for n in (0, 5)] == [("ünï", None), (None, 1.5)]
    assert (found[3]["price"], found[3]["day"]) == (Decimal("2.56"), date(1970, 1, 1) + timedelta(DAY + 3))
    assert found[3]["_event_time"] == datetime(2022, 1, 8, 1, 0, 0, 3)
    assert found[1]["items"] == [{"sku": None}]
    assert found[1]["counts"] == [{"key": "a", "value": 1}]
