"""The cost of copying the blocks of many small files into large ones, in one process: for staged files (PROTOCOL L15)
and for backups (B10).

``python -m benchmarks.merging [KB]`` prints MB of compressed files per CPU second.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.backup.merge import merge_topic
from kbq_assets.pipelines.loading.merging import merge
from kbq_assets.pipelines.protocol import state
from kbq_assets.wire.files.checksum import checksum_of
from kbq_assets.wire.files.container import BLOCK_BYTES, ContainerWriter, FileFormat

TOTAL: int = 400 << 20
TABLE = TableReference("shop", "orders")
TP = TopicPartition("shop.orders", 0)
SCHEMA = '{"type":"record","name":"r","fields":[{"name":"x","type":"bytes"}]}'


def container(size: int) -> tuple[bytes, int]:
    """A file of a given size, and its number of records."""
    sink, rows = io.BytesIO(), 0
    writer = ContainerWriter(sink, SCHEMA, FileFormat(b"0123456789abcdef"))
    while sink.tell() < size:
        writer.write_block(os.urandom(min(BLOCK_BYTES // 2, size)), 1)  # half of a block's size: compressed
        rows += 1
    return sink.getvalue(), rows


def merge_staged(store: LocalObjectStore, data: bytes) -> Callable[[], int]:
    """Write staged files, and return the function that merges them, which returns the number of files left."""
    crc32c, files = checksum_of(data)[1], []
    for number in range(TOTAL // len(data)):
        name = StagedFileName(TP, TABLE, 1, number, 0, "bench").format()
        store.create(name, data)
        files.append(StagedFile(name, number, number + 1, 1, len(data), len(data), crc32c, "f"))
    return lambda: len(merge(store, files, 2, lambda: "copy"))


def merge_copies(store: LocalObjectStore, data: bytes, rows: int) -> Callable[[], int]:
    """The same for the files of a backup."""
    area, windows = BackupArea(store), []
    crc32c, content = checksum_of(data)[1], f"sha256:{hashlib.sha256(data).hexdigest()}"
    for number in range(TOTAL // len(data)):
        name = BackupFileName(OffsetRange(TP, number * rows, (number + 1) * rows), 1, "bench").format()
        area.create(name, data)
        file = StagedFile(
            name, number * rows, (number + 1) * rows, rows, len(data), len(data), crc32c, "", content=content
        )
        counts = Counts(positions=rows, records=rows, rows={"backup": rows})
        windows.append(Window(file.window, file.until, counts, (file,)))
    at = PartitionCommit(
        windows[-1].until, totals=sum((w.counts for w in windows), Counts()), windows=tuple(windows)
    )
    state.create_commit(area, Commit(TP.topic, 0, "c", "t", 1, {0: at}))

    def run() -> int:
        report = merge_topic(area, TP.topic, lambda: "copy")
        return report.after + len(windows) - report.before

    return run


def main(size_kb: int) -> None:
    """Copy about 400 MB in files of a given size."""
    data, rows = container(size_kb << 10)
    for kind in ("staged", "backup"):
        with tempfile.TemporaryDirectory() as folder:
            store = LocalObjectStore(Path(folder))
            run = merge_staged(store, data) if kind == "staged" else merge_copies(store, data, rows)
            before, began = time.process_time(), time.monotonic()
            left = run()
            cpu, wall = time.process_time() - before, time.monotonic() - began
        number = TOTAL // len(data)
        size = number * len(data) / 1e6
        print(
            f"{kind}: {number:,} files of {len(data) >> 10} KB became {left}: {size:.0f} MB in {wall:.1f} s,"
            f" {cpu:.2f} s of processor, {size / cpu:.0f} MB/s a core"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
