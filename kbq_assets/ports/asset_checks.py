"""The results of the orchestrator's own checks of tables, for gates (PROTOCOL O7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kbq_assets.core.protocol.names import TableReference


@dataclass(frozen=True)
class CheckEvaluation:
    """The last evaluation of a check. ``number`` is assigned when an evaluation is planned, and increases with each.
    ``passed`` is None until there is a result.
    """

    number: int
    passed: bool | None = None
    message: str = ""


class AssetChecks(Protocol):
    """Guarantees: an evaluation planned after a call has a higher number than any that the call returned."""

    def latest(self, table: TableReference, check: str) -> CheckEvaluation | None:
        """The last evaluation of a table's check, None if it was never evaluated. Raises Unavailable."""
