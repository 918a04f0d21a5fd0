"""The cost of a small unit for a worker: ``python -m benchmarks.units [--units 500] [--profile]``.

A task reads units of ten records, with two record types in turn, and writes their files to a folder. The records come
from memory, so reading from a broker is not included.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from benchmarks.records import KINDS, avro_values
from benchmarks.wire import chunk_of
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, starting_at
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.warm import warm_up
from kbq_assets.worker.unit import WorkerPorts, extract_units
from kbq_assets_tests.fakes.registry import FakeRegistry

RECORDS, PARTITIONS = 10, 64
TOPIC = "scale.stream-000.v1"


class Kept(FakeRegistry):
    """A registry that caches its schemas, as a process does."""

    schema = lru_cache(FakeRegistry.schema)


class Canned:
    """A source whose ranges all have the same records."""

    def __init__(self) -> None:
        self._chunk = chunk_of(avro_values(KINDS[0], RECORDS, (1, 2)))

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """All records at once."""
        yield RecordBatch(self._chunk, RECORDS, 0)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--units", type=int, default=500)
    arguments.add_argument("--profile", action="store_true")
    options = arguments.parse_args()
    warm_up()
    [entry] = parse_source_list(f"{TOPIC} dataset=sales route=record_name event_date=ts\n", "sources")
    with tempfile.TemporaryDirectory(prefix="kbq-units-") as folder:
        store = LocalObjectStore(Path(folder))
        for shard in sorted({shard_of(p) for p in range(PARTITIONS)}):
            held = {p: starting_at(0, 0) for p in range(PARTITIONS) if shard_of(p) == shard}
            commit = Commit(TOPIC, shard, "bench-cluster-0000000", "0" * 22, 1, held)
            store.create(commit_path(TOPIC, shard), codec.dumps(commit))
        schemas = {n: json.dumps({**KINDS[0].schema, "name": f"Event{n}"}) for n in (1, 2)}
        ports = WorkerPorts(store, Canned(), Kept(schemas), SystemClock(), written_schemas=set())
        units = [
            Unit(OffsetRange(TopicPartition(TOPIC, n % PARTITIONS), 0, RECORDS), 1, entry.settings)
            for n in range(options.units)
        ]
        list(extract_units(units[:2], ports))
        profile = cProfile.Profile(time.process_time)
        if options.profile:
            profile.enable()
        before = os.times()
        outcomes = list(extract_units(units, ports))
        after = os.times()
        profile.disable()
    assert all(len(o.windows) == 1 and len(o.windows[0].files) == 2 for o in outcomes), outcomes[0]
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        pstats.Stats(profile).sort_stats("cumtime").print_stats(70)
    user, system = (1000 * (after[n] - before[n]) / len(units) for n in (0, 1))
    print(f"{user + system:.2f} ms of processor time a unit, {system:.2f} of them the kernel's")


if __name__ == "__main__":
    main()
