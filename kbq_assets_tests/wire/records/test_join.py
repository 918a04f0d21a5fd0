"""Values with other bytes around them: heads, marks and keys, against joining in Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.wire.chunk import Chunk, RawRecord, Spans
from kbq_assets.wire.records.encoded import EncodedRecords, with_encoded
from kbq_assets.wire.records.join import NO_MARK, joined

optional = st.none() | st.binary(max_size=20)
rows = st.lists(st.tuples(optional, optional, st.sampled_from([0, 2, 254, NO_MARK]), optional), max_size=8)


def chunk_of(count: int) -> Chunk:
    return Chunk.from_messages([RawRecord(b"before", 10 + n, n, b"key") for n in range(count)], keys=True)


def values_of(chunk: Chunk) -> list[bytes | None]:
    return [chunk.value(n) for n in range(len(chunk))]


class TestJoined:
    @given(rows)
    @settings(max_examples=80)
    def test_a_record_is_its_head_value_mark_and_key(
        self, parts: list[tuple[bytes | None, bytes | None, int, bytes | None]]
    ) -> None:
        heads, values = Spans.of([row[0] for row in parts]), Spans.of([row[1] for row in parts])
        keys = Spans.of([row[3] for row in parts])
        marks = np.array([row[2] for row in parts], np.uint8)
        found = joined(chunk_of(len(parts)), heads, values, marks, keys)
        assert values_of(found) == [
            None
            if head is None
            else head + (value or b"") + (b"" if mark == NO_MARK else bytes([mark])) + (key or b"")
            for head, value, mark, key in parts
        ]

    def test_offsets_times_and_keys_stay(self) -> None:
        chunk = chunk_of(2)
        parts = Spans.of([b"a", None])
        found = joined(chunk, parts, parts, np.full(2, NO_MARK, np.uint8), parts)
        assert (found.offsets.tolist(), found.timestamps.tolist()) == ([10, 11], [0, 1])
        assert [found.key(n) for n in range(2)] == [b"key", b"key"]

    @pytest.mark.parametrize("cut", [(0, 3), (1, 3), (1, 2), (2, 2)])
    def test_slices_of_spans_are_joined_like_whole_ones(self, cut: tuple[int, int]) -> None:
        whole = Spans.of([b"a", None, b"ccc"])
        marks = np.array([1, 2, NO_MARK], np.uint8)
        part = whole.slice(*cut)
        found = joined(chunk_of(len(part)), part, part, marks[slice(*cut)], part)
        expected = [b"aa\1a", None, b"ccc" * 3]
        assert values_of(found) == expected[slice(*cut)]


class TestWithEncoded:
    @staticmethod
    def encoded(*values: bytes | None) -> EncodedRecords:
        spans = Spans.of(values)
        return EncodedRecords(
            spans.buffer,
            spans.starts,
            spans.ends,
            np.array([value is not None for value in values], np.bool_),
        )

    @pytest.mark.parametrize(
        ("values", "rows_", "expected"),
        [
            ((), (), [b"p", None, b"r", b""]),
            ((b"A",), (0,), [b"A", None, b"r", b""]),
            ((b"A", b"", b"CC"), (1, 2, 3), [b"p", b"A", b"", b"CC"]),
            ((None, b"B"), (0, 3), [b"p", None, b"r", b"B"]),
            ((None, None), (0, 1), [b"p", None, b"r", b""]),
        ],
        ids=["none", "one", "several", "one left to the others", "all left to the others"],
    )
    def test_rows_that_a_kernel_did_take_its_values(
        self, values: tuple[bytes | None, ...], rows_: tuple[int, ...], expected: list[bytes | None]
    ) -> None:
        others = Chunk.from_messages([RawRecord(v, n) for n, v in enumerate([b"p", None, b"r", b""])])
        found = with_encoded(others, self.encoded(*values), np.array(rows_, np.int64))
        assert values_of(found) == expected
        assert values_of(others) == [b"p", None, b"r", b""], "the others' chunk stays as it is"
        assert found.offsets.tolist() == [0, 1, 2, 3]
