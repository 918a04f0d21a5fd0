"""Sets of offsets agree with sets of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.erasure import offset_sets as sets

NUMBERS = st.sets(st.integers(0, 60))


def members(offsets: sets.Offsets) -> set[int]:
    return {offset for first, until in sets.pairs(offsets) for offset in range(first, until)}


@given(NUMBERS, NUMBERS, st.integers(0, 61), st.integers(0, 61))
def test_a_set_of_offsets_is_a_set(one: set[int], other: set[int], first: int, until: int) -> None:
    offsets = sets.offsets_of(one)
    assert members(offsets) == one and sets.size(offsets) == len(one)
    assert list(offsets) == sorted(set(offsets))
    assert members(sets.united(offsets, sets.offsets_of(other))) == one | other
    assert sets.united(offsets, offsets) == offsets
    assert sets.has(offsets, first) == (first in one)
    assert sets.meet(offsets, first, until) == bool(one & set(range(first, until)))
