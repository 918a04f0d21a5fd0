"""Finds records that stop their partition, because the policy does not turn them into error rows (PROTOCOL E10)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.commits import Stop
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.files.encode import Rejects
from kbq_assets.wire.records.reasons import Reason

TOMBSTONES: Final = (int(Reason.TOMBSTONE), int(Reason.NULL_VALUE))
#: Records without a table go to the error table under every policy for bad records.
PLACELESS: Final = (int(Reason.UNKNOWN_TABLE), int(Reason.TOO_MANY_TABLES))
#: No policy turns these into error rows.
_STOPPING: Final = (int(Reason.UNKNOWN_SCHEMA), int(Reason.UNSTAGEABLE_SCHEMA), int(Reason.TABLE_TRUNCATED))
#: Rejects that no policy calls bad: null values, records without a table, and messages, which are always skipped.
_NEVER_BAD: Final = (*TOMBSTONES, *PLACELESS, int(Reason.NO_CHANGE))


class StopWindow(Exception):
    """The partition stops at ``stop.first``: no position from there on may be committed (PROTOCOL E10)."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop


def first_stop(unit: Unit, rejects: Rejects) -> int | None:
    """The index of the first of the ``rejects`` that stops the unit; None if there is none."""
    if not len(rejects):
        return None
    stops: NDArray[np.bool_] = (
        ~np.isin(rejects.reasons, _NEVER_BAD)
        if unit.settings.records.errors == "fail"
        else np.isin(rejects.reasons, _STOPPING)
    )
    return int(np.argmax(stops)) if stops.any() else None


def stop_at_record(unit: Unit, chunk: Chunk, rejects: Rejects, index: int, until: int) -> StopWindow:
    """The stop at one of the chunk's ``rejects``. The range read so far ends at ``until``."""
    offset, code = int(chunk.offsets[rejects.rows[index]]), int(rejects.reasons[index])
    reason = StopReason(Reason(code).name.lower()) if code in _STOPPING else StopReason.BAD_RECORD
    message = f"offset {offset}: {Reason(code).name}: {rejects.messages[index]}"
    return stop_window(unit, reason, message, offset, until)


def stop_window(unit: Unit, reason: StopReason, message: str, first: int, until: int) -> StopWindow:
    """A stop of the positions ``[first, until)``."""
    where = f"{unit.range.topic_partition} [{first}, {until})"
    return StopWindow(Stop(reason, f"{where}: {message}", first, until))
