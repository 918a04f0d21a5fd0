"""Names of backup files and of the backup's state."""

from __future__ import annotations

import pytest

from kbq_assets.core.backup.backup_names import STATE, BackupFileName, state_path
from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

NAME = BackupFileName(OffsetRange(TopicPartition("shop.orders.v1", 3), 4200, 10_000), 2, "9f2c")
PATH = "backup/shop.orders.v1/9f2c/2_3_00000000000000004200_00000000000000009999.avro"


def test_a_name_has_topic_epoch_partition_first_and_last_offset() -> None:
    assert NAME.format() == PATH
    assert BackupFileName.parse(PATH) == NAME


def test_names_of_one_attempt_sort_by_offset() -> None:
    tp = TopicPartition("t", 0)
    first = [0, 9, 10, 99, 100, 10**12, 2**62]
    paths = [BackupFileName(OffsetRange(tp, n, n + 1), 1, "a").format() for n in first]
    assert paths == sorted(paths)
    assert [BackupFileName.parse(path).range.from_offset for path in paths] == first


@pytest.mark.parametrize(
    "path",
    [
        "staging/1-a/t.0.d.t.1.0.avro",
        "backup/t/a/1_0_0_1.avro",
        PATH.replace(".avro", ".json"),
        PATH.replace("shop.orders.v1/", ""),
        PATH.replace("/9f2c", "/"),
        PATH.replace("2_3", "2_x"),
        PATH.replace("9999.avro", "4199.avro"),
        PATH.replace("shop.orders.v1", "@"),
        state_path(commit_path("t")),
    ],
)
def test_other_names_are_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        BackupFileName.parse(path)


def test_state_lies_where_no_topic_can() -> None:
    assert state_path("commits/t.json") == "backup/@/commits/t.json"
    with pytest.raises(InvalidName):
        BackupFileName(OffsetRange(TopicPartition("@", 0), 0, 1), 1, "a").format()
    assert STATE < "backup/A"
