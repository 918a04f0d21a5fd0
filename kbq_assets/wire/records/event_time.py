"""Business times of records in microseconds since 1970: kernels over captured bytes.

core/topics/business_time.py defines the meaning of values. Tests compare the two modules, so change both together.
"""

# ruff: noqa: PLR1714

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kbq_assets.core.topics.business_time import ALL_TIMES, TimeBounds
from kbq_assets.wire.chunk import END_OF_TIME, Chunk, Longs
from kbq_assets.wire.jit import inlined, int64, kernel, load_byte
from kbq_assets.wire.records.program import CaptureKind
from kbq_assets.wire.records.scan import read_long, read_wide_long
from kbq_assets.wire.records.verdicts import Captures

HOUR_MICROS = 3_600_000_000
DAY_MICROS = 24 * HOUR_MICROS

# Numba compiles module constants to literals, but would look up enum members as objects.
_DATE, _MILLIS, _MICROS = int(CaptureKind.DATE), int(CaptureKind.MILLIS), int(CaptureKind.MICROS)
_NANOS, _TEXT, _PLAIN_LONG = int(CaptureKind.NANOS), int(CaptureKind.TEXT), int(CaptureKind.LONG)
#: Units of numbers, with the numbers of core/topics/business_time.py.
_JUDGED, _S, _MS, _US, _NS = 0, 1, 2, 3, 4
#: The value for no time.
NO_TIME = -(2**63)
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
_FIRST_SECOND, _END_SECOND = _FIRST_DAY * 86_400, _END_DAY * 86_400
_LEAST_SECONDS, _LEAST_MILLIS, _LEAST_MICROS, _LEAST_NANOS = 10**8, 10**11, 10**14, 10**17
_LONGEST_NUMBER = 18
_MOST_DOUBLE = float(2**63)


NO_TIMES: Longs = np.empty(0, np.int64)


class EventTimes(NamedTuple):
    """Business times of rows, in order. ``fallbacks`` counts rows that use the Kafka timestamp instead. ``newest`` is
    the highest time of the other rows."""

    times: Longs = NO_TIMES
    fallbacks: int = 0
    newest: int = NO_TIME


def event_times(
    chunk: Chunk, rows: Longs, captures: Captures, unit: int = _JUDGED, bounds: TimeBounds = ALL_TIMES
) -> EventTimes:
    """The business time of each row, from capture 0. Plain numbers are in ``unit``.

    If the captured field is null, absent, not a time, or out of bounds, the row gets its Kafka timestamp, or 0 if it
    has none. If there is no capture, the times are empty: use `kafka_times`.
    """
    if not len(captures.kinds):
        return EventTimes()
    times = np.empty(len(rows), np.int64)
    fallbacks, newest = _event_times(
        chunk.buffer,
        chunk.timestamps,
        rows,
        (captures.kinds, captures.starts, captures.ends),
        (unit, bounds.first_micros, bounds.days_ahead),
        times,
    )
    return EventTimes(times, int(fallbacks), int(newest))


def kafka_times(timestamps: Longs) -> Longs:
    """Kafka timestamps as times in microseconds; 0 for missing ones."""
    known = (timestamps >= 0) & (timestamps < END_OF_TIME)
    return np.where(known, timestamps * 1000, 0).astype(np.int64)


@inlined
def _unit_of(value: float, unit: int) -> int:
    """The given unit or, if there is none, the one that a number's size suggests."""
    if unit != _JUDGED or value < _LEAST_SECONDS:
        return unit
    if value < _LEAST_MILLIS:
        return _S
    if value < _LEAST_MICROS:
        return _MS
    return _US if value < _LEAST_NANOS else _NS


@inlined
def micros_of_number(value: int, unit: int) -> int:
    """A number in microseconds, by its unit or the unit that its size suggests; `NO_TIME` if it is not a time."""
    unit = _unit_of(value, unit)
    if unit == _S and _FIRST_SECOND <= value < _END_SECOND:
        return value * 1_000_000
    if unit == _MS and _FIRST_SECOND * 1000 <= value < _END_SECOND * 1000:
        return value * 1000
    if unit == _US and _FIRST_SECOND * 1_000_000 <= value < _END_SECOND * 1_000_000:
        return value
    if unit == _NS:
        return value // 1000
    return NO_TIME


