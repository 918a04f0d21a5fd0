"""The business time: finds the field of a record that has it, and parses its value. All times are UTC.

Numbers are seconds, milliseconds, microseconds or nanoseconds since 1970; the topic sets the unit, or the size of the
number decides. Each unit begins in March 1973 (10^8 seconds), so 20250131 and durations are not times. Texts are RFC
3339, ISO 8601's basic format, a date alone (meaning midnight), or such numbers. A time without a zone is UTC. Times
outside the years 1 to 9999 do not count. wire/records/event_time.py applies the same rules to bytes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from functools import cached_property, lru_cache
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.topics.json.numbers import Number

#: The option's value to choose the field by its name and type.
AUTO: Final = "auto"
#: Field names that `auto` recognizes as times, most likely first.
CANDIDATES: Final = (
    "event_time", "event_timestamp", "occurred_at", "created_at", "timestamp", "time", "ts", "date",
)  # fmt: skip
#: Endings of further names that it recognizes.
ENDINGS: Final = ("_at", "_time", "_date")
#: Formats, with their numbers in the wire layer; 0 decides by size.
FORMATS: Final[Mapping[str, int]] = {
    "": 0, "epoch_s": 1, "epoch_ms": 2, "epoch_us": 3, "epoch_ns": 4, "rfc3339": 5,
}  # fmt: skip

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FIRST_MICROS: Final = -62_135_596_800_000_000
_END_MICROS: Final = 253_402_300_800_000_000
_DAY_MICROS: Final = 86_400_000_000
#: All days that a warehouse can store.
MOST_DAYS_AHEAD: Final = 3_652_059
_LEAST: Final = ((10**17, "epoch_ns"), (10**14, "epoch_us"), (10**11, "epoch_ms"), (10**8, "epoch_s"))
_MICROS: Final = {"epoch_s": 1_000_000, "epoch_ms": 1_000, "epoch_us": 1}
_MAX_INT64: Final = 2**63 - 1
_LONGEST_NUMBER: Final = 18
_MOMENT: Final = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)"
    r"(?:[Tt ](\d\d)(:?)(\d\d)(?:\6(\d\d)(?:[.,](\d+))?)?(?:[Zz]|([+-])(\d\d)(?::?(\d\d))?)?(?:\[.*\])?)?",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The range of business times that count: from ``first_day`` since 1970 to ``days_ahead`` days after the Kafka
    time's day. A Kafka time before the first day sets no upper bound."""

    first_day: int
    days_ahead: int

    @property
    def first_micros(self) -> int:
        """The first moment that counts."""
        return max(_FIRST_MICROS, self.first_day * _DAY_MICROS)


@dataclass(frozen=True)
class BusinessTime:
    """The option `event_date`. ``candidates`` are dotted paths; the first one in a schema counts. Empty means
    `auto`. ``format`` is one of `FORMATS`."""

    candidates: tuple[str, ...] = ()
    format: str = ""
    #: whether all schemas of a topic may lack the field, because several topics share the option
    is_optional: bool = dataclasses.field(default=False, compare=False)

    @property
    def is_automatic(self) -> bool:
        """Whether the field is chosen by name and type."""
        return not self.candidates

    def of_document(self, document: object) -> int | None:
        """The time of the first candidate in a JSON document that has one, in microseconds since 1970; None if none
        has."""
        if not isinstance(document, dict):
            return None
        paths = ((key,) for key in candidate_keys(document)) if self.is_automatic else self._paths
        times = (epoch_micros(_value_at(document, path), self.format) for path in paths)
        return next((micros for micros in times if micros is not None), None)

    @cached_property
    def _paths(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(path.split(".")) for path in self.candidates)


ALL_TIMES: Final = TimeBounds(_FIRST_MICROS // _DAY_MICROS, MOST_DAYS_AHEAD)


@dataclass(frozen=True)
class Chosen:
    """The field of a schema that has the business time, and the reason for the choice."""

    path: str
    why: str


def parse_business_time(option: str) -> BusinessTime | None:
    """Parse `event_date`: `auto`, a path, or several as `a|b|c`, optionally followed by a format such as `:epoch_s`.
    None for "". Raises ConfigurationError.
    """
    if not option:
        return None
    paths, colon, format_ = option.rpartition(":")
    if not colon:
        paths, format_ = option, ""
    if format_ not in FORMATS or (colon and not format_):
        known = ", ".join(name for name in FORMATS if name)
        raise ConfigurationError(f"event_date={option}: no format {format_!r}", next_step=f"one of {known}")
    candidates = tuple(paths.split("|"))
    if not all(all(path.split(".")) for path in candidates):
        raise ConfigurationError(f"event_date={option}: a field has no name", next_step="a, a.b, or a|b|c")
    return BusinessTime(() if candidates == (AUTO,) else candidates, format_)


def option_text(section: Mapping[str, Any]) -> str:
    """The option's text from a catalog's keys ``field``, ``candidates`` and ``format``, in this order."""
    paths = [section["field"]] if "field" in section else []
    text = "|".join([*paths, *section.get("candidates", ())]) or AUTO
    return f"{text}:{section['format']}" if "format" in section else text


def choose_field(schema: avro.AvroType, business: BusinessTime) -> Chosen | None:
    """The field of an Avro record schema that has the business time; None if no field has one. A single named field
    counts whatever its type; staging refuses it if it cannot be a time.
    """
    if business.is_automatic:
        return _found(schema)
    for path in business.candidates:
        type_ = type_at(schema, path.split("."))
        if type_ is not None and (len(business.candidates) == 1 or _tier(type_) is not None):
            return Chosen(path, "named" if len(business.candidates) == 1 else "the first candidate there")
    return None


def candidate_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys of a JSON object whose names suggest times, most likely first. Only their values show whether they are."""
    ranked = [(rank, index, key) for index, key in enumerate(keys) if (rank := name_rank(key)) is not None]
    return tuple(key for _, _, key in sorted(ranked))


@lru_cache(maxsize=4096)
def name_rank(name: str) -> int | None:
    """The rank of a name that suggests a time, 0 for the most likely; None for other names. `eventTime` ranks as
    `event_time`."""
    plain = _snake(name)
    if plain in CANDIDATES:
        return CANDIDATES.index(plain)
    endings = (len(CANDIDATES) + index for index, ending in enumerate(ENDINGS) if plain.endswith(ending))
    return next(endings, None)


def epoch_micros(value: object, format_: str = "") -> int | None:
    """A JSON value as microseconds since 1970; None if it is not a time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Number):
        value = float(value)
    if isinstance(value, int | float):
        return _of_number(value, format_)
    return _of_text(value, format_) if isinstance(value, str) else None


