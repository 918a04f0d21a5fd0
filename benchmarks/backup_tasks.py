"""CPU time of an extraction task that writes a backup, and of a task that reads one, as multiples of the same task
without a backup, on one core.

``python -m benchmarks.backup_tasks [--rounds 5]``. Kafka's batches come from memory, so unpacking them counts, but the
network does not. In a real run, both ratios are therefore lower; `benchmarks.backup` measures those. Values are those
of the extraction benchmarks. Files are written to a folder.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.records import KINDS, MILLIS, RecordKind, avro_values
from kbq_assets.adapters.backup import BackupLog, BackupSource
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.kafka.fetch.record_batches import WantedOffsets, deliver, survey
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.config.backup import ZSTD_LEVEL
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.commits import Commit, starting_at
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.chunk import RawRecord
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.warm import warm_up
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.unit import WorkerPorts, extract_unit
from kbq_assets_tests.adapters.kafka.fetch.wires import batch
from kbq_assets_tests.fakes.registry import FakeRegistry

RECORDS, BATCH = 400_000, 1_000
TP = TopicPartition("shop.events.clicks", 0)


class Batches:
    """A `RecordSource` over encoded record batches."""

    def __init__(self, values: list[bytes], codec: str) -> None:
        many = [values[n % len(values)] for n in range(BATCH)]
        self._data = [
            batch(
                [RawRecord(v, first + i, MILLIS + i, b"key %d" % i) for i, v in enumerate(many)], codec=codec
            )
            for first in range(0, RECORDS, BATCH)
        ]

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """All records of a partition."""
        for start in range(0, len(self._data), 40):
            joined = b"".join(self._data[start : start + 40])
            data = np.frombuffer(bytearray(joined + bytes(8)), np.uint8)
            wanted = WantedOffsets(0, RECORDS, options.keys, options.headers, 40_000, 1 << 28)
            heads = survey(data, 0, len(joined))
            for found in deliver(heads, wanted, np.zeros((0, 2), np.int64), data):
                yield RecordBatch(found.chunk, found.position, found.record_epoch)


def seconds(unit: Unit, ports: WorkerPorts) -> tuple[float, BackupLog]:
    """CPU seconds of one unit, and the backup that it wrote."""
    started = time.process_time()
    outcome = extract_unit(unit, ports)
    took = time.process_time() - started
    assert outcome.windows[-1].until == RECORDS, outcome
    assert sum(window.counts.records for window in outcome.windows) == RECORDS, outcome
    assert not unit.backup_epoch or (outcome.backup is not None and outcome.backup_follows)
    copies = outcome.backup.windows if outcome.backup else ()
    return took, BackupLog(tuple(file for window in copies for file in window.files))


def measure(kind: RecordKind, codec: str, rounds: int, backup_codec: Codec, level: int) -> dict[str, Any]:
    """The best of several rounds without a backup, with one, and from one."""
    source = Batches(avro_values(kind, 2_000), codec)
    settings = TopicSettings.of(dataset="d", table="clicks", backup="true")
    unit = Unit(OffsetRange(TP, 0, RECORDS), 1, settings)
    best = dict.fromkeys(("without", "with", "from"), math.inf)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            store = LocalObjectStore(Path(folder))
            commit = Commit(TP.topic, 0, "c", "t", 1, {0: starting_at(0, -1)})
            state.create_commit(store, commit)
            ports = WorkerPorts(
                store, source, FakeRegistry({1: json.dumps(kind.schema)}), SystemClock(),
                backup=lambda topic, store=store: BackupPlace(store, backup_codec, level),
            )  # fmt: skip
            without, _ = seconds(unit, ports)
            with_, log = seconds(replace(unit, backup_epoch=1), ports)
            from_, _ = seconds(unit, replace(ports, source=BackupSource(store, {TP: log})))
            took = {"without": without, "with": with_, "from": from_}
            best = {name: min(best[name], took[name]) for name in best}
    size = sum(file.bytes for file in log.files) / RECORDS
    return {"records": kind.name, "codec": codec, "bytes": size, **best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codec", default="zstandard", choices=get_args(Codec), help="of the backup")
    parser.add_argument("--level", type=int, default=ZSTD_LEVEL, help="of zstandard")
    options = parser.parse_args()
    warm_up()
    for kind in KINDS:
        for codec in ("none", "lz4"):
            found = measure(kind, codec, options.rounds, options.codec, options.level)
            print(
                f"{found['records']:>8} {codec:>5}: {found['without']:.2f} s without, {found['with']:.2f} s with a"
                f" backup ({found['with'] / found['without']:.2f}) of {found['bytes']:.0f} bytes a record,"
                f" {found['from']:.2f} s from it ({found['from'] / found['without']:.2f})"
            )


if __name__ == "__main__":
    main()
