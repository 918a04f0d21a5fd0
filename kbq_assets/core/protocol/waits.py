"""Reasons to wait for an operator or a retry. docs/operations.md explains each reason and how to resume, and
kbq_assets_tests/cli/test_ways_back.py tests that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition


class StopReason(StrEnum):
    """Why a partition, or a whole topic, is not extracted (PROTOCOL E1, E2, E10)."""

    # Found before each run, from the topics' entries, the commits and the broker
    WRONG_ENTRY = "wrong_entry"
    UNFIT_NAME = "unfit_name"
    COMMIT_UNREADABLE = "commit_unreadable"
    COMMIT_MISSING = "commit_missing"
    NOT_BOOTSTRAPPED = "not_bootstrapped"
    RECREATED = "recreated"
    NO_OFFSETS = "no_offsets"
    TOPIC_GONE = "topic_gone"
    PARTITION_GONE = "partition_gone"
    TRUNCATED = "truncated"
    RETENTION_LOSS = "retention_loss"
    # Found while a range is read, and stored in the commit
    UNKNOWN_SCHEMA = "unknown_schema"
    UNSTAGEABLE_SCHEMA = "unstageable_schema"
    ERROR_SHARE = "error_share"
    BAD_RECORD = "bad_record"
    TABLE_TRUNCATED = "table_truncated"
    SCHEMA_CHANGED = "schema_changed"
    DAMAGED_BATCH = "damaged_batch"
    OVERSIZED_BATCH = "oversized_batch"
    LOG_CHANGED = "log_changed"
    TASK_DIED = "task_died"
    FAILED = "failed"


class ParkReason(StrEnum):
    """Why nothing is loaded into a table (PROTOCOL L3, L5, L12, O3, O5)."""

    INCOMPATIBLE_SCHEMA = "incompatible_schema"
    WRONG_OPTIONS = "wrong_options"
    LOAD_FAILED = "load_failed"
    MISSING_FILES = "missing_files"
    DAMAGED_FILES = "damaged_files"
    FOREIGN_JOB = "foreign_job"
    OLD_JOB = "old_flight"
    FOREIGN_ROWS = "foreign_rows"
    TABLE_GONE = "table_gone"
    # For ordered tables
    BATCH_FAILED = "batch_failed"
    HELD = "held"
    STATEMENT_FAILED = "statement_failed"
    LEDGER_DIFFERS = "ledger_differs"
    BYTES_LIMIT = "bytes_limit"
    WAITS_FOR_MARKER = "waits_for_marker"
    GATE_RED = "gate_red"
    GATE_WAITS = "gate_waits"
    LATE_ROWS = "late_rows"
    OPERATOR = "operator"


#: Reasons that only a decision by `kbq order` ends.
DECISIONS: Final = frozenset({ParkReason.BATCH_FAILED, ParkReason.HELD, ParkReason.GATE_WAITS})
#: Stops at a batch that cannot be read, so its records cannot become error rows.
UNREADABLE: Final = frozenset({StopReason.DAMAGED_BATCH, StopReason.OVERSIZED_BATCH})
#: Stops that no record caused, so nothing can become an error row.
NO_BAD_RECORD: Final = UNREADABLE | {
    StopReason.SCHEMA_CHANGED,
    StopReason.LOG_CHANGED,
    StopReason.TASK_DIED,
    StopReason.FAILED,
}


#: Effects of commands besides a retry, by a word in the command.
_EFFECTS: Final = {
    "--as-errors": "its bad records become error rows",
    "--gone": "it was deleted on purpose; its rows stay",
    "--new-schemas": "accepts the schemas that the registry has now",
    "--to-quarantine": "its bad files go to quarantine",
    "accept-gap": "gives the records up",
    "adopt": "goes on without the rows that are missing",
    "reset": "reads the partition from its start, in a new epoch",
    "restage": "reads the file's range again from Kafka",
    "retry": "once the cause is fixed",
    "resume": "once the cause is fixed",
    "skip": "gives the batch up",
}


def next_lines(commands: Iterable[str]) -> Iterator[str]:
    """Lines with the operator's next commands. If there is a choice, a shell comment states each command's effect."""
    commands = tuple(commands)
    for command in commands:
        words = command.split()
        effect = next((text for word, text in _EFFECTS.items() if word in words), "")
        yield f"  next: {command}" + (f"  # {effect}" if effect and len(commands) > 1 else "")


def stop_commands(reason: str, tp: TopicPartition) -> tuple[str, ...]:
    """The commands that resume a partition that stopped while it was read. The first one only retries."""
    options = f"--topic {tp.topic} --partition {tp.partition}"
    if reason in (StopReason.FAILED, StopReason.TASK_DIED):
        return (f"kbq resume {options}",)
    if reason in UNREADABLE:
        other = f"kbq accept-gap {options}"
    elif reason == StopReason.SCHEMA_CHANGED:
        other = f"kbq resume --topic {tp.topic} --new-schemas"
    elif reason in NO_BAD_RECORD:
        other = f"kbq reset {options}"
    else:
        other = f"kbq resume {options} --as-errors"
    return f"kbq resume {options}", other


def park_commands(table: TableReference, reason: str, failed_batch: int = 0) -> tuple[str, ...]:
    """The commands that resume a parked table; the first is enough once the cause is fixed. The table's message has the
    values of FILE and B (the batch). ``failed_batch`` is an ordered table's failed batch, if any."""
    retry = f"kbq order retry {table}"
    skip = f"kbq order skip {table} --batch {failed_batch or 'B'} --reason TEXT"
    resume, adopt = f"kbq resume --table {table}", f"kbq adopt --table {table}"
    if reason in (ParkReason.FOREIGN_ROWS, ParkReason.LEDGER_DIFFERS):
        return (adopt,)
    if reason == ParkReason.TABLE_GONE:
        return resume, adopt
    if reason in (ParkReason.BATCH_FAILED, ParkReason.STATEMENT_FAILED):
        return retry, skip
    if reason in (ParkReason.GATE_WAITS, ParkReason.GATE_RED, ParkReason.LATE_ROWS):
        return (f"kbq order continue {table}",)
    if reason in (ParkReason.HELD, ParkReason.WAITS_FOR_MARKER):
        return (f"kbq order release {table}",)
    if reason in (ParkReason.MISSING_FILES, ParkReason.DAMAGED_FILES):
        return (retry, "kbq restage FILE", skip) if failed_batch else (resume, "kbq restage FILE")
    if failed_batch:
        return retry, skip
    return (resume, f"{resume} --to-quarantine") if reason == ParkReason.LOAD_FAILED else (resume,)
