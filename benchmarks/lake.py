"""The cost of converting staged Avro to Parquet files of an Iceberg table, in one process.

``python -m benchmarks.lake [flat|nested|union]`` prints MB of Avro (before compression) per CPU second, and the largest
resident memory.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fastavro

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.connect import embedded
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets.worker.engines import open_writer

ROWS, FILES = 100_000, 10
TABLE = TableReference("shop", "orders")
_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_POSITIONS: list[dict[str, Any]] = [
    {"name": "_kafka_topic", "type": "string"},
    {"name": "_kafka_partition", "type": "int"},
    {"name": "_kafka_offset", "type": "long"},
    {"name": "_kafka_timestamp", "type": _MICROS},
    {"name": "_kbq_epoch", "type": "int"},
    {"name": "_event_time", "type": _MICROS},
    {"name": "event_date", "type": {"type": "int", "logicalType": "date"}},
]
_FLAT: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "user", "type": "string"},
    {"name": "category", "type": ["null", "string"]},
    {"name": "price", "type": "double"},
    {"name": "note", "type": "string"},
]
_ITEM = {"type": "record", "name": "item", "fields": [{"name": "sku", "type": "string"}]}
_UNION = [*_FLAT, {"name": "items", "type": {"type": "array", "items": ["long", "string", _ITEM]}}]
_NESTED = [*_FLAT, {"name": "items", "type": {"type": "array", "items": _ITEM}}]


def _rows(kind: str, first: int) -> Any:
    hour = 3_600_000_000
    for number in range(first, first + ROWS):
        row = {
            "id": number,
            "user": f"user-{number % 5000:08}",
            "category": None if number % 3 else f"category {number % 40}",
            "price": number / 7,
            "note": f"a text of some length, as people write it, number {number} " * 3,
            "_kafka_topic": "shop.orders",
            "_kafka_partition": 0,
            "_kafka_offset": number,
            "_kafka_timestamp": number,
            "_kbq_epoch": 0,
            "_event_time": (number % 3) * hour,
            "event_date": 0,
        }
        if kind == "nested":
            row["items"] = [{"sku": f"sku-{number % 900}"}, {"sku": "other"}]
        if kind == "union":
            row["items"] = [{"sku": f"sku-{number % 900}"}, "other", number]
        yield row


def _schema(kind: str) -> str:
    fields = [*{"nested": _NESTED, "union": _UNION}.get(kind, _FLAT), *_POSITIONS]
    return json.dumps({"type": "record", "name": "r", "fields": fields})


def generate(kind: str, folder: Path) -> None:
    """Write the staged files in a separate process, so that its memory does not count for the load."""
    for number in range(FILES):
        with (folder / f"{number}.avro").open("wb") as stream:
            rows = _rows(kind, number * ROWS)
            fastavro.writer(stream, json.loads(_schema(kind)), rows, codec="null", sync_interval=1 << 18)


def main(kind: str) -> None:
    """Load the files, after a first one for which numba compiles."""
    schema = _schema(kind)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "benchmarks.lake", kind, name], check=True)
        files = sorted(folder.glob("*.avro"))
        uris, size = [path.as_uri() for path in files], sum(path.stat().st_size for path in files)
        lake = IcebergWarehouse(*embedded(LakeAddress(folder / "lake"), folder))
        lake.create_table(TABLE, columns_of(schema), TableOptions())
        lake.insert_job(LoadJob("warm-1", "local", "local", TABLE, tuple(uris[:1]), schema))
        before, began = time.process_time(), time.monotonic()
        lake.insert_job(LoadJob("job-1", "local", "local", TABLE, tuple(uris), schema))
        cpu, wall = time.process_time() - before, time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(
        f"{kind}: {size / 1e6:.0f} MB of Avro, {ROWS * FILES:,} rows in {wall:.1f} s, {cpu:.1f} s of processor:"
        f" {size / 1e6 / cpu:.0f} MB/s a core, {peak:.0f} MB at most"
    )


def on_spark(source: Path, folder: Path, kind: str) -> None:
    """One load job with all files of a folder, written in Spark tasks."""
    settings = parse_settings(
        {
            "KBQ_HOME": os.environ["KBQ_HOME"],
            "KBQ_WAREHOUSE": f"iceberg:{folder}",
            "KBQ_SPARK_MASTER": "local[2]",
        }
    )
    schema = _schema(kind)
    files = {path.as_uri(): _entry(number, path) for number, path in enumerate(sorted(source.glob("*.avro")))}
    lake = IcebergWarehouse(*embedded(LakeAddress(folder), folder))
    lake.create_table(TABLE, columns_of(schema), TableOptions())
    with open_writer(settings) as tasks:
        by_tasks = lake.by_tasks(tasks, 1)
        by_tasks.insert_job(LoadJob("job-1", "local", "local", TABLE, tuple(files), schema, files=files))
    status = lake.get_job("job-1", "local", "local", TABLE)
    if status is None or status.error or status.output_rows != len(files) * ROWS:
        raise RuntimeError(f"not loaded: {status}")


def _entry(number: int, path: Path) -> StagedFile:
    """The commit's entry for a file, with its checksum, which tasks verify."""
    name = StagedFileName(TopicPartition("shop.orders", 0), TABLE, 1, number * ROWS, 0, "bench").format()
    with path.open("rb") as stream:
        size, crc32c = ChecksumReader(stream).drain()
    return StagedFile(name, number * ROWS, (number + 1) * ROWS, ROWS, size, size, crc32c, "f")


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        on_spark(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    elif len(sys.argv) > 2:
        generate(sys.argv[1], Path(sys.argv[2]))
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "flat")
