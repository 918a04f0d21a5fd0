"""Numbers of JSON documents, none of whose digits is lost.

A float takes a number where it stands for it: where the shortest decimal that means the float is the same decimal, as
with 0.1 and 1.50. It does not stand for 1234567890123456.789, and 1e400 is none. BigQuery's JSON has 64-bit whole
numbers and floats too: it rounds others, or refuses the file that they are in. In JSON columns these are texts.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

#: So many characters, one of which is a point or an e, are 15 digits at most: every float within the bounds holds them.
_SURE: Final = 16
_LEAST, _MOST = 1e-300, 1e300
_MIN, _END = -(2**63), 2**64
_LONGEST_WHOLE: Final = len(str(_MIN))
_ZERO: Final = re.compile(r"-?[0.]+(?:[eE].*)?")
_STRING_OR_NUMBER: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9][0-9.eE+-]*')
_MANY_DIGITS: Final = re.compile(r"[0-9]{19}")


class Number(str):
    """A number of a document as it is written: a float would round it."""

    __slots__ = ()


def parse_fraction(text: str) -> float | Number:
    """A number with a point or an exponent, for JSON's decoder: a float where one stands for it."""
    found = float(text)
    if len(text) <= _SURE and _LEAST < abs(found) < _MOST:
        return found
    return found if _stands_for(found, text) else Number(text)


def _stands_for(found: float, text: str) -> bool:
    written = repr(found)
    if written == text:
        return True
    if not found:
        return _ZERO.fullmatch(text) is not None
    return math.isfinite(found) and Decimal(written) == Decimal(text)


def storable(text: str) -> str:
    """JSON as a column takes it that is known to have no fractions but floats': whole numbers of more than 64 bits as
    texts."""
    return all_storable(text) if _MANY_DIGITS.search(text) else text


def all_storable(text: str) -> str:
    """JSON as a column takes it: numbers of more digits than it holds as texts."""
    return _STRING_OR_NUMBER.sub(_as_stored, text)


def _as_stored(found: re.Match[str]) -> str:
    token = found[0]
    return token if token[0] == '"' or _is_held(token) else f'"{token}"'


def _is_held(text: str) -> bool:
    is_whole = len(text) <= _LONGEST_WHOLE and text.lstrip("-").isdigit()
    if is_whole and _MIN <= int(text) < _END:
        return True
    return not isinstance(parse_fraction(text), Number)
