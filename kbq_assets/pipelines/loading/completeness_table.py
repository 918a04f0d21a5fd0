"""The table `_kbq_completeness` of each dataset: all known hours of its tables. One load job at a time replaces it.

    claim    write the rows to a file, then swap its name and the next job id into the state: one of two loaders wins
    submit   submit a load job that replaces the table's rows; a job id runs at most once
    settle   the next run gets the job, and deletes the file. A failed job is repeated with newer rows

Only readers depend on the table, so the next run retries whatever fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kbq_assets.core.errors import (
    JobAlreadyExists,
    KbqError,
    PreconditionFailed,
    TransientError,
    UnknownOutcome,
)
from kbq_assets.core.loading.completeness import HOUR_SCHEMA, TableHours, hour_rows
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions, plan_table_change
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import COMPLETENESS, COMPLETENESS_TABLE, TableReference
from kbq_assets.pipelines.loading.ports import LoadPorts
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.warehouse import LoadJob, MarksComplete

#: Default for KBQ_HOURS_SECONDS: the least time between two writes of a dataset's table. BigQuery allows 1,500 jobs
#: per table and day, including failed ones.
PAUSE_MS: Final = 600_000
_LABELS: Final = {"kbq": "v1"}
_LOGGER: Final = logging.getLogger("kbq.completeness")

_Tables: TypeAlias = list[tuple[TableReference, Versioned[TableState]]]


@dataclass(frozen=True)
class HoursTableState(Stored):
    """`completeness/<dataset>.json`: the last job of a dataset's table."""

    uuid: str
    sequence: int = 0
    project: str = ""
    location: str = ""
    #: the job's file; "" once the job has ended
    path: str = ""
    #: digest of the table states that the rows come from; "" if the job or a tag failed
    digest: str = ""
    #: store time when the job was claimed
    at_ms: int = 0

    @property
    def job_id(self) -> str:
        """The id of the last job. An id runs at most once."""
        return f"kbq-{self.uuid}-completeness-{self.sequence}"


def publish_hours(ports: LoadPorts, view: LoadView, pause_ms: int = PAUSE_MS) -> set[TableReference]:
    """Tag complete hours, and write the changed hours of each dataset, but at most every ``pause_ms``. Returns the
    tagged tables. An error is logged and does not stop the other datasets. If the store does not give the state of one
    of its tables now, a dataset's table stays as it is: a new one would lack that table's hours."""
    tagged: set[TableReference] = set()
    since_ms = ports.clock.now_ms() - pause_ms
    silent = {table.dataset: e for table, e in view.states.items() if isinstance(e, TransientError)}
    for dataset, tables in _datasets(view).items():
        try:
            # A tag is not a load job, so the pause does not apply to it.
            _mark(ports, [each for each in tables if _completed_ms(each[1].value.hours) >= since_ms], tagged)
            if dataset in silent:
                raise silent[dataset]
            _publish(ports, dataset, tables, pause_ms, tagged)
        except KbqError as error:
            _LOGGER.warning("%s.%s is not written: %s", dataset, COMPLETENESS_TABLE, error.message)
    return tagged


def _datasets(view: LoadView) -> Mapping[str, _Tables]:
    found: dict[str, _Tables] = defaultdict(list)
    for table, current in sorted(view.states.items(), key=lambda item: item[0]):
        if isinstance(current, Versioned) and current.value.rows:
            found[table.dataset].append((table, current))
    return found


def _publish(
    ports: LoadPorts, dataset: str, tables: _Tables, pause_ms: int, tagged: set[TableReference]
) -> None:
    current = _read(ports, dataset)
    if current.value.path:
        current = _settled(ports, dataset, current)
    # Hash generations, not rows: the rows of a thousand tables take a second to write.
    named = " ".join(f"{table} {found.generation}" for table, found in tables)
    digest = hashlib.sha256(named.encode()).hexdigest()
    if current.value.path or digest == current.value.digest:
        return
    now_ms = ports.store.now_ms()
    if current.value.sequence and now_ms - current.value.at_ms < pause_ms:
        return
    if not _mark(ports, tables, tagged):
        digest = ""  # the next run tags again, even if this one dies after the claim
    from kbq_assets.wire.files.hour_rows import hour_file  # with numba: not for every run of a driver

    data = hour_file(row for table, found in tables for row in hour_rows(table, found.value.hours))
    if (claimed := _claim(ports, dataset, current, data, digest, now_ms)) is not None:
        _fix_table(ports, TableReference(dataset, COMPLETENESS_TABLE))
        _submit(ports, dataset, claimed.value)
        _settled(ports, dataset, _read(ports, dataset))


