"""The cost of a commit's swap while windows wait, with 64 partitions and 50 tables: ``make bench-swaps``.

Each swap works as in the publisher: read the head, add a window for each partition, write. The CPU time is the mean of
all swaps, including those that merge manifests. Results are written to ``benchmarks/results/scale.json``.
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.publish import RESULT
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import MANIFESTS, StagedFileName, TableReference, commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

TOPIC, PARTITIONS, TABLES, RECORDS = "shop.orders", 64, 50, 1_000
PATH = commit_path(TOPIC)


class Counting(FaultyMemoryStore):
    """A store that counts the bytes of manifests."""

    written = 0

    def create(self, path: str, data: bytes) -> int:
        self.written += len(data) if path.startswith(MANIFESTS) else 0
        return super().create(path, data)


def _window(partition: int, number: int) -> Window:
    table = TableReference("sales", f"orders_of_kind_{number % TABLES:02}")
    first = number * RECORDS
    name = StagedFileName(TopicPartition(TOPIC, partition), table, 1, first, 1, "0123456789abcdef")
    file = StagedFile(
        name.format(), first, first + RECORDS, RECORDS, 90_000, 450_000, "AAAAAA==", "0" * 16, (19_675,)
    )
    return Window(
        first, first + RECORDS, Counts(RECORDS, RECORDS, 450_000, rows={str(table): RECORDS}), (file,)
    )


def _publish(store: Counting, number: int) -> float:
    """CPU seconds of one swap with a window for each partition."""
    windows = [_window(partition, number) for partition in range(PARTITIONS)]
    began = time.process_time()
    head = state.read_head(store, PATH)
    wanted = head.value
    for partition, window in enumerate(windows):
        wanted = commits.publish(wanted, partition, 1, [window])
    state.swap(store, head, wanted)
    return time.process_time() - began


def measure(numbers: list[int]) -> list[dict[str, float]]:
    """Measure swaps until the given number of windows waits in each partition."""
    store, found, seconds = Counting(), [], [0.0]
    state.create_commit(
        store, Commit(TOPIC, 0, "c", "t", 1, {n: PartitionCommit(0) for n in range(PARTITIONS)})
    )
    for number in range(max(numbers)):
        seconds.append(_publish(store, number))
        if number + 1 in numbers:
            head = store.get(PATH).data
            entries = codec.loads(Commit, head, PATH).manifests
            found.append({
                "windows": number + 1,
                "swap_kb": round(len(head) / 1024, 1),
                "manifests": len(entries),
                "written_per_byte": round(store.written / sum(e.bytes for e in entries), 2),
                "cpu_ms": round(sum(seconds) * 1000 / (number + 1), 1),
                "worst_cpu_ms": round(max(seconds) * 1000, 1),
            })  # fmt: skip
            print(found[-1], flush=True)
    return found


def main() -> None:
    """Measure 288 windows and the given number, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10_000)
    most = parser.parse_args().windows
    day, last = measure([288, most])
    known = json.loads(RESULT.read_text())
    kept = {
        "swap_kb_at_288_windows": day["swap_kb"],
        "swap_cpu_ms_at_288_windows": day["cpu_ms"],
        f"swap_kb_at_{most}_windows": last["swap_kb"],
        f"swap_cpu_ms_at_{most}_windows": last["cpu_ms"],
    }
    RESULT.write_text(json.dumps({**known, **kept}, indent=2) + "\n")


if __name__ == "__main__":
    main()
