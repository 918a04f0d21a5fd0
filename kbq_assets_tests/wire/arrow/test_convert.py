"""Decimals are what their bytes say, or refused."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbq_assets.core.loading.tables import Column
from kbq_assets.wire.arrow.avro_types import Value
from kbq_assets.wire.arrow.convert import arranged

EXACT = Context(prec=100)


def encoded(number: int, padding: int = 0) -> bytes:
    """Two's complement, with more bytes than necessary."""
    length = (number.bit_length() + 8) // 8 + padding
    return number.to_bytes(length, "big", signed=True)


NUMBERS = st.integers(0, 140).flatmap(lambda bits: st.integers(-(1 << bits), 1 << bits))
DIGITS = st.sampled_from([None, (38, 9), (38, 0), (12, 2), (38, 38), (5, 4)])


@given(
    st.lists(st.none() | st.tuples(NUMBERS, st.integers(0, 3)), max_size=8),
    DIGITS,
    st.integers(0, 4),
    st.integers(0, 2),
)
@example([(10**38, 0)], (38, 0), 0, 0)
@example([(10**29, 0)], None, 0, 0)
@example([(10**29 - 1, 0), (1 - 10**29, 0), None], None, 0, 1)
@example([(-(1 << 127), 0)], None, 0, 0)
@example([(-1, 0)] * 3, (5, 4), 4, 0)
def test_decimals_are_exact_or_out_of_range(
    given_numbers: list[tuple[int, int] | None], digits: tuple[int, int] | None, scale: int, start: int
) -> None:
    precision, wanted = digits or (38, 9)
    scale = min(scale, wanted)
    raw = pa.array([each and encoded(*each) for each in given_numbers], pa.binary())[start:]
    value = Value("bytes", pa.binary(), {"logicalType": "decimal", "precision": 38, "scale": scale})
    column = Column("price", "NUMERIC", digits=digits)
    numbers = [each and each[0] for each in given_numbers[start:]]
    if any(abs(each or 0) * 10 ** (wanted - scale) >= 10**precision for each in numbers):
        with pytest.raises(ValueError, match="out of the range"):
            arranged(raw, value, column)
        return
    found = arranged(raw, value, column)
    found.validate(full=True)
    assert found.type == pa.decimal128(precision, wanted)
    expected = [None if each is None else EXACT.scaleb(Decimal(each), -scale) for each in numbers]
    assert found.to_pylist() == expected


def test_no_bytes_are_zero() -> None:
    value = Value("bytes", pa.binary(), {"logicalType": "decimal", "precision": 9, "scale": 2})
    column = Column("price", "NUMERIC")
    for raw in ([b""], [b"", b"\xff", b""], [None, b"\x01\x00"], []):
        numbers = [None if each is None else int.from_bytes(each, "big", signed=True) for each in raw]
        found = arranged(pa.array(raw, pa.binary()), value, column).to_pylist()
        assert found == [None if each is None else Decimal(each) / 100 for each in numbers]
