"""The memory of a load task does not depend on how much it reads."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg.writer import ParquetWriter
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.wire.arrow import decode, kernel, staged
from kbq_assets.wire.arrow.container import read_header
from kbq_assets.wire.arrow.staged import open_file_uri
from kbq_assets_tests.adapters.iceberg.test_warehouse import EVENT_TIME, HOUR, opened, stored
from kbq_assets_tests.contracts.warehouse import TABLE, load_job, record, schema_of

HELD = 256 << 10
#: Of four files that are read at once.
READERS = 4 << 20
#: Blocks of a file, and records of a block.
BLOCKS, ROWS = 15, 200
Block = Callable[[int], Iterator[dict[str, Any]]]
SCHEMAS = {
    "numbers": schema_of(("numbers", {"type": "array", "items": "int"}), EVENT_TIME),
    "note": schema_of(("note", "string"), EVENT_TIME),
}


def row(hour: int, **values: Any) -> dict[str, Any]:
    return record(0, event_date=hour // 24, _event_time=hour * HOUR, **values)


def hours_in_order(block: int) -> Iterator[dict[str, Any]]:
    return (row(block - (n % 50 == 0), note=f"a note of {n}") for n in range(ROWS))


def hours_at_random(block: int) -> Iterator[dict[str, Any]]:
    return (row(n * 7 % 24, note=f"a note of {n}") for n in range(ROWS))


def more_hours_than_files(block: int) -> Iterator[dict[str, Any]]:
    return (row(n % 80, note=f"a note of {n}") for n in range(ROWS))


def many_small_numbers(block: int) -> Iterator[dict[str, Any]]:
    """Each takes a byte in Avro, and 25 afterwards."""
    return (row(block // 9, numbers=[1] * 300) for n in range(ROWS // 4))


def long_texts(block: int) -> Iterator[dict[str, Any]]:
    return (row(block // 9, note=f"{n}" * 5_000) for n in range(10))


SHAPES: list[Block] = [
    hours_in_order,
    hours_at_random,
    more_hours_than_files,
    many_small_numbers,
    long_texts,
]


def avro_of(shape: Block) -> tuple[str, bytes]:
    """A file, and its schema."""
    schema = SCHEMAS["numbers" if shape is many_small_numbers else "note"]
    parts = []
    for block in range(BLOCKS):
        stream = io.BytesIO()
        fastavro.writer(
            stream, json.loads(schema), shape(block), "snappy", sync_interval=1 << 20, sync_marker=bytes(16)
        )
        parts.append(stream.getvalue())
    header = io.BytesIO(parts[0])
    read_header(header)
    return schema, parts[0] + b"".join(part[header.tell() :] for part in parts[1:])


#: The bounds of a task, a hundredth as large.
SMALL: dict[str, tuple[ModuleType, object]] = {
    "_BATCH_BYTES": (staged, 40 << 10),
    "_PAST": (decode, decode._Past(1 << 30)),
    "_STARTED_BYTES": (decode, 0),
    "_RECORDS": (decode, 100),
    "_LISTS": (decode, 100),
    "_FLAT_VALUES": (decode, 5_000),
    "_BATCH_VALUES": (kernel, 10_000),
}


@pytest.fixture
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, (module, bound) in SMALL.items():
        monkeypatch.setattr(module, name, bound)


def peak(table: Table, uris: list[str]) -> int:
    """Bytes of Arrow and Python at most."""
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    writer = ParquetWriter(table, load_job("job-1", *uris), "token", open_file_uri, HELD)
    tracemalloc.start()
    try:
        writer.write()
        assert writer.rows == sum(file.record_count for file in writer.files)
        return int(pool.max_memory()) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
        writer.discard()


@pytest.mark.thorough
@pytest.mark.usefixtures("_small_bounds")
@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_as_many_rows_take_no_more_memory(shape: Block, tmp_path: Path) -> None:
    schema, data = avro_of(shape)
    (tmp_path / "a.avro").write_bytes(data)
    lake, uri = opened(tmp_path / "lake"), (tmp_path / "a.avro").as_uri()
    lake.create_table(TABLE, columns_of(schema), TableOptions(partition_by="event_date"))
    table = stored(lake)
    peak(table, [uri])  # what is imported and remembered for good
    some, many = peak(table, [uri] * 4), peak(table, [uri] * 16)
    assert many < 1.25 * some
    assert many < READERS + 10 * HELD
