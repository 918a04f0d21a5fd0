"""JSON values: one document, strictly, in bounds."""

from __future__ import annotations

import json
import math
import random
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets_tests.wire.samples import chunk_of

LIMITS = RecordLimits(max_json_depth=10)
SAMPLES = [
    b'{"id": 17, "n": "Stra\xc3\x9fe \\u00e9 \\ud83c\\udf89", "tags": ["", null], "ok": true, "x": -1.5e+10}',
    b'[[], {}, {"a": {"b": [0, -0, 0.1, 1E9, 12e-3]}}, "\\"\\\\\\/\\b\\f\\n\\r\\t", false]',
    b' \t\r\n{"": [1 , 2] , "dup": 1, "dup": 2} ',
]


def verdicts(*documents: bytes | None, limits: RecordLimits = LIMITS) -> list[Reason]:
    return [Reason(reason) for reason in validate_json(chunk_of(*documents), None, limits).reasons.tolist()]


@pytest.mark.parametrize(
    "document",
    [
        *SAMPLES,
        b"0",
        b"-0",
        b"1e5",
        b'""',
        b"null",
        b"true",
        b"false",
        b"[]",
        b"{}",
        b"  7  ",
        b'"\x7f"',
        b"[" * 10 + b"]" * 10,
    ],
)
def test_a_document_is_good(document: bytes) -> None:
    assert verdicts(document) == [Reason.GOOD]


@pytest.mark.parametrize(
    "document",
    [
        *(
            b"",
            b" ",
            b"nul",
            b"nulls",
            b"True",
            b"NaN",
            b"Infinity",
            b"-Infinity",
            b"undefined",
            b"'a'",
            b"\xef\xbb\xbf1",
        ),
        *(b"01", b"-", b"+1", b".5", b"1.", b"1e", b"1e+", b"--1", b"0x10", b"1_000", b"1 2", b"1,"),
        *(
            b'"',
            b'"a',
            b'"\\',
            b'"\\x"',
            b'"\\u12"',
            b'"\\u12g4"',
            b'"\\',
            b'"a\nb"',
            b'"a\x00b"',
            b'"\\u1"',
            b'"\\u"',
        ),
        *(
            b'"\\ud800"',
            b'"\\udc00"',
            b'"\\ud800\\ud800"',
            b'"\\udc00\\udc00"',
            b'"\\ud83c x"',
            b'"\\ud83c',
            b'"\\ud83c\\udf8"',
        ),
        *(b"[", b"]", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1}", b"{]", b"[]]", b"[][]", b"[1]x"),
        *(
            b"{",
            b"}",
            b'{"a"',
            b'{"a":',
            b'{"a":1',
            b'{"a":1,',
            b'{"a":1,}',
            b"{,}",
            b"{1:2}",
            b'{"a" 1}',
            b"{a:1}",
        ),
        *(
            b'{"a"::1}',
            b'{"a":1 "b":2}',
            b'{"a":1]',
            b"{}{}",
            b'{"a":1}}',
            b"/* */1",
            b"1//",
            b'{"a',
            b'{"a"\x0b:1}',
        ),
    ],
)
def test_what_is_not_one_document_is_invalid(document: bytes) -> None:
    assert verdicts(document) == [Reason.INVALID_JSON]


LEAST_TOO_LARGE = 2**1024 - 2**970


@pytest.mark.parametrize(
    "number",
    [
        *(b"1e400", b"-1E+400", b"1e309", b"0.001e312", b"1" + b"0" * 309, b"0." + b"0" * 50 + b"1e360"),
        *(b"1.7976931348623159e308", b"179769313486231590000e288", b"1e" + b"9" * 50, b"5e00400"),
        *(str(LEAST_TOO_LARGE).encode(), str(LEAST_TOO_LARGE).encode() + b".000", b"9" * 5000),
        *(b"1" * 250 + b"e60", b"1" + b"0" * 250 + b".5e99"),
    ],
)
def test_a_number_that_no_double_holds_is_out_of_range(number: bytes) -> None:
    documents = number, b'{"a": [0, ' + number + b', 1], "b": {}}', b'"' + number + b'"', number + b"x"
    out, good, bad = Reason.OUT_OF_RANGE, Reason.GOOD, Reason.INVALID_JSON
    assert verdicts(*documents) == [out, out, good, bad]


