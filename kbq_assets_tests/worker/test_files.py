"""Staged files as a task writes them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kbq_assets_tests.pipelines.bench import SETTINGS, TP, Bench


def staged_files(codec: str, folder: Path) -> list[Path]:
    """The files of two tables and three schemas, in the order of their offsets."""
    bench = Bench(SETTINGS.with_options(codec=codec))
    bench.produce(1, 3, 1, 2)
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    paths = [folder / f"{number}.avro" for number in range(len(window.files))]
    for path, file in zip(paths, window.files, strict=True):
        path.write_bytes(bench.store.get(file.path).data)
    return paths


@pytest.mark.parametrize("codec", ["snappy", "deflate", "null"])
def test_a_topics_codec_is_that_of_its_files_and_of_its_error_rows(codec: str) -> None:
    bench = Bench(SETTINGS.with_options(codec=codec))
    bench.produce(1, 3, 1, 2)
    bench.kafka.produce(TP, b"not avro", key=b"k", headers=[("h", b"1")])
    bench.extract()
    [window] = bench.commit().partitions[0].windows
    readers = [fastavro.reader(io.BytesIO(bench.store.get(file.path).data)) for file in window.files]
    rows: list[Any] = [row for reader in readers for row in reader]
    assert [reader.codec for reader in readers] == [codec] * 4
    assert sorted(row["_kafka_offset"] for row in rows) == [0, 1, 2, 3, 4]
    assert [row["headers"] for row in rows if "headers" in row] == [[{"key": "h", "value": b"1"}]]