def _value_at(document: object, path: Iterable[str]) -> object:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


_TIMESTAMPS, _DATES, _TEXTS, _NUMBERS = range(4)
_TIER_NAMES: Final = ("a timestamp", "a date", "text", "a plain number")


def _found(schema: avro.AvroType) -> Chosen | None:
    """The best of a record's own fields: by name if the type fits, else the first timestamp, else the first date."""
    best: tuple[tuple[int, ...], Chosen] | None = None
    record = next(_records(schema), None)
    for index, field in enumerate(record.fields.values() if record else ()):
        tier, rank = _tier(field.type), name_rank(field.name)
        key = None if tier is None else _sureness(tier, rank, field.name)
        if key is not None and tier is not None and (best is None or (*key, index) < best[0]):
            why = f"{_TIER_NAMES[tier]}, by its {'type' if rank is None else 'name'}"
            best = ((*key, index), Chosen(field.name, why))
    return None if best is None else best[1]


def _sureness(tier: int, rank: int | None, name: str) -> tuple[int, ...] | None:
    """A sort key, lower for more likely times. Plain numbers may be durations unless their names end in `_at`."""
    if rank is None:
        return (2, tier, 0) if tier in (_TIMESTAMPS, _DATES) else None
    if rank < len(CANDIDATES):
        return (0, rank, tier)
    if tier == _NUMBERS:
        return (3, rank, 0) if _snake(name).endswith("_at") else None
    return (1, tier, rank)


def _snake(name: str) -> str:
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^A-Za-z0-9]+", "_", split).strip("_").lower()


def _tier(node: avro.AvroType) -> int | None:
    """How likely values of a type are times, None if some cannot be. Nulls are ignored."""
    if isinstance(node, avro.Union):
        if node.wrappers:
            return None  # never chosen so far: partitions of existing topics must not move
        tiers = [_tier(branch) for branch in node.branches if not avro.is_null(branch)]
        return None if not tiers or None in tiers else max(tier for tier in tiers if tier is not None)
    if not isinstance(node, avro.Primitive):
        return None
    logical = next((str(value) for value in reversed([*node.values_of("logicalType")]) if value), "")
    if logical == "date" and node.kind == "int":
        return _DATES
    if logical.startswith(("timestamp-", "local-timestamp-")) and node.kind == "long":
        return _TIMESTAMPS
    return None if logical else _PLAIN_TIERS.get(node.kind)


_PLAIN_TIERS: Final = {"string": _TEXTS, "long": _NUMBERS, "int": _NUMBERS}


def _records(node: avro.AvroType) -> Iterator[avro.RecordType]:
    """The record types that a value may have."""
    if isinstance(node, avro.RecordType):
        yield node
    elif isinstance(node, avro.Union):
        yield from (branch for branch in node.branches if isinstance(branch, avro.RecordType))


def type_at(node: avro.AvroType, path: Sequence[str]) -> avro.AvroType | None:
    """The type of the field at a path through records and unions; None if there is no such field."""
    if not path:
        return node
    fields = (record.fields[path[0]] for record in _records(node) if path[0] in record.fields)
    return next((found for field in fields if (found := type_at(field.type, path[1:]))), None)


def _of_number(value: float, format_: str) -> int | None:
    if not -_MAX_INT64 <= value <= _MAX_INT64:  # false for NaN
        return None
    unit = format_ or next((name for least, name in _LEAST if value >= least), "")
    if unit == "epoch_ns":
        return int(value // 1000)
    if unit not in _MICROS:
        return None
    micros = round(value * _MICROS[unit])
    return micros if _FIRST_MICROS <= micros < _END_MICROS else None


def _of_text(text: str, format_: str) -> int | None:
    text = text.strip(" \t\n\r")
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    if is_number and (format_ or len(text) != len("20250131")):
        return _of_number(int(text), format_)
    matched = _MOMENT.fullmatch(text)
    try:
        return None if matched is None else _micros(matched.groups(default=""))
    except (ValueError, OverflowError):
        return None


def _micros(parts: tuple[str, ...]) -> int | None:
    year, _, month, day, hour, _, minute, second, fraction, sign, zone_hours, zone_minutes = parts
    if zone_minutes > "59":
        return None
    zone = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    date = (int(year), int(month), int(day))
    clock = (int(hour or 0), int(minute or 0), int(second or 0), int(fraction[:6].ljust(6, "0")))
    moment = datetime(*date, *clock, timezone(-zone if sign == "-" else zone))
    micros = (moment - _EPOCH) // _MICROSECOND
    return micros if _FIRST_MICROS <= micros < _END_MICROS else None
