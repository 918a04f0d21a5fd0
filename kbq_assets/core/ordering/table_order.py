"""The order of a table's batches, in its state (PROTOCOL, Ordered tables).

Batches of an ordered table are numbered from 1. The next batch is the one after the last *settled* batch. It may be in
flight or have failed, and is settled once it is applied or an operator skips it. A batch is *validated* once all gates
of the table are green.
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
    """The order of a table's batches, from its topics' options."""

    #: `offset`, `hour`, or "" for a table without an order
    by: str = ""
    #: gates that must be green before the next batch
    gates: tuple[str, ...] = ()
    #: no batch runs before this marker exists
    hold_until: str = ""
    #: treatment of a batch with rows of complete hours
    late: str = "apply"


@dataclass(frozen=True)
class FailedBatch(Stored):
    """A batch that could not be loaded. The next batch waits for it."""

    number: int
    job_id: str
    error: str
    files: tuple[StagedFile, ...]
    #: paths of the files that the warehouse refuses even alone
    bad: tuple[str, ...] = ()


@dataclass(frozen=True)
class GateResult(Stored):
    """A gate's result for a batch."""

    gate: str
    batch: int
    green: bool
    message: str = ""
    #: how many times in a row it was red
    tries: int = 0
    #: when it was evaluated, by the store's time
    at_ms: int = 0
    #: for an asset check: the number of its last evaluation when KBQ first asked; only later evaluations count
    seen: int = 0


@dataclass(frozen=True)
class Hold(Stored):
    """A hold by an operator."""

    reason: str
    since_ms: int = 0


@dataclass(frozen=True)
class AuditEntry(Stored):
    """One decision about a table's batches, stored permanently."""

    at_ms: int
    #: retry, skip, continue, hold or release; order or load: a change of that option; out_of_order: rows were added
    #: after rows with later offsets
    action: str
    #: 0: no batch
    batch: int
    reason: str = ""
    by: str = ""
    #: for a skipped batch
    files: int = 0
    rows: int = 0


@dataclass(frozen=True)
class TableOrder(Stored):
    """The order of a table's batches."""

    rule: OrderRule = field(default_factory=OrderRule)
    #: number of the last applied or skipped batch
    settled: int = 0
    #: number of the last batch that passed all gates
    validated: int = 0
    failed: FailedBatch | None = None
    hold: Hold | None = None
    #: the marker of ``rule.hold_until`` that was found, or that an operator overrode
    released: str = ""
    #: number of the batch whose late rows an operator allowed
    late_allowed: int = 0
    #: the last result of each gate
    gates: tuple[GateResult, ...] = ()
    #: the latest decisions
    audit: tuple[AuditEntry, ...] = ()
    #: number of older decisions in archives
    archived: int = 0

    @property
    def next(self) -> int:
        """Number of the batch that is in flight, failed or next."""
        return self.settled + 1

    @property
    def unvalidated(self) -> int:
        """Number of the applied batch that has not passed the table's gates; 0 if there is none."""
        return self.settled if self.rule.gates and self.validated < self.settled else 0

    @property
    def why_held(self) -> str:
        """The reason that no batch may start; "" if one may."""
        if self.hold is not None:
            return f"an operator holds it: {self.hold.reason}" if self.hold.reason else "an operator holds it"
        marker = self.rule.hold_until
        return f"it waits for the marker {marker}" if marker and self.released != marker else ""

    def result(self, gate: str) -> GateResult | None:
        """A gate's result for the last settled batch."""
        return next((each for each in self.gates if (each.gate, each.batch) == (gate, self.settled)), None)

    def open_gates(self) -> tuple[str, ...]:
        """The gates that the last settled batch has not passed yet."""
        if not self.unvalidated:
            return ()
        return tuple(gate for gate in self.rule.gates if not ((r := self.result(gate)) and r.green))

    def with_settled(self) -> TableOrder:
        """The order after the next batch was applied or skipped."""
        number = self.next
        return dataclasses.replace(
            self, settled=number, validated=self.validated if self.rule.gates else number, failed=None
        )

    def with_result(self, gate: str, green: bool, message: str, at_ms: int, seen: int = 0) -> TableOrder:
        """The order with a gate's result for the last settled batch. Keeps ``seen`` from the gate's first result."""
        last = self.result(gate)
        tries = 0 if green else (last.tries if last else 0) + 1
        found = GateResult(
            gate, self.settled, green, _short(message), tries, at_ms, last.seen if last else seen
        )
        others = (each for each in self.gates if each.gate != gate and each.gate in self.rule.gates)
        judged = dataclasses.replace(self, gates=(*others, found))
        return judged if judged.open_gates() else dataclasses.replace(judged, validated=self.settled)

    def with_audit(self, entry: AuditEntry) -> TableOrder:
        """The order with one more decision."""
        return dataclasses.replace(
            self, audit=(*self.audit, dataclasses.replace(entry, reason=_short(entry.reason)))
        )

    def full_chunk(self) -> tuple[AuditEntry, ...]:
        """The oldest decisions if they must move to an archive, whose name has the number ``archived``."""
        return DECISIONS.full_chunk(self.audit)

    def without_chunk(self) -> TableOrder:
        """The order without the decisions of `full_chunk`, once the archive has them."""
        moved = len(self.full_chunk())
        return dataclasses.replace(self, audit=self.audit[moved:], archived=self.archived + moved)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 1] + "…"


@dataclass(frozen=True)
class AuditChunk(Stored):
    """`tables/@audit/<dataset>.<table>/<first>.json`: older decisions about a table's batches, in order."""

    entries: tuple[AuditEntry, ...] = ()
