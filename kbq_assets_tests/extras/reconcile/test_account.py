"""Reconciliation of one partition: all ways in which records and rows can differ, and the explanation of a
difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kbq_assets.core.errors import OffsetOutOfRange, StateError, Unavailable
from kbq_assets.core.protocol.commits import AcceptedGap, Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.extras.reconcile.account import (
    SHOWN,
    Account,
    Expected,
    Judgement,
    PartitionAccount,
    UnloadedFiles,
    WarehouseRows,
    Witnesses,
)
from kbq_assets.extras.reconcile.findings import DELETE_ROWS
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.wire.chunk import Chunk, RawRecord

TP = TopicPartition("t", 0)
A, B, ERRORS = (TableReference("d", name) for name in ("A", "B", "kbq_errors"))


def staged(first: int, until: int, rows: int = 1) -> StagedFile:
    return StagedFile(f"staging/1-a/t.0.d.A.1.{first}.avro", first, until, rows, 1, 1, "", "")


@dataclass
class Log:
    """A broker's partition: offsets with values, and those without."""

    offsets: Sequence[int]
    nulls: Sequence[int] = ()
    failure: Exception | None = None
    asked: list[OffsetRange] = field(default_factory=list)

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        self.asked.append(range_)
        if self.failure is not None:
            raise self.failure
        found = [o for o in self.offsets if range_.from_offset <= o < range_.until_offset]
        messages = [RawRecord(None if offset in self.nulls else b"v", offset) for offset in found]
        yield RecordBatch(Chunk.from_messages(messages), range_.until_offset)


def settled(
    log: Log | None,
    rows: Mapping[TableReference, Mapping[int, int]],
    *,
    position: int = 6,
    earliest: int = 0,
    latest: int | None = None,
    state: Mapping[str, Any] | None = None,
    counts: Mapping[str, Any] | None = None,
    waiting: UnloadedFiles | None = None,
    expected: Expected | None = None,
    judge: Callable[..., Judgement] = lambda *_: Judgement(),
    **witnesses: Any,
) -> PartitionAccount:
    delivered = len(log.offsets) if log else 0
    own = Counts(**{"positions": position, "records": delivered, **(counts or {})})
    partition = PartitionCommit(position, totals=own, **(state or {}))
    means = {"compacts": lambda topic: False, "skips_nulls": lambda topic: False, **witnesses}
    return Account(
        Commit("t", 0, "c", "i", 1, {0: partition}),
        TP,
        partition,
        None if log is None else BrokerOffsets(earliest, position if latest is None else latest),
        WarehouseRows(dict(rows)),
        waiting or UnloadedFiles(),
        Witnesses(log or Log(()), lambda tp: expected, judge=judge, **means),
    ).settle()


def once(*offsets: int) -> dict[int, int]:
    return dict.fromkeys(offsets, 1)


class TestWhatAgrees:
    def test_nothing_at_all(self) -> None:
        found = settled(Log(()), {}, position=0)
        assert (found.accounted, found.read, found.gaps, found.rows) == (True, 0, 0, 0)

    def test_each_record_has_a_row_and_gaps_are_positions_without_one(self) -> None:
        found = settled(Log((0, 1, 4)), {A: once(0, 4), ERRORS: once(1)}, latest=9)
        assert found.findings == ()
        assert (found.position, found.read, found.gaps, found.unread) == (6, 3, 3, 3)
        assert (found.rows, found.errors, found.pending, found.retired, found.produced) == (2, 1, 0, 0, None)

    def test_records_that_the_broker_deleted_are_counted_alone(self) -> None:
        found = settled(Log((3, 5)), {A: once(0, 1, 3, 5)}, earliest=3, counts={"records": 4})
        assert (found.findings, found.read, found.retired) == ((), 2, 2)

    def test_a_compacted_topic_keeps_rows_of_records_that_are_gone(self) -> None:
        found = settled(
            Log((0, 5)), {A: once(0, 2, 5)}, counts={"records": 3}, compacts=lambda topic: topic == "t"
        )
        assert (found.findings, found.retired, found.gaps) == ((), 1, 3)

    def test_pending_and_quarantined_files_explain_their_offsets(self) -> None:
        waiting = UnloadedFiles((staged(1, 3, 2),), (staged(4, 5),))
        found = settled(Log((0, 1, 2, 4)), {A: once(0)}, waiting=waiting)
        assert (found.findings, found.pending, found.quarantined) == ((), 2, 1)

    def test_accepted_gaps_are_not_read(self) -> None:
        log = Log((0, 1, 5))
        gaps = (AcceptedGap(4, 5, "x"), AcceptedGap(2, 4, "x"))
        found = settled(log, {A: once(0, 1, 5)}, state={"accepted_gaps": gaps})
        assert found.findings == ()
        assert [(each.from_offset, each.until_offset) for each in log.asked] == [(0, 2), (5, 6)]

    def test_erased_records_need_no_row(self) -> None:
        found = settled(
            Log((0, 1)), {A: once(0)}, counts={"erased": 1}, erased=lambda commit, partition: (1, 2)
        )
        assert (found.findings, found.erased) == ((), 1)

    def test_a_partition_that_is_gone_from_the_broker_is_compared_by_number(self) -> None:
        found = settled(None, {A: once(0, 1)}, counts={"records": 2})
        assert (found.findings, found.read, found.gaps, found.unread) == ((), 0, 0, 0)


