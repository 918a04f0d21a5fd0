"""The options of small files in a lake: when they are compacted, and to what size."""

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
    """The policy of `kbq compact` for the tables of a topic; 0 leaves it to the table's properties."""

    compact: str = option(
        AUTO,
        choice(AUTO, COMPLETE, OFF),
        "small files of the topic's [lake tables](iceberg.md#compaction): `complete`: compact only hours that are "
        "complete; `off`: none; `auto`: as the table's properties say",
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
        "so many small files make a partition due; ten times as many do, however young they are",
        name="lake_min_files",
        place="lake.min_files",
        shown_default="the table's, 5",
    )
    min_age_seconds: int = option(
        "0",
        whole(),
        "age of the newest small file of a partition that is due",
        name="lake_min_age_seconds",
        place="lake.min_age_seconds",
        shown_default="the table's, 3600",
    )
    days_after_seconds: int = option(
        "0",
        whole(),
        "so long after the end of a day, compaction joins its files of all hours and schema versions too, with the "
        "table's newest columns; 0: never",
        name="lake_days_after_seconds",
        place="lake.days_after_seconds",
        shown_default="the table's, 0",
    )

    @property
    def rule(self) -> CompactionRule:
        """What the topic asks for."""
        return CompactionRule(
            _ENABLED[self.compact],
            self.compact == COMPLETE,
            self.file_bytes,
            self.min_files,
            self.min_age_seconds * 1000,
            self.days_after_seconds * 1000,
        )
