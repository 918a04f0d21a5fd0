"""Input and output of validation: limits, verdicts and captured fields."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.records.program import WIDTH, Program
from kbq_assets.wire.records.reasons import Reason


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Bounds for any record. Exceeding one is a reason, never a crash or an endless loop."""

    max_bytes: int = 10 * 1024 * 1024
    """Bytes of a value, including its prefix."""
    max_depth: int = 64
    """Nesting depth of arrays, maps and shared records."""
    max_items: int = 10_000_000
    """Items in all arrays and maps of a record."""
    max_empty_items: int = 10_000
    """Items that take no bytes, in all arrays of a record. Ten bytes can state 2**62 nulls, hence the limit."""
    max_json_depth: int = 500
    """Nesting depth of arrays and objects in a JSON document, as in BigQuery."""


@dataclass(frozen=True, slots=True, eq=False)
class Captures:
    """The locations of captured fields: for each slot and validated record, a kind (0: null or absent) and a span."""

    kinds: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def take(self, records: NDArray[np.bool_] | NDArray[np.int64]) -> Captures:
        """The captures of some records, selected by mask or indexes."""
        chosen = np.flatnonzero(records) if records.dtype == np.bool_ else records
        return Captures(self.kinds.take(chosen, 1), self.starts.take(chosen, 1), self.ends.take(chosen, 1))

    def first(self, slots: int) -> Captures:
        """The captures of the first slots."""
        return Captures(self.kinds[:slots], self.starts[:slots], self.ends[:slots])


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """The verdict for each validated row: the reason and, if bad, the position in the value and the instruction."""

    reasons: NDArray[np.uint8]
    positions: NDArray[np.int64]
    instructions: NDArray[np.int32]
    captures: Captures


def blank_validation(count: int, slots: int) -> Validation:
    """Empty arrays for the verdicts of ``count`` records with ``slots`` captures."""
    captures = Captures(
        np.zeros((slots, count), np.uint8),
        np.empty((slots, count), np.int64),
        np.empty((slots, count), np.int64),
    )
    return Validation(
        np.zeros(count, np.uint8), np.zeros(count, np.int64), np.zeros(count, np.int32), captures
    )


def describe(program: Program, validation: Validation, index: int, *, position: bool = True) -> str:
    """A record's problem and its field, for the error table. Includes the position in the value if ``position``; set it
    only if the value is the record's own."""
    reason = Reason(int(validation.reasons[index]))
    if reason <= Reason.TOO_LARGE:  # found before the first instruction
        return reason.message
    place = program.places[int(validation.instructions[index]) // WIDTH]
    field = f" in field {place}" if place else ""
    where = f" (byte {int(validation.positions[index])} of the value)" if position else ""
    return f"{reason.message}{field}{where}"