def _mark(ports: LoadPorts, tables: _Tables, tagged: set[TableReference]) -> bool:
    """Tag complete hours in a warehouse that has snapshots; their rows were loaded before the view. Returns whether no
    table failed."""
    warehouse, failed = ports.warehouse, False
    if isinstance(warehouse, MarksComplete):
        for table, found in tables:
            try:
                until = found.value.hours.until
                if until and warehouse.mark_complete(table, until):
                    tagged.add(table)
            except KbqError as error:
                failed = True
                _LOGGER.warning("the complete hours of %s are not tagged: %s", table, error.message)
    return not failed


def _completed_ms(hours: TableHours) -> int:
    """The time when the latest complete hour was found to be complete; 0 if unknown."""
    return hours.completed.get(hours.until, 0)


def _read(ports: LoadPorts, dataset: str) -> Versioned[HoursTableState]:
    path = f"{COMPLETENESS}{dataset}.json"
    found = state.find(ports.store, HoursTableState, path)
    if found is None:
        state.create(ports.store, path, HoursTableState(ports.new_uuid()))
        found = state.read(ports.store, HoursTableState, path)
    return found


def _claim(
    ports: LoadPorts, dataset: str, current: Versioned[HoursTableState], data: bytes, digest: str, now_ms: int
) -> Versioned[HoursTableState] | None:
    """Write a file for the next job, and claim the job. None if another loader was faster."""
    warehouse, before = ports.warehouse, current.value
    # The name is unique to this attempt, because another attempt's file has other rows.
    path = f"{COMPLETENESS}{dataset}/{before.sequence + 1}-{ports.new_uuid()}.avro"
    ports.store.create(path, data)
    wanted = dataclasses.replace(
        before,
        sequence=before.sequence + 1,
        project=warehouse.project,
        location=warehouse.location,
        path=path,
        digest=digest,
        at_ms=now_ms,
    )
    try:
        return state.swap(ports.store, current, wanted)
    except PreconditionFailed:
        ports.store.delete(path)
        return None


def _fix_table(ports: LoadPorts, table: TableReference) -> None:
    change = plan_table_change(HOUR_SCHEMA, ports.warehouse.columns(table))
    if change.create:
        ports.warehouse.create_table(table, change.columns, TableOptions(labels=_LABELS))
    elif change:
        ports.warehouse.update_columns(table, change.columns)


def _submit(ports: LoadPorts, dataset: str, last: HoursTableState) -> None:
    job = LoadJob(
        last.job_id,
        last.project,
        last.location,
        TableReference(dataset, COMPLETENESS_TABLE),
        (ports.store.uri(last.path),),
        HOUR_SCHEMA,
        _LABELS,
        replace=True,
    )
    with contextlib.suppress(JobAlreadyExists, UnknownOutcome):
        ports.warehouse.insert_job(job)


def _settled(
    ports: LoadPorts, dataset: str, current: Versioned[HoursTableState]
) -> Versioned[HoursTableState]:
    """The state after a look at the last job: unchanged while it runs, without a path once it has ended."""
    last = current.value
    table = TableReference(dataset, COMPLETENESS_TABLE)
    job = ports.warehouse.get_job(last.job_id, last.project, last.location, table) if last.path else None
    if last.path and job is None:
        _fix_table(ports, table)
        _submit(ports, dataset, last)  # not started: submit the same id again
    if job is None or job.state != "DONE":
        return current
    if job.error is not None:
        _LOGGER.warning("%s.%s: job %s: %s", dataset, COMPLETENESS_TABLE, last.job_id, job.error.message)
    ended = dataclasses.replace(last, path="", digest="" if job.error else last.digest)
    # Includes the files that crashes left behind.
    ports.store.delete_many(list(ports.store.paths(f"{COMPLETENESS}{dataset}/")))
    with contextlib.suppress(PreconditionFailed, UnknownOutcome):
        state.swap(ports.store, current, ended)
    return _read(ports, dataset)
