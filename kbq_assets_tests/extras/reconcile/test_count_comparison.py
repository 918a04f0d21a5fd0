"""Counts of one table against its state: how many rows may be there while loads run, expire and are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.loading.mismatches import RowMismatch
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.count_comparison import (
    TableCount,
    count_table,
    may_have_expired,
    range_name,
    unknown_offsets,
)
from kbq_assets.extras.reconcile.findings import DELETE_ROWS, next_steps
from kbq_assets.pipelines.observation.accounting import PartitionHistory
from kbq_assets.ports.warehouse import KafkaRange, OffsetSummary

TABLE = TableReference("d", "A")
RANGE, OTHER = KafkaRange("t", 0, 1), KafkaRange("t", 1, 1)


def state(loaded: int = 0, **changes: Any) -> TableState:
    return TableState("u", rows={"t/0/1": loaded} if loaded else {}, **changes)


def flight(rows: int) -> JobInFlight:
    file = StagedFile("staging/1-a/t.0.d.A.1.0.avro", 0, 9, rows, 1, 1, "", "")
    return JobInFlight("j", "p", "l", (file,))


def rows(count: int, distinct: int | None = None) -> dict[KafkaRange, OffsetSummary]:
    return {RANGE: OffsetSummary(count, count if distinct is None else distinct, 0, count - 1)}


def counted(
    summary: Mapping[KafkaRange, OffsetSummary],
    before: TableState,
    after: TableState | None = None,
    *,
    whole: bool = True,
    expired: int = 0,
) -> TableCount:
    [found] = count_table(TABLE, summary, (before, after or before), whole=whole, expired=expired)
    return found


@pytest.mark.parametrize(
    ("count", "before", "after", "finding"),
    [
        (5, state(5), state(5), ""),
        (5, state(3), state(5), ""),
        (3, state(3), state(5), ""),
        (4, state(3), state(5), ""),
        (6, state(3), state(5), "6 rows, but 5 were loaded"),
        (2, state(3), state(5), "2 rows, but 3 were loaded (deleted or lost)"),
        (9, state(5), state(5, in_flight=flight(4)), ""),
        (10, state(5), state(5, in_flight=flight(4)), "10 rows, but 9 were loaded"),
        (4, state(5), state(5, in_flight=flight(4)), "4 rows, but 5 were loaded (deleted or lost)"),
        (1, state(), state(), "1 row, but 0 were loaded"),
    ],
)
def test_a_count_lies_between_what_was_loaded_before_and_after(
    count: int, before: TableState, after: TableState, finding: str
) -> None:
    found = counted(rows(count), before, after)
    if finding:
        assert found.findings == (f"d.A: t[0] epoch 1: {finding}",)
    else:
        assert found.findings == ()
    assert found.suspicious == (finding != "" and "deleted" not in finding)


def test_no_rows_at_all_are_as_many_as_were_lost() -> None:
    found = counted({}, state(5))
    assert (found.rows, found.first, found.last, found.loaded) == (0, None, None, 5)
    assert "0 rows, but 5 were loaded" in found.findings[0]
    assert "kbq reconcile --topic t" in next_steps(found.findings)[0]


def test_doubled_offsets_are_found_even_if_the_number_is_right() -> None:
    found = counted(rows(5, distinct=4), state(5))
    assert (found.duplicates, found.suspicious) == (1, True)
    assert found.findings == ("d.A: t[0] epoch 1: 5 rows of 4 offsets",)
    assert next_steps(found.findings) == [DELETE_ROWS]


@pytest.mark.parametrize(("count", "finding"), [(3, False), (6, True)])
def test_a_part_of_the_rows_may_be_fewer_and_not_more(count: int, finding: bool) -> None:
    assert bool(counted(rows(count), state(5), whole=False).findings) is finding
    assert count_table(TABLE, {}, (state(5), state(5)), whole=False) == []


@pytest.mark.parametrize(("expired", "noted"), [(0, False), (1, False), (2, True), (9, True)])
def test_rows_that_expired_are_noted(expired: int, noted: bool) -> None:
    found = counted(rows(3), state(5), expired=expired)
    assert (bool(found.notes), bool(found.findings)) == (noted, not noted)
    why = "they are older than the table keeps rows" if noted else "deleted or lost"
    assert why in (*found.notes, *found.findings)[0]


def test_a_job_that_differed_from_its_files_is_named_beside_the_difference() -> None:
    mismatched = state(5, mismatches=(RowMismatch("j", 4, 6), RowMismatch("k", 3, 2)))
    assert (
        counted(rows(6), mismatched)
        .findings[0]
        .endswith("; rows of its jobs that differ from their files: +1")
    )
    assert counted(rows(5), mismatched).findings == ()


def test_ranges_are_in_the_order_of_topics_partitions_and_epochs() -> None:
    ranges = [KafkaRange("u", 0, 1), KafkaRange("t", 10, 1), KafkaRange("t", 2, 2), KafkaRange("t", 2, 1)]
    summary = {each: OffsetSummary(1, 1, 0, 0) for each in ranges}
    found = count_table(TABLE, summary, (state(), state()), whole=True)
    assert [range_name(each.range) for each in found] == [
        "t[2] epoch 1", "t[2] epoch 2", "t[10] epoch 1", "u[0] epoch 1",
    ]  # fmt: skip


class TestExpiry:
    #: ten rows: three of 1970-01-01, five of 1970-01-03, two of hours that are not listed
    STATE = TableState("u", rows={"t/0/1": 10}, hours=TableHours(rows={5: 3, 48: 2, 71: 3}, older_rows=2))

    @pytest.mark.parametrize(
        ("first_kept", "kept", "most"),
        [
            (date(1970, 1, 1), 8, 2),
            (date(1970, 1, 2), 5, 5),
            (date(1970, 1, 3), 5, 5),
            (date(1970, 1, 3), 7, 5),
            (date(1970, 1, 4), 0, 10),
        ],
    )
    def test_rows_of_older_and_unlisted_hours_may_be_gone(
        self, first_kept: date, kept: int, most: int
    ) -> None:
        assert may_have_expired(self.STATE, first_kept, [OffsetSummary(kept, kept, 0, 9)]) == most

    def test_nothing_is_excused_if_rows_that_must_be_kept_are_gone(self) -> None:
        assert may_have_expired(self.STATE, date(1970, 1, 3), [OffsetSummary(4, 4, 0, 9)]) == 0
        assert may_have_expired(self.STATE, date(1970, 1, 3), []) == 0
        assert may_have_expired(TableState("u"), date(1970, 1, 3), []) == 0


class TestUnknownOffsets:
    @staticmethod
    def unknown(
        count: int = 1, *, first: int = 3, last: int = 5, loaded: int = 1, epoch: int = 1, known: bool = True
    ) -> list[str]:
        summary = {KafkaRange("t", 0, epoch): OffsetSummary(count, count, first, last)}
        own = TableState("u", rows={f"t/0/{epoch}": loaded} if loaded else {})
        [found] = count_table(TABLE, summary, (own, own), whole=True)
        commit = Commit("t", 0, "c", "i", 2, {0: PartitionCommit(6, start=3, since=1)})
        ledgers = {TopicPartition("t", 0): PartitionHistory(TopicPartition("t", 0), None, commit)}
        return list(unknown_offsets(found, ledgers if known else {}))

    @pytest.mark.parametrize(
        ("given", "finding"),
        [
            ({}, ""),
            ({"last": 6}, "offset 6, but extraction is at 6"),
            ({"first": 2}, "offset 2, but extraction began at 3"),
            ({"epoch": 2}, ""),
            ({"epoch": 3}, "1 row, but the topic's epoch is 2"),
            ({"epoch": 0, "first": 0, "last": 99}, ""),
            ({"known": False}, ""),
            ({"known": False, "loaded": 0}, "1 row of a partition that was never extracted here"),
        ],
        ids=str,
    )
    def test_offsets_that_no_commit_staged_are_named(self, given: dict[str, Any], finding: str) -> None:
        found = self.unknown(**given)
        assert [each.partition(": t[0] epoch ")[2].partition(": ")[2] for each in found] == (
            [finding] if finding else []
        )

    def test_both_ends_are_looked_at(self) -> None:
        assert len(self.unknown(first=0, last=9)) == 2
