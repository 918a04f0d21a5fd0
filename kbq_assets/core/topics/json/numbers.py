"""Numbers of JSON documents, read without losing a digit.

A float represents a number if some program prints the float with these digits, as in 0.1, 1.50 or 0.10000000000000001.
No float represents 1234567890123456.789 or 1e400. BigQuery's JSON also has only 64-bit whole numbers and floats; it
rounds other numbers, or refuses their file. In JSON columns, KBQ stores such numbers as texts.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Final

#: This many characters, with a point or an e, have at most 15 digits, which floats within the bounds represent.
_SURE: Final = 16
_LEAST, _MOST = 1e-300, 1e300
_MIN, _END = -(2**63), 2**64
_LONGEST_WHOLE: Final = len(str(_MIN))
_ZERO: Final = re.compile(r"-?[0.]+(?:[eE].*)?")
_STRING_OR_NUMBER: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9][0-9.eE+-]*')
_MANY_DIGITS: Final = re.compile(r"[0-9]{19}")


class Number(str):
    """A number as written in the document, because a float would round it."""

    __slots__ = ()


def parse_fraction(text: str) -> float | Number:
    """Parse a number with a point or an exponent, for a JSON decoder. Returns a float if it represents the number."""
    found = float(text)
    if _is_shortest(found, text) or _is_written_from(found, text):
        return found
    return Number(text)


def _is_shortest(found: float, text: str) -> bool:
    if len(text) <= _SURE and _LEAST < abs(found) < _MOST:
        return True
    written = repr(found)
    if written == text:
        return True
    if not found:
        return _ZERO.fullmatch(text) is not None
    return math.isfinite(found) and Decimal(written) == Decimal(text)


def _is_written_from(found: float, text: str) -> bool:
    """Whether the float, printed with as many digits, is this decimal. Some programs always print 17 digits."""
    if not found or not math.isfinite(found):
        return False
    given = Decimal(text)
    digits = Context(prec=len(given.as_tuple().digits), rounding=ROUND_HALF_EVEN)
    return digits.plus(Decimal(found)) == given


def storable(text: str) -> str:
    """JSON for a JSON column, with whole numbers of more than 64 bits as texts. Floats must represent all fractions in
    it."""
    return all_storable(text) if _MANY_DIGITS.search(text) else text


def all_storable(text: str) -> str:
    """JSON for a JSON column, with numbers as texts if the column cannot represent them."""
    return _STRING_OR_NUMBER.sub(_as_stored, text)


def _as_stored(found: re.Match[str]) -> str:
    token = found[0]
    return token if token[0] == '"' or _is_held(token) else f'"{token}"'


def _is_held(text: str) -> bool:
    is_whole = len(text) <= _LONGEST_WHOLE and text.lstrip("-").isdigit()
    if is_whole and _MIN <= int(text) < _END:
        return True
    return _is_shortest(float(text), text)
