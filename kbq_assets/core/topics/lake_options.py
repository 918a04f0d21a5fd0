"""The options for compacting a lake's small files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.compaction.model import CompactionRule
from kbq_assets.core.topics.declaration import option
from kbq_assets.core.topics.option_types import choice, whole

AUTO, COMPLETE, OFF = "auto", "complete", "off"
_ENABLED: Final = {AUTO: None, COMPLETE: True, OFF: False}


@dataclass(frozen=True)
class LakeOptions:
    """How `kbq compact` treats a topic's tables; 0 leaves an option to the table's properties."""

    compact: str = option(
        AUTO,
        choice(AUTO, COMPLETE, OFF),
        "compaction of the topic's [lake tables](iceberg.md#compaction): `complete`: only complete hours; `off`: "
        "none; `auto`: by the table's properties",
        name="lake_compact",
        place="lake.compact",
    )
    file_bytes: int = option(
        "0",
        whole(),
        "size of a compacted file",
        name="lake_file_bytes",
        place="lake.file_bytes",
        shown_default="the table's, 268435456",
    )
    min_files: int = option(
        "0",
        whole(),
        "number of small files that make a partition due; ten times as many make it due whatever their age",
        name="lake_min_files",
        place="lake.min_files",
        shown_default="the table's, 5",
    )
    min_age_seconds: int = option(
        "0",
        whole(),
        "least age of a partition's newest small file before the partition is due",
        name="lake_min_age_seconds",
        place="lake.min_age_seconds",
        shown_default="the table's, 3600",
    )
    days_after_seconds: int = option(
        "0",
        whole(),
        "seconds after the end of a day until compaction also merges its files across hours and schema versions, "
        "with the table's newest columns; 0: never",
        name="lake_days_after_seconds",
        place="lake.days_after_seconds",
        shown_default="the table's, 0",
    )

    @property
    def rule(self) -> CompactionRule:
        """The topic's compaction rule."""
        return CompactionRule(
            _ENABLED[self.compact],
            self.compact == COMPLETE,
            self.file_bytes,
            self.min_files,
            self.min_age_seconds * 1000,
            self.days_after_seconds * 1000,
        )