class TestWhatDiffers:
    def test_a_row_too_many_is_doubled_in_one_table_or_in_two(self) -> None:
        found = settled(Log((0, 1)), {A: {0: 3, 1: 1}, B: once(1)})
        [finding] = found.findings
        assert finding == "t[0] epoch 1: doubled: offset 0 (d.A and d.A and d.A), 1 (d.A and d.B)"
        assert finding.next_step == DELETE_ROWS

    @pytest.mark.parametrize("compacts", [False, True])
    def test_a_row_beyond_the_position_is_unknown_whatever_the_broker_removes(self, compacts: bool) -> None:
        found = settled(Log((0,)), {A: once(0, 6)}, compacts=lambda topic: compacts)
        assert "in the warehouse but not on the broker: offset 6 (d.A)" in found.findings[0]

    def test_a_row_without_a_record_is_unknown(self) -> None:
        found = settled(Log((0,)), {A: once(0), B: once(3)}, counts={"records": 2})
        assert "not on the broker: offset 3 (d.B)" in found.findings[0]

    def test_a_record_without_a_row_names_the_command_that_reads_it_again(self) -> None:
        [finding] = settled(Log((0, 2, 4)), {A: once(0)}).findings
        assert finding == (
            "t[0] epoch 1: not in the warehouse (pending, skipped, quarantined or erased: 0 of them): "
            "offset 2, 4"
        )
        assert "kbq reset --topic t --partition 0 --from-offset 2" in finding.next_step

    def test_records_that_the_broker_no_longer_has_are_missing_by_number(self) -> None:
        [finding] = settled(Log((3,)), {A: once(0, 3)}, earliest=2, counts={"records": 4}).findings
        assert ": 2 records below offset 2" in finding
        assert "kbq replay start t --source backup --until 0:2, then kbq replay promote" in finding.next_step

    @pytest.mark.parametrize(("count", "more"), [(SHOWN, ""), (SHOWN + 1, " and 1 more")])
    def test_a_finding_names_few_offsets_and_counts_the_others(self, count: int, more: str) -> None:
        [finding] = settled(Log(range(count)), {}, position=count).findings
        assert finding.endswith(f"{SHOWN - 1}{more}")

    @pytest.mark.parametrize("pending", [1, 3])
    def test_a_file_explains_no_offsets_outside_of_it_and_no_more_rows_than_it_has(
        self, pending: int
    ) -> None:
        waiting = UnloadedFiles((staged(4, 6, pending),))
        assert not settled(Log((0, 1)), {A: once(0)}, waiting=waiting).accounted

    def test_rows_that_an_erasure_deletes_may_be_there_or_not(self) -> None:
        log, waiting = Log((0, 1)), UnloadedFiles((staged(1, 2),), deleting=1)
        assert settled(log, {A: once(0)}, waiting=waiting).accounted
        assert settled(log, {}, waiting=UnloadedFiles((staged(0, 2),), deleting=1)).accounted
        assert not settled(log, {}, waiting=UnloadedFiles((staged(0, 2),))).accounted


