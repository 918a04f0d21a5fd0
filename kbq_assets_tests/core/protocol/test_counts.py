"""Counts add up. A range that they do not explain is a defect."""

from __future__ import annotations

import dataclasses
from functools import reduce
from operator import add
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import BUG, Defect
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.counts import Counts, total

NUMBERS = ("positions", "records", "bytes", "gaps", "lost", "skipped", "erased", "errors",
           "event_time_fallbacks", "dropped_values")  # fmt: skip
SMALL = st.integers(0, 1000)
FEW = settings(max_examples=20)
COUNTS = st.builds(
    lambda number, **more: Counts(**{name: number + n for n, name in enumerate(NUMBERS)}, **more),
    SMALL,
    rows=st.dictionaries(st.sampled_from(["d.a", "d.b", "d.c"]), SMALL),
    extra=st.dictionaries(st.sampled_from(["x", "y"]), SMALL),
)
GOOD = Counts(
    positions=10, records=7, gaps=2, lost=1, skipped=1, erased=2, errors=1, rows={"d.a": 2, "d.b": 1}
)


def parts(counts: Counts) -> tuple[object, ...]:
    """The counts with those of a newer version, which equality includes too."""
    return counts, dict(counts.extra)


def test_every_number_is_part_of_the_sum() -> None:
    fields = {field.name for field in dataclasses.fields(Counts)} - {"rows", "extra"}
    assert fields == {*NUMBERS}
    ones: dict[str, Any] = dict.fromkeys(NUMBERS, 1)
    twos: dict[str, Any] = dict.fromkeys(NUMBERS, 2)
    assert Counts(**ones) + Counts(**ones) == Counts(**twos)


def test_a_difference_may_be_negative() -> None:
    left = Counts(records=1, rows={"d.a": 1}) - Counts(records=3, rows={"d.a": 3})
    assert (left.records, left.rows) == (-2, {"d.a": -2})


def test_staged_rows_are_those_of_all_tables() -> None:
    assert (GOOD.staged, Counts().staged) == (3, 0)


@pytest.mark.parametrize("counts", [Counts(), GOOD, Counts(positions=3, gaps=2, lost=1)])
def test_counts_that_explain_every_position_and_record_pass(counts: Counts) -> None:
    counts.check("range")


@pytest.mark.parametrize("name", ["positions", "records", "gaps", "lost", "skipped", "erased", "errors"])
@pytest.mark.parametrize("change", [1, -1])
def test_one_more_or_less_of_anything_is_a_defect(name: str, change: int) -> None:
    changed: dict[str, Any] = {name: getattr(GOOD, name) + change}
    wrong = dataclasses.replace(GOOD, **changed)
    with pytest.raises(Defect, match=r"^t\[0\] \[0, 10\): .*unaccounted for") as caught:
        wrong.check("t[0] [0, 10)")
    assert caught.value.next_step == BUG


def test_a_row_that_no_record_explains_is_a_defect() -> None:
    with pytest.raises(Defect, match="leaves records unaccounted for"):
        dataclasses.replace(GOOD, rows={"d.a": 4}).check("range")


@pytest.mark.parametrize("name", ["bytes", "event_time_fallbacks", "dropped_values"])
def test_sizes_and_notes_explain_nothing(name: str) -> None:
    more: dict[str, Any] = {name: 99}
    dataclasses.replace(GOOD, **more).check("range")


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        ({"new": 1}, {"new": 2}, {"new": 3}),
        ({"new": 1}, {}, {"new": 1}),
        ({}, {"new": 2}, {"new": 2}),
        ({"new": "a"}, {"new": "b"}, {"new": "a"}),
        ({"new": 1}, {"new": "b"}, {"new": 1}),
        ({"one": 1}, {"other": 2}, {"one": 1, "other": 2}),
    ],
)
def test_counts_of_a_newer_version_add_up_too(
    left: dict[str, object], right: dict[str, object], both: dict[str, object]
) -> None:
    assert (Counts(extra=left) + Counts(extra=right)).extra == both
    assert total([Counts(extra=left), Counts(extra=right)]).extra == both


@FEW
@given(COUNTS, COUNTS, COUNTS)
def test_addition_is_associative_and_has_a_neutral_element(a: Counts, b: Counts, c: Counts) -> None:
    assert parts((a + b) + c) == parts(a + (b + c))
    assert parts(a + Counts()) == parts(Counts() + a) == parts(a)


@FEW
@given(COUNTS, COUNTS)
def test_the_order_does_not_matter(a: Counts, b: Counts) -> None:
    assert parts(a + b) == parts(b + a)


@FEW
@given(st.lists(COUNTS, max_size=5))
def test_the_total_is_the_sum(counts: list[Counts]) -> None:
    assert parts(total(counts)) == parts(reduce(add, counts, Counts()))


@FEW
@given(COUNTS, COUNTS)
def test_what_was_added_can_be_taken_away(a: Counts, b: Counts) -> None:
    left = (a + b) - b
    assert left == dataclasses.replace(a, rows=left.rows, extra={})
    assert {table: count for table, count in left.rows.items() if count} == {
        table: count for table, count in a.rows.items() if count
    }


@FEW
@given(COUNTS)
def test_counts_survive_storage(counts: Counts) -> None:
    assert codec.loads(Counts, codec.dumps(counts), "c", keep=False) == counts
