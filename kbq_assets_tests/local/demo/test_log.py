"""The producers' log is compact, and says for each offset what was produced."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.errors import CorruptState, UnsupportedFormat
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.local.demo.log import (
    FILE_NAME,
    PartitionLog,
    ProducersLog,
    TopicLog,
    Totals,
    expected_outcomes,
)

OUTCOMES = st.sampled_from(["row:a.b", "row:a.c", "error", "skip"])
RECORDS = st.lists(st.tuples(st.integers(1, 3), OUTCOMES)).map(
    lambda steps: {sum(gap for gap, _ in steps[: i + 1]) - 1: outcome for i, (_, outcome) in enumerate(steps)}
)


def logged(records: dict[int, str]) -> PartitionLog:
    log = PartitionLog()
    for offset, outcome in records.items():
        log.add(offset, outcome)
    return log


@given(RECORDS)
def test_a_partition_gives_back_what_was_added(records: dict[int, str]) -> None:
    log = logged(records)
    assert log.outcomes() == records
    assert (log.records, log.end) == (len(records), max(records, default=-1) + 1)


@given(st.dictionaries(st.integers(0, 3), RECORDS))
def test_a_log_survives_the_file(partitions: dict[int, dict[int, str]]) -> None:
    topic = TopicLog("id", 7, True, {p: logged(records) for p, records in partitions.items()})
    log = ProducersLog("cluster", {"t.v1": topic})
    found = reloaded(log)
    assert found == log
    assert {p: found.expected("t.v1", p) for p in partitions} == partitions


def reloaded(log: ProducersLog) -> ProducersLog:
    with tempfile.TemporaryDirectory() as folder:
        log.save(Path(folder) / FILE_NAME)
        return ProducersLog.load(Path(folder) / FILE_NAME)


def test_neighbours_of_one_outcome_are_one_range() -> None:
    log = logged({**dict.fromkeys(range(100_000), "row:a.b"), 100_000: "error", 100_002: "error"})
    assert log.ranges == [(0, 100_000, "row:a.b"), (100_000, 100_001, "error"), (100_002, 100_003, "error")]


def test_an_offset_that_goes_back_is_refused() -> None:
    with pytest.raises(ValueError, match="not higher"):
        logged({5: "error", 3: "error"})


def test_totals_add_up() -> None:
    topic = TopicLog(
        "id", 4, True, {0: logged({0: "row:a.b", 1: "error"}), 1: logged({0: "skip", 9: "row:a.c"})}
    )
    assert topic.totals == Totals(produced=4, rows=2, errors=1, skipped=1)
    assert topic.totals + Totals(1, 1) == Totals(5, 3, 1, 1)
    assert ProducersLog("c", {"t": topic}).totals() == {"t": topic.totals}


def test_the_log_speaks_only_of_topics_it_has_in_full(tmp_path: Path) -> None:
    partitions = {0: logged({0: "error"})}
    topics = {"whole": TopicLog("a", 1, True, partitions), "begun": TopicLog("b", 2, False, partitions)}
    ProducersLog("c", topics).save(tmp_path / FILE_NAME)
    expected = expected_outcomes(tmp_path)
    assert expected(TopicPartition("whole", 0)) == {0: "error"}
    assert expected(TopicPartition("whole", 1)) == {}
    assert expected(TopicPartition("begun", 0)) is None
    assert expected(TopicPartition("other", 0)) is None


def test_without_a_file_the_log_is_empty(tmp_path: Path) -> None:
    assert ProducersLog.load(tmp_path / "missing.json") == ProducersLog()
    assert expected_outcomes(tmp_path)(TopicPartition("t", 0)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "topics": {"t": {}}}'])
def test_a_damaged_file_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CorruptState, match=FILE_NAME):
        ProducersLog.load(tmp_path / FILE_NAME)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({"format": 2}))
    with pytest.raises(UnsupportedFormat):
        ProducersLog.load(tmp_path / FILE_NAME)
