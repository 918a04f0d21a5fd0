"""Asset checks in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.asset_checks import CheckEvaluation


@dataclass
class FakeAssetChecks:
    """The `AssetChecks` port: evaluations that a test makes. ``fails`` is raised by each call."""

    found: dict[tuple[TableReference, str], CheckEvaluation] = field(default_factory=dict)
    fails: Exception | None = None

    def evaluate(self, table: TableReference, check: str, *, passed: bool | None) -> None:
        """An evaluation that is planned now; None: it has no result yet."""
        self.found[table, check] = CheckEvaluation(
            len(self.found) + self._highest() + 1, passed, "3 rows are bad"
        )

    def _highest(self) -> int:
        return max((each.number for each in self.found.values()), default=0)

    def latest(self, table: TableReference, check: str) -> CheckEvaluation | None:
        """The last evaluation."""
        if self.fails is not None:
            raise self.fails
        return self.found.get((table, check))
