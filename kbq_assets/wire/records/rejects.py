"""Records that are not rows, with reasons: the encoder's result for a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.chunk import Longs
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.staged_schema import StagedSchema
from kbq_assets.wire.records.verdicts import Validation, describe

NO_SCHEMA_ID = -1


@dataclass(frozen=True, slots=True, eq=False)
class Rejects:
    """Records of one chunk that are not rows: ascending indexes into the chunk, with reason, schema id and message."""

    rows: Longs
    reasons: NDArray[np.uint8]
    schema_ids: Longs
    messages: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, selection: NDArray[np.bool_] | Sequence[int] | Longs) -> Rejects:
        """The rejects selected by a mask, or by ascending indexes."""
        chosen = np.asarray(selection)
        indexes = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        return Rejects(
            self.rows[indexes],
            self.reasons[indexes],
            self.schema_ids[indexes],
            [self.messages[index] for index in indexes.tolist()],
        )

    def counts(self) -> dict[Reason, int]:
        """The number of rejects by reason."""
        reasons, counts = np.unique(self.reasons, return_counts=True)
        return {
            Reason(reason): count for reason, count in zip(reasons.tolist(), counts.tolist(), strict=True)
        }


class Rejections:
    """Collects the rejects of one chunk, group by group."""

    def __init__(self, *, positions: bool = True) -> None:
        self._positions = positions
        self._rows: list[int] = []
        self._reasons: list[int] = []
        self._schema_ids: list[int] = []
        self._messages: list[str] = []

    def all(self, rows: Longs, reason: Reason, schema_id: int, message: str | None = None) -> None:
        """Reject rows for one reason."""
        self._extend(rows, [int(reason)] * len(rows), schema_id, [message or reason.message] * len(rows))

    def some(self, rows: Longs, reasons: NDArray[np.int64]) -> None:
        """Reject rows without a schema id, each for its own reason."""
        codes = reasons.tolist()
        self._extend(rows, codes, NO_SCHEMA_ID, [Reason(code).message for code in codes])

    def invalid(self, schema: StagedSchema, validation: Validation, rows: Longs, schema_id: int) -> None:
        """Reject the invalid rows."""
        bad = np.flatnonzero(validation.reasons)
        messages = [
            describe(schema.program, validation, index, position=self._positions) for index in bad.tolist()
        ]
        self._extend(rows[bad], validation.reasons[bad].tolist(), schema_id, messages)

    def sorted(self) -> Rejects:
        """All rejects, in the order of the chunk."""
        order = np.argsort(np.array(self._rows, np.int64), kind="stable")
        return Rejects(
            np.array(self._rows, np.int64)[order],
            np.array(self._reasons, np.uint8)[order],
            np.array(self._schema_ids, np.int64)[order],
            [self._messages[index] for index in order.tolist()],
        )

    def _extend(self, rows: Longs, reasons: list[int], schema_id: int, messages: list[str]) -> None:
        self._rows += rows.tolist()
        self._reasons += reasons
        self._schema_ids += [schema_id] * len(reasons)
        self._messages += messages
