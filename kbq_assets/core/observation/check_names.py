"""The checks by name: what each promises, how bad it is where it fails, and which may hold a load.

WARN is what may pass without anybody: late, many errors, long lists. ERROR is what goes on only when somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class CheckKind:
    """One check. ``about`` is topic or table: what its results are of. ``side`` is where it shows: staged files, or
    warehouse tables. ``blockable``: a load can decide it from what it reads anyway."""

    meaning: str
    severity: str
    about: str
    side: str
    blockable: bool = False


ERROR: Final = "error"
WARN: Final = "warn"
STAGED: Final = "staged_files"
WAREHOUSE: Final = "warehouse_tables"

CONTIGUOUS: Final = "offsets_contiguous"
PARTITIONS_RUN: Final = "no_partition_is_stopped"
ERRORS_FEW: Final = "error_share_is_low"
LAG_SHORT: Final = "lag_is_short"
COMMITS_SMALL: Final = "commits_are_small"
ROWS_MATCH: Final = "loaded_rows_match_staged_rows"
TABLES_LOAD: Final = "no_table_is_parked"
DATA_FRESH: Final = "data_is_fresh"
COUNTS_AGREE: Final = "warehouse_counts_agree"

CHECKS: Final[Mapping[str, CheckKind]] = {
    CONTIGUOUS: CheckKind(
        "Windows and files of each partition follow each other from where it began to its position, without overlap, "
        "every position counted; no table has rows from beyond it.",
        ERROR, "topic", STAGED, blockable=True,
    ),
    PARTITIONS_RUN: CheckKind(
        "Extraction goes on everywhere. Where it stopped, the message names the commands.", ERROR, "topic", STAGED
    ),
    ERRORS_FEW: CheckKind(
        "Few of the records read lately are bad (max_error_share): of the windows that the commit still lists, which "
        "are those not loaded yet and those of the last extraction.",
        WARN, "topic", STAGED, blockable=True,
    ),
    LAG_SHORT: CheckKind(
        "Few records wait on the broker (max_lag_records), none for long (max_lag_seconds).", WARN, "topic", STAGED
    ),
    COMMITS_SMALL: CheckKind(
        "No commit lists so many files that are not loaded that every write of it is slow.", WARN, "topic", STAGED
    ),
    ROWS_MATCH: CheckKind(
        "Each load job's output rows equal the rows of the files it loaded (PROTOCOL L4), and the rows committed are "
        "loaded, waiting or in quarantine.",
        ERROR, "table", WAREHOUSE, blockable=True,
    ),
    TABLES_LOAD: CheckKind(
        "Every table is being loaded. Where one is parked, the message names the command.", ERROR, "table", WAREHOUSE
    ),
    DATA_FRESH: CheckKind(
        "No record is missing from its table for long (max_age_seconds), unread or not yet loaded, by its Kafka time. "
        "A topic without new records is fresh.",
        WARN, "topic", WAREHOUSE,
    ),
    COUNTS_AGREE: CheckKind(
        "The warehouse, counted by topic, partition and epoch, has what was loaded and committed, once "
        "(`kbq reconcile --counts`). Not part of any load: asked by a person or by the schedule.",
        ERROR, "table", WAREHOUSE,
    ),
}  # fmt: skip

#: Checks that the option `blocking` may name. The others need the broker or a query, which a load does not ask; and to
#: hold back what is late makes it later.
BLOCKABLE: Final = tuple(name for name, kind in CHECKS.items() if kind.blockable)
