"""The outputs of one unit: its tables, its backup, or both from one read (PROTOCOL B1).

Each output has its own windows and its own error: if one fails, the other continues.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kbq_assets.core.errors import (
    AccessRefused,
    ConflictError,
    KbqError,
    NotFound,
    OffsetOutOfRange,
    SchemaChanged,
    TransientError,
    Unavailable,
    UnreadableBatch,
)
from kbq_assets.core.extraction.units import Outage, Unit, UnitOutcome
from kbq_assets.core.protocol.commits import Stop, Window
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.worker.stopping import StopWindow

LOGGER: Final = logging.getLogger("kbq.staging")


class OpenWindow(Protocol):
    """A window being written. Exactly one of `close` and `abort` ends it."""

    first: int
    position: int

    @property
    def records(self) -> int:
        """Records so far."""

    @property
    def bytes_written(self) -> int:
        """Bytes of files so far."""

    def add(self, batch: RecordBatch) -> RecordBatch | None:
        """Add a batch. Returns the part that belongs to the next window, if this window ends within the batch."""

    def close(self) -> Window:
        """Make the window's files visible."""

    def abort(self) -> None:
        """Abandon the window."""


@dataclass
class Output:
    """One output of a unit; ``unit`` is the unit as this output sees it. ``open_window`` opens the writer of a window
    that begins at a position."""

    unit: Unit
    clock: Clock
    open_window: Callable[[int], OpenWindow] | None = None
    windows: list[Window] = field(default_factory=list)
    opened_ms: list[int] = field(default_factory=list)
    error: Exception | None = None
    _writer: OpenWindow | None = None
    #: the position after the last record
    _read_until: int = 0

    @property
    def position(self) -> int:
        """The position after the last window."""
        return self.windows[-1].until if self.windows else self.unit.range.from_offset

    @property
    def has_progress(self) -> bool:
        """Whether the open window covers a position."""
        return self._writer is not None and self._writer.position > self._writer.first

    def add(self, batch: RecordBatch) -> None:
        """Write a batch. An error ends only this output."""
        if self.error is not None:
            return
        rest: RecordBatch | None = batch
        try:
            while rest is not None and self.error is None:
                rest = self._add(rest)
        except Exception as error:
            self.fail(error)

    def _add(self, batch: RecordBatch) -> RecordBatch | None:
        """Write a batch up to the end of its window. Returns the rest, for the next window."""
        if self._writer is None:
            assert self.open_window is not None, "an output without writers has an error"
            self._writer = self.open_window(self.position)
            self.opened_ms.append(self.clock.now_ms())
        rest = self._writer.add(batch)
        written = len(batch.chunk) - (0 if rest is None else len(rest.chunk))
        if written:
            self._read_until = int(batch.chunk.offsets[written - 1]) + 1
        if rest is not None:
            self.close(self._read_until)
        return rest

    def is_full(self) -> bool:
        """Whether the open window has reached a limit of bytes or records."""
        limits, writer = self.unit.limits, self._writer
        if writer is None or not self.has_progress:
            return False
        return writer.bytes_written >= limits.bytes or writer.records >= limits.records

    def close(self, epoch_until: int) -> None:
        """End the open window, which becomes visible if it covers a position. ``epoch_until`` is the offset after the
        last record. An error ends only this output."""
        if not self.has_progress:
            self.abort()
            return
        assert self._writer is not None
        try:
            window = self._writer.close()
        except Exception as error:
            self.fail(error)
            return
        self._writer = None
        has_records = epoch_until > window.first
        self.windows.append(dataclasses.replace(window, epoch_until=epoch_until if has_records else 0))

    def abort(self) -> None:
        """Abandon the open window."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    def fail(self, error: Exception) -> None:
        """End the output with an error; the first error counts."""
        self.abort()
        self.error = self.error or error

    def outcome(self, position: int) -> UnitOutcome:
        """The windows, and the stop or failure after them. ``position`` is how far the unit was read."""
        stop, failure, outage = self._stop(position), "", Outage.NONE
        if isinstance(self.error, Unavailable):
            outage = Outage.REFUSED if isinstance(self.error, AccessRefused) else Outage.UNAVAILABLE
        if stop is None and self.error is not None:
            kind = "" if outage is Outage.REFUSED else f"{type(self.error).__name__}: "
            failure = f"{kind}{self.error}"
        return UnitOutcome(
            self.unit,
            tuple(self.windows),
            stop,
            failure,
            opened_ms=tuple(self.opened_ms),
            outage=outage,
        )

    def _stop(self, position: int) -> Stop | None:
        error = self.error
        if isinstance(error, StopWindow):
            return error.stop
        if isinstance(error, UnreadableBatch):
            return self._stop_at(error.reason, error.message, error.until)
        if isinstance(error, SchemaChanged):
            return self._stop_at(StopReason.SCHEMA_CHANGED, error.message, position)
        if error is None or isinstance(error, (*_PASSING, OSError, MemoryError)):
            return None
        # The next run would fail too. The error stops this unit, never other units of the task.
        reason = StopReason.LOG_CHANGED if isinstance(error, OffsetOutOfRange) else StopReason.FAILED
        message, step = f"{type(error).__name__}: {error}", "report a bug with the log of this task"
        if isinstance(error, KbqError):
            message, step = error.message, error.next_step
        else:
            LOGGER.error("%s failed", self.unit.range, exc_info=error)
        until = self.unit.range.until_offset
        return self._stop_at(reason, f"{message}; {step}" if step else message, until)

    def _stop_at(self, reason: str, message: str, until: int) -> Stop:
        """A stop after the finished windows."""
        first = self.position
        until = max(until, first + 1)
        return Stop(reason, f"{self.unit.range.topic_partition} [{first}, {until}): {message}", first, until)


_PASSING: Final = (TransientError, ConflictError, NotFound)


def go_on(outputs: Sequence[Output]) -> bool:
    """Whether at least one output has not ended."""
    return any(output.error is None for output in outputs)
