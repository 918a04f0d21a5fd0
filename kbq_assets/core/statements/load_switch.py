"""A change of a table's `load`, as its state records it (PROTOCOL S10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.statements.rules import StatementRule


@dataclass(frozen=True)
class LoadSwitch(Stored):
    """Windows below its positions are loaded as ``before`` says, all others as ``after`` says."""

    before: StatementRule
    after: StatementRule
    #: by `<topic>/<partition>`: epoch and position from which on ``after`` counts; for all others, it counts from 0 on
    at: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: when it was recorded, by the store's time
    recorded_ms: int = 0
    #: whether a batch was loaded as ``after`` says
    taken: bool = False

    def is_before(self, file: StagedFile) -> bool:
        """Whether a file is loaded as before the change."""
        name = file.name
        tp = name.topic_partition
        epoch, position = self.at.get(f"{tp.topic}/{tp.partition}", (0, 0))
        return name.epoch < epoch or (name.epoch == epoch and file.until <= position)

    def __str__(self) -> str:
        shown = [f"{key} {position}" for key, (_, position) in sorted(self.at.items())]
        more = f" and {len(shown) - 5} more" if len(shown) > 5 else ""
        places = f" from {', '.join(shown[:5])}{more} on" if shown else ""
        return f"load={self.after.kind}{places}, load={self.before.kind} before"
