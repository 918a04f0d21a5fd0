"""A replay of error rows in a lake, where no commit changes two tables: what the error table's state says of it
(PROTOCOL ER7)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.erasure.offset_sets import Offsets, RowPlaces
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: Ids of replays of error rows: uuid of the error table's state and its sequence number follow.
ERRORS_JOB: Final = "kbq-errors-"


@dataclass(frozen=True)
class ReplayIntent(Stored):
    """Rows that a job adds to a table, and whose error rows are marked once it has."""

    job_id: str
    table: TableReference
    files: tuple[StagedFile, ...]
    #: when they are replayed, by the store's time
    at_ms: int
    #: the error rows: offsets of one topic, partition and epoch
    offsets: Offsets

    @property
    def places(self) -> RowPlaces:
        """The rows that are added, and whose error rows are marked."""
        name = self.files[0].name
        tp = name.topic_partition
        return RowPlaces(tp.topic, ((tp.partition, name.epoch, self.offsets),))

    def under(self, job_id: str) -> ReplayIntent:
        return dataclasses.replace(self, job_id=job_id)


def intent_words(found: ReplayIntent) -> str:
    return f"a replay of error rows into {found.table} has not ended; next: kbq errors replay"
