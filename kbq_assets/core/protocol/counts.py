"""Counts of a range of positions. They must add up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbq_assets.core.errors import BUG, Defect
from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class Counts(Stored):
    """Counts of a range: ``positions = records + gaps + lost``, ``records = rows + errors + skipped +
    erased``."""

    positions: int = 0
    #: delivered by the broker
    records: int = 0
    #: size of the records' values
    bytes: int = 0
    #: control records, aborted transactions, compaction
    gaps: int = 0
    #: given up by `kbq accept-gap`
    lost: int = 0
    skipped: int = 0
    #: omitted or deleted by erasures (core/erasure)
    erased: int = 0
    errors: int = 0
    #: rows that lack a business time although their topic defines one
    event_time_fallbacks: int = 0
    #: values that the rules for personal data removed from documents without naming them
    dropped_values: int = 0
    #: by table
    rows: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        rows = {
            table: self.rows.get(table, 0) + other.rows.get(table, 0) for table in {**self.rows, **other.rows}
        }
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTED}
        return Counts(**sums, rows=rows, extra=_sum_unknown(self.extra, other.extra))

    def __sub__(self, other: Counts) -> Counts:
        rows = {table: count - other.rows.get(table, 0) for table, count in self.rows.items()}
        return Counts(**{name: getattr(self, name) - getattr(other, name) for name in _COUNTED}, rows=rows)

    @property
    def staged(self) -> int:
        """Rows in data tables' files."""
        return sum(self.rows.values())

    def check(self, context: str) -> None:
        """Raise Defect unless every position is accounted for."""
        if self.positions != self.records + self.gaps + self.lost:
            raise Defect(f"{context}: {self} leaves positions unaccounted for", next_step=BUG)
        if self.records != self.staged + self.errors + self.skipped + self.erased:
            raise Defect(f"{context}: {self} leaves records unaccounted for", next_step=BUG)


_COUNTED: Final = tuple(f.name for f in dataclasses.fields(Counts) if f.name not in {"rows", "extra"})


def total(parts: Iterable[Counts]) -> Counts:
    """The sum of many counts. Unlike `sum`, it does not copy the counts of all tables for each part."""
    rows: dict[str, int] = {}
    sums = dict.fromkeys(_COUNTED, 0)
    unknown: Mapping[str, Any] = {}
    for part in parts:
        for table, count in part.rows.items():
            rows[table] = rows.get(table, 0) + count
        for name in _COUNTED:
            sums[name] += getattr(part, name)
        unknown = _sum_unknown(unknown, part.extra)
    return Counts(**sums, rows=rows, extra=unknown)


def _sum_unknown(left: Mapping[str, Any], right: Mapping[str, Any]) -> Mapping[str, Any]:
    """Sum fields of a newer version: numbers are added, anything else keeps the left value."""
    if not right:
        return left
    both = {n for n in left.keys() & right.keys() if isinstance(left[n], int) and isinstance(right[n], int)}
    return {**right, **left, **{name: left[name] + right[name] for name in both}}
