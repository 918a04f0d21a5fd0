"""One snapshot per job: its files, its id and its outcome become visible in one commit, or not at all.

A commit requires that main's snapshot is the one that was read, and that the job's number is above the recorded one.
Both are checked in every attempt. The library repeats none: its own retry would append a late job to a newer
snapshot.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ManageSnapshots

from kbq_assets.adapters.iceberg import job_records
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import shown
from kbq_assets.adapters.iceberg.schema import RETRIES
from kbq_assets.core.errors import JobAlreadyExists, Unavailable, UnknownOutcome

#: Attempts against other writers of the table: compaction, a second loader, changes of the schema.
_ATTEMPTS: Final = 20
_LONGEST_PAUSE: Final = 2.0
JOB_ID: Final = "kbq.job-id"
#: The tag of the snapshot whose hours are complete, and the properties that say below which hour.
COMPLETE: Final = "complete_until"
COMPLETE_UNTIL, COMPLETE_HOUR = "kbq.complete-until", "kbq.complete-until-hour"


def commit_job(
    table: Table, record: JobRecord, files: Iterable[DataFile] = (), *, replace: bool = False
) -> tuple[JobRecord, ...]:
    """Commit a job's snapshot; return the records that the table forgets with it.

    A job without files commits an empty snapshot: a change of properties alone leaves main where it is, and a late
    append would still fit. Raises JobAlreadyExists, UnknownOutcome, Unavailable (nothing was committed).
    """
    added = tuple(files)
    for attempt in range(_ATTEMPTS):
        try:
            return _attempt(table, record, added, replace)
        except CommitFailedException:
            time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.05 * 2**attempt)))
            _read_again(table, record, table.refresh)
            known = job_records.find(table.properties, record.job_id)
            if known is not None and known.commit == record.commit:
                return ()  # this commit succeeded, and its reply was lost below the library
    raise Unavailable(
        f"job {record.job_id}: {table.name()} changed {_ATTEMPTS} times while it was committed",
        next_step="the next run tries again; check which other program writes to the table",
    )


def _attempt(
    table: Table, record: JobRecord, added: tuple[DataFile, ...], replace: bool
) -> tuple[JobRecord, ...]:
    _read_again(table, record, lambda: turn_retries_off(table))
    if job_records.find(table.properties, record.job_id) is not None:
        raise JobAlreadyExists(f"job {record.job_id} exists", next_step="get the job and compare its files")
    changed, forgotten = job_records.recorded(table.properties, record)
    old = [task.file for task in table.scan().plan_files()] if replace else []
    transaction = table.transaction()
    snapshot = transaction.update_snapshot({JOB_ID: record.job_id})
    with snapshot.overwrite() if old else snapshot.merge_append() as producer:
        for file in old:
            producer.delete_data_file(file)
        for file in added:
            producer.append_data_file(file)
    transaction.set_properties(changed)
    commit_once(transaction.commit_transaction, record)
    return forgotten


def turn_retries_off(table: Table) -> None:
    """Set the table's property that keeps the library from rebasing a commit, if someone changed it. That reads the
    table again, with jobs that ended meanwhile: look an id up afterwards."""
    if table.properties.get(RETRIES) != "0":
        with table.transaction() as own:
            own.set_properties({RETRIES: "0"})


def commit_once(commit: Callable[[], object], record: JobRecord) -> None:
    """Commit. Raises CommitFailedException and NoSuchTableError if nothing was committed, else UnknownOutcome."""
    try:
        commit()
    except (CommitFailedException, NoSuchTableError):
        raise
    except Exception as error:
        raise UnknownOutcome(
            f"job {record.job_id}: the catalog does not say whether it was committed: {shown(error)}",
            next_step="the next run looks the job up",
        ) from error


def _read_again(table: Table, record: JobRecord, read: Callable[[], object]) -> None:
    before = table.metadata.table_uuid, table.metadata.default_spec_id
    read()
    if (table.metadata.table_uuid, table.metadata.default_spec_id) != before:
        # The job's files have the partitions of the table that was read.
        raise Unavailable(
            f"job {record.job_id}: {table.name()} was created again, or partitioned anew, meanwhile",
            next_step="run again: the same job writes its files anew",
        )


def tag_complete(table: Table, until_hour: int) -> bool:
    """Move the tag `COMPLETE` to the current snapshot, and say up to which hour it is complete, in one commit. Returns
    whether that was news."""
    snapshot = table.current_snapshot()
    if snapshot is None or int(table.properties.get(COMPLETE_HOUR, 0)) >= until_hour:
        return False
    until = datetime.fromtimestamp(until_hour * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with table.transaction() as transaction:
        transaction.set_properties({COMPLETE_HOUR: str(until_hour), COMPLETE_UNTIL: until})
        with ManageSnapshots(transaction) as references:
            references.create_tag(snapshot.snapshot_id, COMPLETE)
    return True


def move_tag(table: Table, transaction: Transaction) -> None:
    """Move the tag `COMPLETE`, if the table has it, to the snapshot that a transaction makes of the same hours."""
    snapshot = transaction.table_metadata.current_snapshot_id
    if COMPLETE in table.metadata.refs and snapshot is not None:
        with ManageSnapshots(transaction) as references:
            references.create_tag(snapshot, COMPLETE)
