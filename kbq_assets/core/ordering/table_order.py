"""The order of a table's batches, as a part of its state (PROTOCOL, Ordered tables).

Batches of an ordered table have numbers from 1 on. The next batch is the one after the last *settled* batch: the batch
in flight, or the one that failed, until it is applied or an operator skips it. A batch is *validated* once all gates of
the table are green.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.protocol.archives import DECISIONS
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import StagedFile

_MOST_TEXT: Final = 500


@dataclass(frozen=True)
class OrderRule(Stored):
    """How batches of a table follow each other, as its topics ask for."""

    #: `offset`, `hour`, or "" for a table without an order
    by: str = ""
    #: what must be green before the next batch
    gates: tuple[str, ...] = ()
    #: no batch runs before this marker
    hold_until: str = ""
    #: what becomes of a batch with rows of complete hours
    late: str = "apply"


@dataclass(frozen=True)
class FailedBatch(Stored):
    """A batch that no job could load. The next batch waits for it."""

    number: int
    job_id: str
    error: str
    files: tuple[StagedFile, ...]
    #: paths of the files that the warehouse refuses by themselves
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateResult(Stored):
    """A gate's result for a batch."""

    gate: str
    batch: int
    green: bool
    message: str = ""
    #: how often in a row it was red
    tries: int = 0
    #: when it was asked, by the store's time
    at_ms: int = 0
    #: of an asset check: the number of its last evaluation when it was first asked. Later ones count
    seen: int = 0


@dataclass(frozen=True)
class Hold(Stored):
    """An operator holds the table."""

    reason: str
    since_ms: int = 0


@dataclass(frozen=True)
class AuditEntry(Stored):
    """One decision about a table's batches. It is kept."""

    at_ms: int
    #: retry, skip, continue, hold or release; order or load: a change of that option; out_of_order: rows came behind
    #: those of later offsets
    action: str
    #: 0: of none
    batch: int
    reason: str = ""
    by: str = ""
    #: of a batch that was skipped
    files: int = 0
    rows: int = 0


@dataclass(frozen=True)
class TableOrder(Stored):
    """The order of a table's batches."""

    rule: OrderRule = field(default_factory=OrderRule)
    #: number of the last batch that was applied or skipped
    settled: int = 0
    #: number of the last batch that passed all gates
    validated: int = 0
    failed: FailedBatch | None = None
    hold: Hold | None = None
    #: the marker of ``rule.hold_until`` that was seen, or that an operator did not wait for
    released: str = ""
    #: number of the batch whose late rows an operator lets in
    late_allowed: int = 0
    #: the last result of each gate
    gates: tuple[GateResult, ...] = ()
    #: the latest decisions
    audit: tuple[AuditEntry, ...] = ()
    #: how many older ones are in objects of their own
    archived: int = 0

    @property
    def next(self) -> int:
        """Number of the batch in flight, of the failed one, or of the one that comes next."""
        return self.settled + 1

    @property
    def unvalidated(self) -> int:
        """Number of the batch that is applied and has not passed the table's gates; 0 if there is none."""
        return self.settled if self.rule.gates and self.validated < self.settled else 0

    @property
    def why_held(self) -> str:
        """Why no batch may start; "" if one may."""
        if self.hold is not None:
            return f"an operator holds it: {self.hold.reason}" if self.hold.reason else "an operator holds it"
        marker = self.rule.hold_until
        return f"it waits for the marker {marker}" if marker and self.released != marker else ""

    def result(self, gate: str) -> GateResult | None:
        """A gate's result for the last settled batch."""
        return next((each for each in self.gates if (each.gate, each.batch) == (gate, self.settled)), None)

    def open_gates(self) -> tuple[str, ...]:
        """The gates that the last settled batch has not passed."""
        if not self.unvalidated:
            return ()
        return tuple(gate for gate in self.rule.gates if not ((r := self.result(gate)) and r.green))

    def with_settled(self) -> TableOrder:
        """With the next batch as applied or skipped."""
        number = self.next
        return dataclasses.replace(
            self, settled=number, validated=self.validated if self.rule.gates else number, failed=None
        )

    def with_result(self, gate: str, green: bool, message: str, at_ms: int, seen: int = 0) -> TableOrder:
        """With what a gate says about the last settled batch. ``seen`` is kept from its first answer."""
        last = self.result(gate)
        tries = 0 if green else (last.tries if last else 0) + 1
        found = GateResult(
            gate, self.settled, green, _short(message), tries, at_ms, last.seen if last else seen
        )
        others = (each for each in self.gates if each.gate != gate and each.gate in self.rule.gates)
        judged = dataclasses.replace(self, gates=(*others, found))
        return judged if judged.open_gates() else dataclasses.replace(judged, validated=self.settled)

    def with_audit(self, entry: AuditEntry) -> TableOrder:
        """With one more decision."""
        return dataclasses.replace(
            self, audit=(*self.audit, dataclasses.replace(entry, reason=_short(entry.reason)))
        )

    def full_chunk(self) -> tuple[AuditEntry, ...]:
        """The oldest decisions, if they must move to an archive, named by ``archived``."""
        return DECISIONS.full_chunk(self.audit)

    def without_chunk(self) -> TableOrder:
        """Without the decisions of `full_chunk`, once they are stored."""
        moved = len(self.full_chunk())
        return dataclasses.replace(self, audit=self.audit[moved:], archived=self.archived + moved)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


@dataclass(frozen=True)
class AuditChunk(Stored):
    """`tables/@audit/<dataset>.<table>/<first>.json`: older decisions about a table's batches, in order."""

    entries: tuple[AuditEntry, ...] = ()
