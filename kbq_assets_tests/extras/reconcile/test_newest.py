"""The newest record of each key decides what a table must have, even if few of the keys fit into memory."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.extras.reconcile import spill
from kbq_assets.extras.reconcile.account import SHOWN
from kbq_assets.extras.reconcile.newest import (
    KeyedRecord,
    NewestAccount,
    OtherRows,
    RecordPlace,
    UpsertAccount,
)
from kbq_assets.extras.reconcile.spill import Spill

T = TableReference("d", "t")
RULE = StatementRule("upsert", ("id",))


def record(key: int | None, offset: int, rows: int = 0, partition: int = 0, **changes: Any) -> KeyedRecord:
    return KeyedRecord(
        RecordPlace("t", partition, offset), None if key is None else (key,), rows=rows
    )._replace(**changes)


def settled(
    records: Iterable[KeyedRecord],
    rule: StatementRule = RULE,
    per_part: int = 3,
    other: OtherRows | None = None,
) -> UpsertAccount:
    records = list(records)
    with Spill[KeyedRecord](len(records), per_part) as parts:
        for each in records:
            parts.add(each.key or each.place, each)
        return NewestAccount(T, rule, parts, other or OtherRows()).settle()


def test_a_key_whose_newest_record_may_be_erased_is_not_missing_and_no_reset_is_advised() -> None:
    """A reset would bring the older record of a person back."""
    with Spill[KeyedRecord](2, 3) as parts:
        for each in (record(1, 4), record(2, 9)):
            parts.add(each.key, each)
        erased = {TopicPartition("t", 0): 8}
        account = NewestAccount(T, RULE, parts, OtherRows(), erased=erased).settle()
    unknown, missing = sorted(account.findings, key=lambda each: not each.is_unknown)
    assert (unknown.is_unknown, "t[0] offset 4" in unknown, "kbq reset" in unknown.next_step) == (
        True,
        True,
        False,
    )
    assert (missing.is_unknown, "without their newest row: t[0] offset 9" in missing) == (False, True)


@pytest.mark.parametrize("per_part", [1, 7, 1_000])
@pytest.mark.parametrize("marks", [False, True])
def test_a_right_table_has_no_finding_whatever_fits_into_memory(per_part: int, marks: bool) -> None:
    chance = random.Random(per_part)
    records = [record(chance.randrange(40), n, deletes=chance.random() < 0.2) for n in range(400)]
    last = {each.key: each for each in records}
    applied = [
        each._replace(rows=int(last[each.key] is each and (marks or not each.deletes))) for each in records
    ]
    account = settled(applied, StatementRule("upsert", ("id",), "mark" if marks else "remove"), per_part)
    deleted = sum(each.deletes for each in last.values())
    rows = len(last) if marks else len(last) - deleted
    assert (account.rows, account.superseded, account.deleted, account.findings) == (
        rows,
        400 - len(last),
        deleted,
        (),
    )


@pytest.mark.parametrize(
    ("records", "finding", "is_unknown"),
    [
        (
            [record(1, 0, 1), record(1, 1, 1)],
            "older than their key's newest record: t[0] offset 0 (newest: t[0]",
            False,
        ),
        ([record(1, 0), record(1, 1)], "keys without their newest row: t[0] offset 1", False),
        ([record(1, 0, 2)], "doubled rows: t[0] offset 0 (2 rows)", False),
        ([record(None, 4)], "keys without their newest row: t[0] offset 4", False),
        (
            [record(1, 0, deletes=True, is_remembered=False)],
            "deletions that are not stored: t[0] offset 0",
            False,
        ),
        ([record(1, 0, 1), record(1, 0, 0, 1)], "1 key in two partitions", True),
        ([record(n, n) for n in range(SHOWN + 6)], f"t[0] offset {SHOWN - 1} and 6 more", False),
    ],
)
def test_what_differs_is_named(records: list[KeyedRecord], finding: str, is_unknown: bool) -> None:
    [found] = settled(records).findings
    assert finding in found
    assert found.is_unknown == is_unknown


@pytest.mark.parametrize("times", [(1, 2), (2, 1)])
def test_timestamps_decide_between_partitions(times: tuple[int, int]) -> None:
    rule = StatementRule("upsert", ("id",), tie="timestamp")
    records = [record(1, 5, 0, p, time=time) for p, time in enumerate(times)]
    right = [each._replace(rows=int(each.time == 2)) for each in records]
    assert settled(right, rule).findings == ()
    wrong = [each._replace(rows=int(each.time == 1)) for each in records]
    assert "older than their key's newest record" in settled(wrong, rule).findings[0]


def test_rows_of_no_record_count_and_are_named() -> None:
    other = OtherRows(rows=3, strange=["1 row of x[0] epoch 9"], undecided=1)
    other.unknown.add(RecordPlace("t", 0, 7))
    account = settled([record(1, 0, 1)], other=other)
    assert account.rows == 4
    assert [finding.is_unknown for finding in account.findings] == [True, False, False]


@pytest.mark.thorough
def test_ten_times_the_keys_do_not_take_ten_times_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "_BUFFERED", 10)

    def peak(keys: int) -> int:
        with Spill[KeyedRecord](keys, 250) as parts:
            tracemalloc.start()
            for n in range(keys):
                parts.add((n,), record(n, n, 1))
            spilled = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            assert NewestAccount(T, RULE, parts, OtherRows()).settle().findings == ()
            settled_peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return max(spilled, settled_peak)

    assert peak(10_000) < 5 * peak(1_000)