@pytest.mark.parametrize(
    "number",
    [
        *(
            b"1e308",
            b"-1.7976931348623158e308",
            b"1e-400",
            b"0e999",
            b"0.0e+99999",
            b"0.001e310",
            b"1e0000005",
        ),
        *(str(LEAST_TOO_LARGE - 1).encode(), b"9" * 308, b"1" * 250 + b"e-60", b"0." + b"0" * 400 + b"1e500"),
        *(b"17976931348623157e292", b"1e-" + b"9" * 50, b"1" + b"0" * 5000 + b"e-5000"),
    ],
)
def test_a_number_that_a_double_holds_or_rounds_is_good(number: bytes) -> None:
    assert verdicts(number, b"[" + number + b"]") == [Reason.GOOD, Reason.GOOD]


@given(st.integers(0, 10**40), st.integers(0, 400), st.integers(-420, 420))
def test_numbers_are_judged_as_by_python(digits: int, point: int, exponent: int) -> None:
    text = str(digits).rjust(point + 1, "0")
    text = (f"{text[:-point]}.{text[-point:]}" if point else text) + f"e{exponent}"
    expected = Reason.GOOD if math.isfinite(float(text)) else Reason.OUT_OF_RANGE
    assert verdicts(text.encode()) == [expected]


def test_the_first_number_that_no_double_holds_is_reported() -> None:
    validation = validate_json(chunk_of(b'{"a": 1, "b": 1e400, "c": 1e500}'), None, LIMITS)
    assert validation.positions.tolist() == [14]


def test_other_reasons_come_first() -> None:
    documents = (None, b'"' + b"a" * 60 + b'"', b'"\xff"', b"[" * 11, b'{"a":' * 11)
    expected = [Reason.NULL_VALUE, Reason.TOO_LARGE, Reason.INVALID_UTF8, Reason.TOO_DEEP, Reason.TOO_DEEP]
    assert verdicts(*documents, limits=RecordLimits(max_bytes=60, max_json_depth=10)) == expected


def test_a_depth_bomb_is_a_reason() -> None:
    assert verdicts(b"[" * 5_000_000, limits=RecordLimits()) == [Reason.TOO_DEEP]


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(_values, st.booleans(), st.sampled_from([None, 2]))
def test_what_python_writes_is_good(value: Any, ascii_only: bool, indent: int | None) -> None:
    document = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert verdicts(document, limits=RecordLimits()) == [Reason.GOOD]


@pytest.mark.parametrize("seed", range(20))
def test_damaged_documents_are_judged_as_by_python(seed: int) -> None:
    rng = random.Random(seed)
    documents = [_damaged(rng.choice(SAMPLES), rng) for _ in range(1000)]
    for document, reason in zip(documents, verdicts(*documents), strict=True):
        assert (document, reason) == (document, _judged_by_python(document))


def _damaged(document: bytes, rng: random.Random) -> bytes:
    data = bytearray(document)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 2)] = rng.choice(
            [
                b"",
                b"\\",
                b'"',
                b"0",
                b"-",
                b".",
                b"e",
                b",",
                b":",
                b"]",
                b"}",
                b"[",
                b"\\ud800",
                b"\xc3",
                b"\n",
            ]
        )
    return bytes(data)


def _judged_by_python(document: bytes) -> Reason:
    try:
        value = json.loads(document.decode("utf-8"), parse_constant=_refuse)
        text = json.dumps(value, ensure_ascii=False)
        text.encode("utf-8")
    except UnicodeDecodeError:
        return Reason.INVALID_UTF8
    except ValueError:  # UnicodeEncodeError too: a lone surrogate, which Python's parser lets through
        return Reason.INVALID_JSON
    return Reason.OUT_OF_RANGE if "Infinity" in text else Reason.GOOD


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