@inlined
def micros_of_double(value: float, unit: int) -> int:
    """A double in microseconds, as `micros_of_number`, with ties rounded to even."""
    if not -_MOST_DOUBLE < value < _MOST_DOUBLE:
        return NO_TIME
    unit = _unit_of(value, unit)
    if unit == _NS:
        nanos: int = int64(value // 1000.0)
        return nanos
    if unit == _S:
        value *= 1_000_000.0
    elif unit == _MS:
        value *= 1_000.0
    elif unit != _US:
        return NO_TIME
    value = np.rint(value)
    return int64(value) if _FIRST_SECOND * 1e6 <= value < _END_SECOND * 1e6 else NO_TIME


@inlined
def _of_long(kind: int, value: int, unit: int) -> int:
    """A captured number in microseconds, by the unit of its type, or else of the topic."""
    if kind == _DATE:
        return value * DAY_MICROS if _FIRST_DAY <= value < _END_DAY else NO_TIME
    if kind == _MILLIS:
        return micros_of_number(value, _MS)
    if kind == _MICROS:
        return micros_of_number(value, _US)
    if kind == _NANOS:
        return micros_of_number(value, _NS)
    return micros_of_number(value, unit) if kind == _PLAIN_LONG else NO_TIME


@inlined
def _digits(buffer: Any, position: int, count: int, end: int) -> int:
    """A number of ``count`` decimal digits before ``end``, or -1."""
    if position + count > end:
        return -1
    number = 0
    for index in range(position, position + count):
        digit = load_byte(buffer, index) - 48
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
    return number


@inlined
def _byte(buffer: Any, position: int, end: int) -> int:
    return load_byte(buffer, position) if position < end else -1


@inlined
def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970, or `NO_TIME`. http://howardhinnant.github.io/date_algorithms.html: the year begins in March."""
    if year < 1 or month < 1 or month > 12 or day < 1 or day > 31:
        return NO_TIME
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 2 and day > (29 if leap else 28):
        return NO_TIME
    if day == 31 and (month == 4 or month == 6 or month == 9 or month == 11):
        return NO_TIME
    shifted = year - (1 if month <= 2 else 0)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + day_of_year - 719_468


@inlined
def _zone(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """The offset of a zone in seconds (0 if there is none), and the position after it, -1 if it is malformed."""
    sign = _byte(buffer, position, end)
    if sign == 90 or sign == 122:  # Z, z
        return 0, position + 1
    if sign != 43 and sign != 45:
        return 0, position
    hours = _digits(buffer, position + 1, 2, end)
    position += 3
    minutes = 0
    colon = _byte(buffer, position, end) == 58
    if colon or 48 <= _byte(buffer, position, end) <= 57:
        position += 1 if colon else 0
        minutes = _digits(buffer, position, 2, end)
        position += 2
    if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
        return 0, -1
    seconds = hours * 3600 + minutes * 60
    return seconds if sign == 43 else -seconds, position


@inlined
def _clock(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """``hh:mm[:ss[.fraction]]``, with or without colons, in microseconds, and the position after it, -1 if
    malformed."""
    hour = _digits(buffer, position, 2, end)
    gap = 1 if _byte(buffer, position + 2, end) == 58 else 0
    minute = _digits(buffer, position + 2 + gap, 2, end)
    position += 4 + gap
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return 0, -1
    micros = (hour * 60 + minute) * 60_000_000
    following = _byte(buffer, position, end)
    seconds_follow = following == 58 if gap == 1 else 48 <= following <= 57
    if not seconds_follow:
        return micros, position
    second = _digits(buffer, position + gap, 2, end)
    position += 2 + gap
    if second < 0 or second > 59:
        return 0, -1
    micros += second * 1_000_000
    point = _byte(buffer, position, end)
    if point != 46 and point != 44:
        return micros, position
    worth, first = 100_000, position + 1
    position = first
    while 48 <= _byte(buffer, position, end) <= 57:
        micros += (load_byte(buffer, position) - 48) * worth
        worth //= 10
        position += 1
    return micros, position if position > first else -1


@inlined
def _of_moment(buffer: Any, start: int, end: int) -> int:
    """A date, with or without time and zone, in RFC 3339 or ISO 8601's basic format, in microseconds."""
    gap = 1 if _byte(buffer, start + 4, end) == 45 else 0
    year = _digits(buffer, start, 4, end)
    month = _digits(buffer, start + 4 + gap, 2, end)
    if gap == 1 and _byte(buffer, start + 7, end) != 45:
        return NO_TIME
    day = _digits(buffer, start + 6 + 2 * gap, 2, end)
    position = start + 8 + 2 * gap
    days = _days_from_civil(year, month, day)
    if days == NO_TIME:
        return NO_TIME
    if position == end:
        return days * DAY_MICROS
    between = load_byte(buffer, position)
    if between != 84 and between != 116 and between != 32:  # T, t, space
        return NO_TIME
    micros, position = _clock(buffer, position + 1, end)
    if position < 0:
        return NO_TIME
    offset, position = _zone(buffer, position, end)
    if position < 0:
        return NO_TIME
    # A zone's name in brackets may follow (RFC 9557); the offset before it decides.
    named = _byte(buffer, position, end) == 91 and load_byte(buffer, end - 1) == 93
    if position != end and not named:
        return NO_TIME
    return micros_of_number(days * DAY_MICROS + micros - offset * 1_000_000, _US)


@inlined
def _is_space(byte: int) -> bool:
    return byte == 32 or byte == 9 or byte == 10 or byte == 13


@inlined
def _of_text(buffer: Any, start: int, end: int, unit: int) -> int:
    """A captured text in microseconds."""
    length, start = read_long(buffer, start, end)
    return micros_of_text(buffer, start, start + length, unit)


@inlined
def micros_of_text(buffer: Any, start: int, end: int, unit: int) -> int:
    """A text in microseconds; `NO_TIME` if it is not a time."""
    while start < end and _is_space(load_byte(buffer, start)):
        start += 1
    while start < end and _is_space(load_byte(buffer, end - 1)):
        end -= 1
    size = end - start
    if size <= _LONGEST_NUMBER and (size != 8 or unit != _JUDGED):
        number = _digits(buffer, start, size, end) if size > 0 else -1
        if number >= 0:
            return micros_of_number(number, unit)
    return _of_moment(buffer, start, end)


@inlined
def _counts(time: int, timestamp: int, first: int, days_ahead: int) -> bool:
    """Whether a time is within bounds. A Kafka time before the first valid time sets no upper bound."""
    if time < first:
        return False
    if timestamp < 0 or timestamp >= END_OF_TIME or timestamp * 1000 < first:
        return True
    return time < (timestamp * 1000 // DAY_MICROS + days_ahead + 1) * DAY_MICROS


@kernel
def _event_times(
    buffer: Any, timestamps: Any, rows: Any, captures: Any, meaning: Any, times: Any
) -> tuple[int, int]:
    kinds, starts, ends = captures
    unit, first, days_ahead = meaning
    fallbacks, newest = 0, NO_TIME
    for k in range(len(rows)):
        kind = int64(kinds[0, k])
        time = NO_TIME
        if kind == _TEXT:
            time = _of_text(buffer, starts[0, k], ends[0, k], unit)
        elif kind != 0:
            value, _ = read_wide_long(buffer, starts[0, k], ends[0, k])
            time = _of_long(kind, value, unit)
        timestamp = timestamps[rows[k]]
        if time != NO_TIME and not _counts(time, timestamp, first, days_ahead):
            time = NO_TIME
        if time == NO_TIME:
            fallbacks += 1
            time = timestamp * 1000 if 0 <= timestamp < END_OF_TIME else 0
        elif time > newest:
            newest = time
        times[k] = time
    return fallbacks, newest
