"""Records that are no rows: collected group by group, told in the order of the chunk, each with its reason in words."""

from __future__ import annotations

import numpy as np
import pytest

from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.rejects import NO_SCHEMA_ID, Rejections, Rejects
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import Captures, RecordLimits, blank_validation, describe
from kbq_assets_tests.wire.samples import chunk_of, framed, staged

LIMITS = RecordLimits()


def longs(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def told(rejects: Rejects) -> list[tuple[int, Reason, int, str]]:
    return [
        (row, Reason(reason), schema_id, message)
        for row, reason, schema_id, message in zip(
            rejects.rows.tolist(),
            rejects.reasons.tolist(),
            rejects.schema_ids.tolist(),
            rejects.messages,
            strict=True,
        )
    ]


class TestReasons:
    def test_every_reason_is_one_byte_and_a_sentence(self) -> None:
        for reason in Reason:
            assert 0 <= reason < 256
            assert reason.message[0].islower()
            assert not reason.message.endswith(".")
        assert len({reason.message for reason in Reason}) == len(Reason)

    def test_names_are_for_ever(self) -> None:
        assert [reason.name for reason in Reason if reason <= Reason.TOO_LARGE] == [
            "GOOD", "NULL_VALUE", "TOMBSTONE", "TOO_SHORT", "WRONG_MAGIC", "UNKNOWN_SCHEMA", "UNSTAGEABLE_SCHEMA",
            "TOO_LARGE",
        ]  # fmt: skip


class TestRejections:
    def test_nothing_rejected_is_nothing(self) -> None:
        found = Rejections().sorted()
        assert (len(found), told(found), found.counts()) == (0, [], {})
        arrays = (found.rows, found.reasons, found.schema_ids)
        assert [each.dtype.name for each in arrays] == ["int64", "uint8", "int64"]

    def test_groups_are_told_in_the_order_of_the_chunk(self) -> None:
        rejections = Rejections()
        rejections.all(longs(7, 9), Reason.UNKNOWN_SCHEMA, 3)
        rejections.some(longs(0, 8), longs(Reason.TOO_SHORT, Reason.WRONG_MAGIC))
        rejections.all(longs(4), Reason.UNKNOWN_TABLE, 5, "which table?")
        rejections.all(longs(), Reason.TOO_LARGE, 6)
        found = rejections.sorted()
        assert told(found) == [
            (0, Reason.TOO_SHORT, NO_SCHEMA_ID, Reason.TOO_SHORT.message),
            (4, Reason.UNKNOWN_TABLE, 5, "which table?"),
            (7, Reason.UNKNOWN_SCHEMA, 3, Reason.UNKNOWN_SCHEMA.message),
            (8, Reason.WRONG_MAGIC, NO_SCHEMA_ID, Reason.WRONG_MAGIC.message),
            (9, Reason.UNKNOWN_SCHEMA, 3, Reason.UNKNOWN_SCHEMA.message),
        ]
        assert found.counts() == {
            Reason.TOO_SHORT: 1, Reason.WRONG_MAGIC: 1, Reason.UNKNOWN_SCHEMA: 2, Reason.UNKNOWN_TABLE: 1
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("selection", "rows"),
        [
            ([], []),
            ([0, 2], [1, 5]),
            (np.array([1], np.int64), [3]),
            (np.array([True, False, True]), [1, 5]),
            (np.zeros(3, np.bool_), []),
        ],
        ids=["none", "indexes", "an array", "a mask", "an empty mask"],
    )
    def test_some_are_taken_with_all_that_is_said_of_them(self, selection: object, rows: list[int]) -> None:
        rejections = Rejections()
        for row in (1, 3, 5):
            rejections.all(longs(row), Reason.TOO_DEEP, row * 10, f"row {row}")
        found = rejections.sorted().take(selection)  # type: ignore[arg-type]
        assert told(found) == [(row, Reason.TOO_DEEP, row * 10, f"row {row}") for row in rows]

    @pytest.mark.parametrize("positions", [True, False])
    def test_invalid_rows_say_their_field_and_byte(self, positions: bool) -> None:
        schema = staged(("ok", "boolean"), ("name", "string"))
        chunk = chunk_of(framed(b"\1\2a"), framed(b"\1\2\xff"), None, framed(b"\2\2a"), framed(b""))
        rows = longs(0, 1, 3, 4)
        rejections = Rejections(positions=positions)
        rejections.invalid(schema, validate_avro(chunk, schema.program, rows, LIMITS), rows, 9)
        where = (
            [" (byte 6 of the value)", " (byte 5 of the value)", " (byte 5 of the value)"]
            if positions
            else [""] * 3
        )
        assert [(row, reason, schema_id) for row, reason, schema_id, _ in told(rejections.sorted())] == [
            (1, Reason.INVALID_UTF8, 9),
            (3, Reason.INVALID_BOOLEAN, 9),
            (4, Reason.TRUNCATED, 9),
        ]
        assert [message.partition(" in field ")[2] for message in rejections.sorted().messages] == [
            "name" + where[0],
            "ok" + where[1],
            "ok" + where[2],
        ]


class TestVerdicts:
    def test_blank_verdicts_are_good_and_capture_nothing(self) -> None:
        found = blank_validation(3, 2)
        assert (found.reasons.tolist(), found.captures.kinds.tolist()) == ([0, 0, 0], [[0, 0, 0], [0, 0, 0]])

    @pytest.mark.parametrize(
        "chosen", [np.array([True, False, True]), np.array([0, 2], np.int64)], ids=["mask", "indexes"]
    )
    def test_captures_are_taken_by_record_and_by_slot(self, chosen: np.ndarray) -> None:
        numbers = np.arange(6, dtype=np.int64).reshape(2, 3)
        captures = Captures(numbers.astype(np.uint8), numbers + 10, numbers + 20)
        assert captures.take(chosen).starts.tolist() == [[10, 12], [13, 15]]
        assert captures.take(chosen).ends.tolist() == [[20, 22], [23, 25]]
        assert captures.first(1).kinds.tolist() == [[0, 1, 2]]
        assert captures.first(0).kinds.tolist() == []

    def test_a_reason_before_the_first_field_names_none(self) -> None:
        found = blank_validation(1, 0)
        found.reasons[0] = Reason.TOO_LARGE
        assert describe(staged(("a", "int")).program, found, 0) == Reason.TOO_LARGE.message
