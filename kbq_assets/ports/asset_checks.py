"""The results of the orchestrator's own checks of tables, as gates ask for them (PROTOCOL O7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kbq_assets.core.protocol.names import TableReference


@dataclass(frozen=True)
class CheckEvaluation:
    """The last evaluation of a check. ``number`` grows with each; it is given when the evaluation is planned.

    ``passed`` is None until it has ended with a result.
    """

    number: int
    passed: bool | None = None
    message: str = ""


class AssetChecks(Protocol):
    """Guarantees: an evaluation that is planned after a call has a higher number than any that the call returned."""

    def latest(self, table: TableReference, check: str) -> CheckEvaluation | None:
        """The last evaluation of a table's check, None if it never was. Raises Unavailable."""
