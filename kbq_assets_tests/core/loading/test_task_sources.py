"""Tasks of a load job share its files: each file once, in groups of one schema and hour if possible."""

from __future__ import annotations

import pytest

from kbq_assets.core.loading.task_sources import split_sources, total_bytes
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition


def staged(number: int, size: int, schema_id: int = 1, hour: int = 0, day: int = 0) -> StagedFile:
    """A file of ``size`` bytes, with rows of an hour, or of a day if it lists no hours."""
    name = StagedFileName(TopicPartition("t", 0), TableReference("d", "t"), schema_id, number, 0, "abc")
    hours = {hour: 5} if hour else {}
    dates = (day,) if day else ()
    return StagedFile(name.format(), 0, 1, 5, size, size, "", "", dates, events=BusinessTimes(hours))


@pytest.mark.parametrize(
    ("files", "groups"),
    [
        ([], []),
        ([staged(0, 5)], [[0]]),
        ([staged(0, 500), staged(1, 1)], [[0], [1]]),  # a file larger than a group
        ([staged(i, 40) for i in range(5)], [[0, 1], [2, 3], [4]]),
        ([staged(i, 50, hour=9 - i) for i in range(4)], [[3, 2], [1, 0]]),  # by hour
        ([staged(i, 50, schema_id=i % 2) for i in range(4)], [[0, 2], [1, 3]]),  # by schema
        ([staged(i, 50, day=i % 2 + 1) for i in range(4)], [[0, 2], [1, 3]]),  # by day
    ],
)
def test_files_are_grouped(files: list[StagedFile], groups: list[list[int]]) -> None:
    by_uri = {str(number): file for number, file in enumerate(files)}
    found = split_sources(list(by_uri), by_uri, 100)
    assert [[int(uri) for uri in group] for group in found] == groups


def test_the_size_of_a_job_counts_only_if_each_file_is_known() -> None:
    by_uri = {str(number): staged(number, 40) for number in range(2)}
    assert total_bytes(["0", "1"], by_uri) == 80
    assert total_bytes(["0", "1", "2"], by_uri) == total_bytes([], {}) == 0
