"""The time that a broker gets for a clean stop."""

from __future__ import annotations

from pathlib import Path

from kbq_assets.local.stack.kafka import Kafka


def grace(home: Path, partitions: int) -> float:
    for number in range(partitions):
        folder = home / "kafka" / "data" / f"topic-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "partition.metadata").touch()
    return Kafka(home, 1, 2).grace_seconds


def test_a_broker_of_many_partitions_has_more_time_to_close_its_logs(tmp_path: Path) -> None:
    assert [grace(tmp_path, count) for count in (0, 50, 200)] == [20.0, 21.0, 24.0]
