"""What it costs to copy the blocks of many small staged files into large ones (PROTOCOL L15), in one process.

``python -m benchmarks.merging [KB]`` prints MB of staged files (compressed) per second of processor time.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from pathlib import Path

from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.loading.merging import merge
from kbq_assets.wire.files.checksum import checksum_of
from kbq_assets.wire.files.container import BLOCK_BYTES, ContainerWriter, FileFormat

TOTAL: int = 400 << 20
TABLE = TableReference("shop", "orders")
SCHEMA = '{"type":"record","name":"r","fields":[{"name":"x","type":"bytes"}]}'


def main(size_kb: int) -> None:
    """Copy some 400 MB of files of this size."""
    sink, size = io.BytesIO(), size_kb << 10
    writer = ContainerWriter(sink, SCHEMA, FileFormat(b"0123456789abcdef"))
    while sink.tell() < size:
        writer.write_block(os.urandom(min(BLOCK_BYTES // 2, size)), 1)  # half of a block's size: compressed
    data = sink.getvalue()
    crc32c = checksum_of(data)[1]
    with tempfile.TemporaryDirectory() as folder:
        store, files = LocalObjectStore(Path(folder)), []
        for number in range(TOTAL // len(data)):
            name = StagedFileName(TopicPartition("shop.orders", 0), TABLE, 1, number, 0, "bench").format()
            store.create(name, data)
            files.append(StagedFile(name, number, number + 1, 1, len(data), len(data), crc32c, "f"))
        before, began = time.process_time(), time.monotonic()
        merged = merge(store, files, 2, lambda: "copy")
        cpu, wall = time.process_time() - before, time.monotonic() - began
        copied = sum(each.file.bytes for each in merged)
    print(
        f"{len(files):,} files of {len(data) >> 10} KB became {len(merged)}: {copied / 1e6:.0f} MB in {wall:.1f} s,"
        f" {cpu:.2f} s of processor, {copied / 1e6 / cpu:.0f} MB/s a core"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
