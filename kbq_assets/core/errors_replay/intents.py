"""The record of a replay of error rows in the error table's state, for lakes, where a commit cannot change two tables
(PROTOCOL ER7)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.erasure.offset_sets import Offsets, RowPlaces
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: Prefix of the ids of replays, followed by the uuid of the error table's state and a sequence number.
ERRORS_JOB: Final = "kbq-errors-"


@dataclass(frozen=True)
class ReplayIntent(Stored):
    """Rows for a job to add to a table. Their error rows are marked once it has added them."""

    job_id: str
    table: TableReference
    files: tuple[StagedFile, ...]
    #: when the rows are replayed, by the store's time
    at_ms: int
    #: offsets of the error rows, of one topic, partition and epoch
    offsets: Offsets

    @property
    def places(self) -> RowPlaces:
        """The positions of the rows to add, which are also those of the error rows to mark."""
        name = self.files[0].name
        tp = name.topic_partition
        return RowPlaces(tp.topic, ((tp.partition, name.epoch, self.offsets),))

    def under(self, job_id: str) -> ReplayIntent:
        return dataclasses.replace(self, job_id=job_id)


def intent_words(found: ReplayIntent) -> str:
    return f"a replay of error rows into {found.table} has not ended; next: kbq errors replay"
