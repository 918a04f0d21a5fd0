"""A replay of error rows in a lake, killed by -9: `python -m kbq_assets_tests.crashes.error_replays_killed FOLDER NTH`.

As in replays_killed.py. Every second record is not a Confluent value, and a function repairs it. Each process routes
rows to its own table, so a record that lands twice is noticed.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.errors_replay.reparse import Selection, replay_errors
from kbq_assets_tests.crashes.probes import Point, Probe
from kbq_assets_tests.crashes.replays_killed import Campaign, Case, Home, main
from kbq_assets_tests.fakes.platform import GOOD, POISON, TOPIC

_BEFORE, _SINCE = 6, 4


def opened(folder: Path, table: str, records: int, probe: Probe | None = None) -> Home:
    """The platform, which routes rows to ``table``."""
    options = f"table={table} error_share=1"
    home = Home(folder, Case(options, options, is_lake=True), 0, probe)
    for number in range(records):
        value = POISON if number % 2 else GOOD
        home.kafka.produce(TopicPartition(TOPIC, 0), value, key=b"k", timestamp=1000)
    return home


def mend(parts: Parts) -> None:
    """Replay all error rows."""
    replay_errors(parts.operator.rejected.replay_ports, Selection(repair=lambda row: GOOD))


def prepare(folder: Path) -> None:
    """Some records are rows, some error rows."""
    opened(folder, "first", _BEFORE).cycle()


def run(folder: Path, point: Point | None) -> None:
    """Load new records, and replay all error rows; die at a point."""
    probe = Probe(point, signal.SIGKILL)
    mend(opened(folder, "second", _BEFORE + _SINCE, probe).cycle())
    (folder / "points.json").write_text(json.dumps(probe.passed))


def check(folder: Path) -> None:
    """Every record is a row once, and no error row waits."""
    for _ in range(2):
        home = opened(folder, "third", _BEFORE + _SINCE)
        parts = home.cycle()
        mend(parts)
    found = home.rows()
    offsets = sorted(offset for table, own in found.items() if table != "kbq_errors" for offset in own)
    assert offsets == list(range(_BEFORE + _SINCE)), found
    assert found["kbq_errors"] == list(range(1, _BEFORE + _SINCE, 2)), found
    reconciled = parts.reconciler.reconcile()
    assert (reconciled.findings, reconciled.totals()["errors"]) == ((), 0), reconciled


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), Campaign(prepare, run, check)))
