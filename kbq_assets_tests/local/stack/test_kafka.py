"""The broker's storage, and the time that it gets for a clean stop."""

from __future__ import annotations

from pathlib import Path

from kbq_assets.adapters.java import find_java
from kbq_assets.local.stack.kafka import Kafka
from kbq_assets_tests.fixtures.local_stack import stack_with_free_ports


def grace(home: Path, partitions: int) -> float:
    for number in range(partitions):
        folder = home / "kafka" / "data" / f"topic-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "partition.metadata").touch()
    return Kafka(home, 1, 2).grace_seconds


def test_a_broker_of_many_partitions_has_more_time_to_close_its_logs(tmp_path: Path) -> None:
    assert [grace(tmp_path, count) for count in (0, 50, 200)] == [20.0, 21.0, 24.0]


def test_kafka_formats_its_storage_in_a_folder_with_spaces_and_umlauts(tmp_path: Path) -> None:
    home = tmp_path / "a b" / "höme 数"
    stack = stack_with_free_ports(home)
    Kafka(home, 1, 2).prepare(stack.install(), find_java(tmp_path / "java"))
    assert (home / "kafka" / "data" / "meta.properties").is_file()
    assert [folder.name for folder in home.parent.iterdir()] == ["höme 数"]
