"""A change of a table's `load`, as recorded in its state (PROTOCOL S10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.statements.rules import StatementRule


@dataclass(frozen=True)
class LoadSwitch(Stored):
    """Windows below the recorded positions are loaded by the rule ``before``, all others by ``after``."""

    before: StatementRule
    after: StatementRule
    #: epoch and position from which on ``after`` applies, by `<topic>/<partition>`; 0 for all other partitions
    at: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: when it was recorded, by the store's time
    recorded_ms: int = 0
    #: whether a batch was loaded by ``after``
    taken: bool = False

    def is_before(self, file: StagedFile) -> bool:
        """Whether a file is loaded by the rule ``before``."""
        name = file.name
        tp = name.topic_partition
        epoch, position = self.at.get(f"{tp.topic}/{tp.partition}", (0, 0))
        return name.epoch < epoch or (name.epoch == epoch and file.until <= position)

    def __str__(self) -> str:
        shown = [f"{key} {position}" for key, (_, position) in sorted(self.at.items())]
        more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        places = f" from {', '.join(shown[:5])}{more} on" if shown else ""
        return f"load={self.after.kind}{places}, load={self.before.kind} before"
