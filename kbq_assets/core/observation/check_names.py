"""All checks by name, with meaning and severity, and whether they may block a load.

A WARN may resolve itself (late data, many errors, long lists). An ERROR needs an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class CheckKind:
    """One check."""

    meaning: str
    severity: str
    #: the subject of its results: a `topic`, a `table`, or a `table_prefix` of file batches
    about: str
    #: the asset that shows it: staged files or warehouse tables; "" if each subject has its own asset
    asset: str
    #: whether a load can evaluate it from what it reads anyway
    blockable: bool = False
    #: whether it needs no query
    is_free: bool = True


ERROR: Final = "error"
WARN: Final = "warn"
STAGED: Final = "staged_files"
WAREHOUSE: Final = "warehouse_tables"

CONTIGUOUS: Final = "offsets_contiguous"
PARTITIONS_RUN: Final = "no_partition_is_stopped"
BACKUPS_RUN: Final = "no_backup_is_stopped"
ERRORS_FEW: Final = "error_share_is_low"
LAG_SHORT: Final = "lag_is_short"
COMMITS_SMALL: Final = "commits_are_small"
REPLAYS_END: Final = "no_replay_is_unfinished"
ROWS_MATCH: Final = "loaded_rows_match_staged_rows"
TABLES_LOAD: Final = "no_table_is_parked"
DATA_FRESH: Final = "data_is_fresh"
QUOTA_LEFT: Final = "warehouse_quota_is_left"
COUNTS_AGREE: Final = "warehouse_counts_agree"
BATCHES_APPLY: Final = "no_batch_waits_for_a_person"

CHECKS: Final[Mapping[str, CheckKind]] = {
    CONTIGUOUS: CheckKind(
        "Windows and files of each partition follow each other from where it began to its position, without overlap, "
        "every position counted; no table has rows from beyond it.",
        ERROR, "topic", STAGED, blockable=True,
    ),
    PARTITIONS_RUN: CheckKind(
        "Extraction runs in every partition. If one is stopped, the message names the commands.", ERROR, "topic", STAGED
    ),
    BACKUPS_RUN: CheckKind(
        "The backup of every partition goes on (docs/backup.md). If one is stopped, the message names the commands. "
        "A topic without a backup passes.",
        ERROR, "topic", STAGED,
    ),
    ERRORS_FEW: CheckKind(
        "Few of the latest records are bad (max_error_share). The latest records are those of windows that the "
        "commit still lists: windows not loaded yet, and those of the last extraction.",
        WARN, "topic", STAGED, blockable=True,
    ),
    LAG_SHORT: CheckKind(
        "Few records wait on the broker (max_lag_records), and none for long (max_lag_seconds), nor does a "
        "transaction stay open for as long.",
        WARN, "topic", STAGED,
    ),
    COMMITS_SMALL: CheckKind(
        "No commit lists so many unloaded files that every write of it is slow.", WARN, "topic", STAGED
    ),
    REPLAYS_END: CheckKind(
        "Every replay of the topic has read its range. One that is still being read ends on its own; one that was "
        "stopped, or died, goes on with `kbq replay resume`.",
        WARN, "topic", STAGED,
    ),
    ROWS_MATCH: CheckKind(
        "Each load job's output rows equal the rows of its files (PROTOCOL L4), and all committed rows are loaded or "
        "waiting, or in quarantine with an operator's consent.",
        ERROR, "table", WAREHOUSE, blockable=True,
    ),
    TABLES_LOAD: CheckKind(
        "Every table is being loaded. If one is parked, or its last load failed, the message names the command.",
        ERROR, "table", WAREHOUSE,
    ),
    DATA_FRESH: CheckKind(
        "No record is missing from its table for long (max_age_seconds), unread or not yet loaded, by its Kafka "
        "time. A topic without new records is fresh.",
        WARN, "topic", WAREHOUSE,
    ),
    QUOTA_LEFT: CheckKind(
        "The table is not near a quota of BigQuery: load jobs and changes of partitions in 24 hours, and partitions "
        "of a table. Near the daily ones its loads are spaced; a table with too many partitions takes no new dates.",
        WARN, "table", WAREHOUSE,
    ),
    COUNTS_AGREE: CheckKind(
        "The warehouse, counted by topic, partition and epoch, has what was loaded and committed, once "
        "(`kbq reconcile --counts`). Not part of a load: a person or the schedule runs it.",
        ERROR, "table", WAREHOUSE, is_free=False,
    ),
    BATCHES_APPLY: CheckKind(
        "No batch of files failed, is blocked by its configuration, or was set aside (docs/file-batches.md). If one "
        "was, the message names the commands.",
        ERROR, "table_prefix", "",
    ),
}  # fmt: skip

#: Checks that the option `blocking` may name. Others need the broker or a query, which a load does not use, or are
#: about late data, which blocking would make later.
BLOCKABLE: Final = tuple(name for name, kind in CHECKS.items() if kind.blockable)
