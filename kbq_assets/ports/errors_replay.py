"""Bad records that become rows after all: one transaction inserts the row and marks its error row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: The column of error rows that were replayed, and of the rows that they became: when that was.
REPLAYED_AT: Final = "_kbq_replayed_at"


@dataclass(frozen=True)
class ErrorReplay:
    """Files of one staged schema, made of the records of ``errors``' rows, for a table. Both tables have the column
    `REPLAYED_AT`. ``files`` are the entries of the sources, by URI."""

    table: TableReference
    errors: TableReference
    source_uris: tuple[str, ...]
    schema: str
    now_ms: int
    files: Mapping[str, StagedFile] = field(default_factory=dict)


class ErrorReplays(Protocol):
    """Guarantees:

    1. The rows become visible and their error rows are marked in one transaction, or neither.
    2. A row whose error row is marked, or does not exist, is left out: the same replay again adds nothing, whatever
       became of the first and however many run at once.
    """

    def replay(self, replay: ErrorReplay) -> int:
        """Add the rows; return how many. Raises JobFailed if the files do not load, Unavailable, and UnknownOutcome:
        then the next replay finds which rows are left."""