class TestSkippedRecords:
    COUNTS: Mapping[str, int] = {"skipped": 1}

    def test_a_skipped_record_is_judged_and_needs_no_row(self) -> None:
        asked: list[list[int]] = []

        def judge(commit: Commit, tp: TopicPartition, offsets: Sequence[int]) -> Judgement:
            asked.append(list(offsets))
            return Judgement()

        found = settled(Log((0, 1)), {A: once(0)}, counts=self.COUNTS, judge=judge)
        assert (found.findings, found.skipped, asked) == ((), 1, [[1]])

    def test_a_record_that_extraction_would_stage_is_missing(self) -> None:
        found = settled(Log((0, 1)), {A: once(0)}, counts=self.COUNTS, judge=lambda *_: Judgement([1]))
        [finding] = found.findings
        assert "although such records are not skipped: offset 1" in finding
        assert "--from-offset 1" in finding.next_step

    def test_what_cannot_be_judged_is_unknown(self) -> None:
        found = settled(
            Log((0, 1)), {A: once(0)}, counts=self.COUNTS, judge=lambda *_: Judgement((), "no key")
        )
        [finding] = found.findings
        assert (finding.is_unknown, finding.next_step) == (True, "")
        assert finding.endswith("1 record in no table, skipped or lost: no key")

    @pytest.mark.parametrize("skips_nulls", [True, False])
    def test_null_values_are_judged_only_if_they_would_become_rows(self, skips_nulls: bool) -> None:
        found = settled(
            Log((0, 1), nulls=(1,)), {A: once(0)}, counts=self.COUNTS,
            judge=lambda *_: Judgement([1]), skips_nulls=lambda topic: skips_nulls,
        )  # fmt: skip
        assert found.accounted is skips_nulls


class TestBrokersThatFail:
    @pytest.mark.parametrize(
        ("failure", "step"),
        [
            (OffsetOutOfRange("offset 0 is gone", next_step="look"), "look"),
            (StateError("a damaged batch"), "kbq plan"),
        ],
        ids=["a step of its own", "no step"],
    )
    def test_records_that_cannot_be_read_are_unknown_and_doubled_rows_are_found(
        self, failure: Exception, step: str
    ) -> None:
        unknown, doubled = settled(Log((0,), failure=failure), {A: {0: 2, 9: 1}}).findings
        assert unknown.is_unknown
        assert unknown.next_step == step
        assert "the broker's records cannot be compared" in unknown
        assert "doubled: offset 0" in doubled

    def test_a_broker_that_is_away_is_no_finding(self) -> None:
        with pytest.raises(Unavailable):
            settled(Log((0,), failure=Unavailable("away")), {})


class TestProducersLog:
    @pytest.mark.parametrize(
        ("rows", "finding"),
        [
            ({A: once(0), B: once(1), ERRORS: once(2)}, ""),
            ({A: once(0), B: once(1)}, "missing: offset 2 (expected kbq_errors)"),
            (
                {B: once(0, 1), ERRORS: once(2)},
                "not in the table that the producers' log names: offset 0 (expected d.A)",
            ),
            (
                {A: once(0, 3), B: once(1), ERRORS: once(2)},
                "not in the table that the producers' log names: offset 3 (expected nowhere)",
            ),
            ({A: once(0, 4), B: once(1), ERRORS: once(2)}, "not in the producers' log: offset 4 (d.A)"),
        ],
        ids=["right", "no error row", "another table", "a row that should be skipped", "a row too many"],
    )
    def test_each_record_is_where_it_was_meant_to_be(
        self, rows: Mapping[TableReference, Mapping[int, int]], finding: str
    ) -> None:
        expected = {0: "row:d.A", 1: "row:d.B", 2: "error", 3: "skip", 9: "row:d.A"}
        found = settled(Log((0, 1, 2, 3, 4)), rows, expected=expected)
        assert found.produced == 4, "offset 9 lies beyond the position"
        assert [each.partition(" epoch 1: ")[2] for each in found.findings] == ([finding] if finding else [])

    def test_as_many_missing_as_wait_are_no_finding(self) -> None:
        expected = {0: "row:d.A", 1: "row:d.A"}
        for count, accounted in ((1, True), (2, False)):
            waiting = UnloadedFiles((staged(1, 2, count),))
            found = settled(Log((0, 1)), {A: once(0)}, waiting=waiting, expected=expected)
            assert found.accounted is accounted

    def test_rows_of_a_job_that_is_not_recorded_yet_are_no_finding(self) -> None:
        waiting = UnloadedFiles((staged(1, 2, 1),))
        found = settled(Log((0, 1)), {A: once(0, 1)}, waiting=waiting, expected={0: "row:d.A", 1: "row:d.A"})
        assert found.accounted


@pytest.mark.parametrize(
    ("pending", "quarantined", "outside"),
    [
        ((), (), [0, 1, 2, 3, 4, 5]),
        (((1, 3),), (), [0, 3, 4, 5]),
        (((1, 3),), ((3, 5),), [0, 5]),
        (((1, 4), (2, 3)), ((0, 1),), [4, 5]),
        (((5, 9),), (), [0, 1, 2, 3, 4]),
    ],
)
def test_offsets_outside_of_all_files(
    pending: Sequence[tuple[int, int]], quarantined: Sequence[tuple[int, int]], outside: list[int]
) -> None:
    files = UnloadedFiles([staged(*each) for each in pending], [staged(*each) for each in quarantined])
    assert files.outside(range(6)) == outside
