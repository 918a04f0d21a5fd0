"""One snapshot per job: its files, its id and its outcome become visible in a single commit, or not at all.

A commit requires that the main branch still has the snapshot that was read, and that the job's number is higher than
the recorded one. Every attempt checks both. The library's own retries are off, because they would append a late job to
a newer snapshot.
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
from kbq_assets.adapters.iceberg.manifests import planned
from kbq_assets.adapters.iceberg.overwrites import replace_files
from kbq_assets.adapters.iceberg.schema import RETRIES
from kbq_assets.core.errors import JobAlreadyExists, Unavailable, UnknownOutcome

#: Attempts to commit while others change the table: compaction, a second loader, schema changes.
_ATTEMPTS: Final = 20
_LONGEST_PAUSE: Final = 2.0
JOB_ID: Final = "kbq.job-id"
#: The tag of the snapshot with complete hours, and the properties with the hour up to which they are complete.
COMPLETE: Final = "complete_until"
COMPLETE_UNTIL, COMPLETE_HOUR = "kbq.complete-until", "kbq.complete-until-hour"


def commit_job(
    table: Table, record: JobRecord, files: Iterable[DataFile] = (), *, replace: bool = False
) -> tuple[JobRecord, ...]:
    """Commit a job's snapshot, and return the records that the table forgets with it.

    A job without files commits an empty snapshot: if only properties changed, main would stay at its snapshot, and a
    late append would still succeed. Raises JobAlreadyExists, UnknownOutcome, or Unavailable
    or CorruptState (nothing was committed).
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
                return ()  # this commit succeeded, but the library lost the response
    raise Unavailable(
        f"job {record.job_id}: {table.name()} changed {_ATTEMPTS} times during the commit",
        next_step="the next run tries again; check which other program writes to the table",
    )


def _attempt(
    table: Table, record: JobRecord, added: tuple[DataFile, ...], replace: bool
) -> tuple[JobRecord, ...]:
    _read_again(table, record, lambda: turn_retries_off(table))
    if job_records.find(table.properties, record.job_id) is not None:
        raise JobAlreadyExists(f"job {record.job_id} exists", next_step="get the job and compare its files")
    changed, forgotten = job_records.recorded(table.properties, record)
    old = [task.file for task in planned(table)] if replace else []
    transaction = table.transaction()
    replace_files(table, transaction, {JOB_ID: record.job_id}, old, added)
    transaction.set_properties(changed)
    commit_once(transaction.commit_transaction, record)
    return forgotten


def turn_retries_off(table: Table) -> None:
    """Make sure that the library does not rebase commits, by setting the table's property. This may read the table
    again, including jobs that ended meanwhile, so look up job ids afterwards."""
    if table.properties.get(RETRIES) != "0":
        with table.transaction() as own:
            own.set_properties({RETRIES: "0"})


def commit_once(commit: Callable[[], object], record: JobRecord) -> None:
    """Commit. Raises CommitFailedException or NoSuchTableError if nothing was committed, otherwise UnknownOutcome."""
    try:
        commit()
    except (CommitFailedException, NoSuchTableError):
        raise
    except Exception as error:
        raise UnknownOutcome(
            f"job {record.job_id}: the catalog did not report whether it was committed: {shown(error)}",
            next_step="the next run looks the job up",
        ) from error


def _read_again(table: Table, record: JobRecord, read: Callable[[], object]) -> None:
    before = table.metadata.table_uuid, table.metadata.default_spec_id
    read()
    if (table.metadata.table_uuid, table.metadata.default_spec_id) != before:
        # The job's files have the partitions of the table as it was read before.
        raise Unavailable(
            f"job {record.job_id}: {table.name()} was recreated or repartitioned meanwhile",
            next_step="run again: the same job writes its files again",
        )


def tag_complete(table: Table, until_hour: int) -> bool:
    """Move the tag `COMPLETE` to the current snapshot and record the hour up to which it is complete, in one commit.
    Returns False if this hour was already recorded."""
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
    """Move the tag `COMPLETE`, if the table has it, to the new snapshot of a transaction, which has the same hours."""
    snapshot = transaction.table_metadata.current_snapshot_id
    if COMPLETE in table.metadata.refs and snapshot is not None:
        with ManageSnapshots(transaction) as references:
            references.create_tag(snapshot, COMPLETE)
