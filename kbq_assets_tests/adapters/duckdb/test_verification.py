"""A staged file that differs from the commit in any way is not loaded (PROTOCOL L11)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import duckdb
import pytest

from kbq_assets.adapters.duckdb.load import StagedFileLoader
from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.adapters.duckdb.warehouse import DuckDbWarehouse
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.loading.verification import DAMAGED
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.arrow.errors import DamagedSource, LoadError
from kbq_assets.wire.files.checksum import ChecksumReader
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, records

COLUMNS = columns_of(SCHEMA)
CODECS = ("null", "deflate", "snappy")


def entry(data: bytes) -> StagedFile:
    """The commit's entry of a file."""
    size, crc32c = ChecksumReader(io.BytesIO(data)).drain()
    path = "staging/1-a/t.0.shop.orders-v1.7.0.avro"
    return StagedFile(path, 0, 9, 9, size, size, crc32c, "f")


def damaged(data: bytes) -> Iterator[bytes]:
    """One bit flipped in every byte, and every shorter file; one byte more."""
    for place in range(len(data)):
        yield data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        yield data[:place]
    yield data + b"\0"


def _opened(data: bytes, uri: str) -> BinaryIO:
    return io.BytesIO(data)


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_and_every_truncation_is_found_before_a_row_is_inserted(codec: str) -> None:
    data = avro_file(records(range(9)), codec=codec)
    file = entry(data)
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(map(definition, COLUMNS))})")
        for each in damaged(data):
            loader = StagedFileLoader(connection, "t", COLUMNS, partial(_opened, each))
            with pytest.raises(DamagedSource, match=file.path):
                loader.load(["u"], {"u": file})
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        StagedFileLoader(connection, "t", COLUMNS, lambda uri: io.BytesIO(data)).load(["u"], {"u": file})
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(9,)]


def test_a_file_without_a_checksum_in_its_commit_is_compared_by_size() -> None:
    data = avro_file(records(range(9)), codec="null")
    file = StagedFile("staging/1-a/t.0.shop.orders-v1.7.0.avro", 0, 9, 9, len(data), 0, "", "f")
    with duckdb.connect(":memory:") as connection:
        connection.execute(f"CREATE TABLE t ({', '.join(map(definition, COLUMNS))})")
        loader = StagedFileLoader(connection, "t", COLUMNS, lambda uri: io.BytesIO(data))
        assert loader.load(["u"], {"u": file}) == 9
        with pytest.raises(LoadError):
            loader.load(["u"], {"u": entry(data[:-1])})


def test_a_job_with_one_damaged_file_of_many_shows_no_row(tmp_path: Path) -> None:
    warehouse = DuckDbWarehouse(tmp_path / "w.duckdb")
    warehouse.create_table(TABLE, COLUMNS, TableOptions())
    files = {}
    for number in range(3):
        data = avro_file(records(range(number * 9, number * 9 + 9)), codec="null")
        path = tmp_path / f"{number}.avro"
        path.write_bytes(data if number < 2 else data[:-30] + bytes([data[-30] ^ 1]) + data[-29:])
        files[path.as_uri()] = entry(data)
    job = LoadJob("j", "local", "local", TABLE, tuple(files), SCHEMA, files=files)
    warehouse.insert_job(job)
    status = warehouse.get_job("j", "local", "local")
    assert status is not None
    assert status.error is not None
    assert status.error.reason == DAMAGED
    assert warehouse.kafka_ranges(TABLE) == {}
