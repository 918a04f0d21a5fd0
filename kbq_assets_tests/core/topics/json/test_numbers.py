"""A float column accepts numbers that it can represent. Numbers that a JSON column would round become text."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kbq_assets.core.topics.json.numbers import Number, all_storable, parse_fraction, storable

#: Numbers as JSON writes them, with a point or an exponent; most have few digits, as in life.
FRACTIONS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,25}([eE][+-]?[0-9]{1,3})?|[eE][+-]?[0-9]{1,3})", fullmatch=True
)


@given(
    FRACTIONS
    | st.floats(allow_nan=False, allow_infinity=False).map(repr).filter(lambda text: set(text) & {*".e"})
)
@example("0e999")
@example("-0.0")
@example("1e-400")
@example("4.940e-324")
@example("1.234567890e-310")
@example("0." + "0" * 400 + "1e401")
@example("100000000000000000000000.0")
@example("0.10000000000000001")
@example("1234567890123456.7")
def test_a_float_stands_for_its_shortest_decimal_and_for_longer_ones_written_from_it(text: str) -> None:
    found, nearest, given = parse_fraction(text), float(text), Decimal(text)
    stands = math.isfinite(nearest) and Decimal(repr(nearest)) == given
    if nearest and math.isfinite(nearest):
        stands |= Decimal(f"{nearest:.{len(given.as_tuple().digits) - 1}e}") == given
    assert (type(found), found) == ((float, nearest) if stands else (Number, text))


@pytest.mark.parametrize("text", ["0.10000000000000001", "5.684341886080802E-14", "1.0000000000000000e+00"])
def test_a_float_takes_what_programs_write_of_it_with_17_digits(text: str) -> None:
    assert parse_fraction(text) == float(text)
    assert not isinstance(parse_fraction(text), Number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":[1.50,-0.0,1E5,0.1],"b":18446744073709551615,"c":-9223372036854775808}', None),
        ('"1234567890123456.789 \\" 1e400 \\\\"', None),
        ("1e400", '"1e400"'),
        ("0.10000000000000001", '"0.10000000000000001"'),
        ('{"1e400":-1e400}', '{"1e400":"-1e400"}'),
        ("[1234567890123456.789,18446744073709551616]", '["1234567890123456.789","18446744073709551616"]'),
        ("[-9223372036854775809]", '["-9223372036854775809"]'),
        ("9" * 5000, '"' + "9" * 5000 + '"'),
    ],
)
def test_numbers_that_json_of_a_table_does_not_hold_are_texts(text: str, expected: str | None) -> None:
    assert all_storable(text) == (expected or text)
    assert all_storable(all_storable(text)) == all_storable(text)


def test_without_many_digits_a_text_with_floats_alone_is_as_it_was() -> None:
    for text in ('{"a":1.5,"b":123456789012345678}', "[]"):
        assert storable(text) is text
    assert storable("[18446744073709551616]") == '["18446744073709551616"]'
