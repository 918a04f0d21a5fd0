"""The table `_kbq_completeness` of each dataset: all known hours of its tables, replaced by one load job now and then.

    claim    the rows as a file, then a swap that names it and the next job id: of two loaders one goes on
    submit   a load job that replaces the table's rows; the id runs once
    settle   the next run gets the job, and deletes the file. A job that failed is made anew, from newer rows

Nothing depends on the table but its readers: whatever fails is left to the next run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import JobAlreadyExists, KbqError, PreconditionFailed, UnknownOutcome
from kbq_assets.core.loading.completeness import HOUR_SCHEMA, hour_rows
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions, plan_table_change
from kbq_assets.core.protocol.names import COMPLETENESS, COMPLETENESS_TABLE, TableReference
from kbq_assets.pipelines.loading.ports import LoadPorts
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.warehouse import LoadJob

#: A dataset's table is written no more often. BigQuery allows 1,500 jobs per table and day, failed ones included.
PAUSE_MS: Final = 600_000
_LABELS: Final = {"kbq": "v1"}
_LOGGER: Final = logging.getLogger("kbq.completeness")

_Tables: TypeAlias = list[tuple[TableReference, Versioned[TableState]]]


@dataclass(frozen=True)
class Snapshot:
    """`completeness/<dataset>.json`: the last job of a dataset's table. ``path`` is its file, "" once it has ended;
    ``digest`` of the states it was made from, "" where the job failed. ``at_ms`` is when it was claimed, by the store's
    time."""

    uuid: str
    sequence: int = 0
    project: str = ""
    location: str = ""
    path: str = ""
    digest: str = ""
    at_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        """The id of its job, which runs at most once."""
        return f"kbq-{self.uuid}-completeness-{self.sequence}"


def publish_hours(ports: LoadPorts, view: LoadView) -> None:
    """Write what has changed, dataset by dataset. What one raises is logged, and stops no other."""
    for dataset, tables in _datasets(view).items():
        try:
            _publish(ports, dataset, tables)
        except KbqError as error:
            _LOGGER.warning("%s.%s is not written: %s", dataset, COMPLETENESS_TABLE, error.message)


def _datasets(view: LoadView) -> Mapping[str, _Tables]:
    """Tables with rows, by dataset."""
    found: dict[str, _Tables] = defaultdict(list)
    for table, current in sorted(view.states.items(), key=lambda item: item[0]):
        if isinstance(current, Versioned) and current.value.rows:
            found[table.dataset].append((table, current))
    return found


def _publish(ports: LoadPorts, dataset: str, tables: _Tables) -> None:
    current = _read(ports, dataset)
    if current.value.path:
        current = _settled(ports, dataset, current)
    # Generations instead of the rows themselves, which take a second to write for a thousand tables.
    named = " ".join(f"{table} {found.generation}" for table, found in tables)
    digest = hashlib.sha256(named.encode()).hexdigest()
    if current.value.path or digest == current.value.digest:
        return
    now_ms = ports.store.now_ms()
    if current.value.sequence and now_ms - current.value.at_ms < PAUSE_MS:
        return
    from kbq_assets.wire.files.hour_rows import hour_file  # with numba: not for every run of a driver

    data = hour_file(row for table, found in tables for row in hour_rows(table, found.value.hours))
    if (claimed := _claim(ports, dataset, current, data, digest, now_ms)) is not None:
        _mend_table(ports, TableReference(dataset, COMPLETENESS_TABLE))
        _submit(ports, dataset, claimed.value)
        _settled(ports, dataset, _read(ports, dataset))


def _read(ports: LoadPorts, dataset: str) -> Versioned[Snapshot]:
    path = f"{COMPLETENESS}{dataset}.json"
    found = state.find(ports.store, Snapshot, path)
    if found is None:
        state.create(ports.store, path, Snapshot(ports.new_uuid()))
        found = state.read(ports.store, Snapshot, path)
    return found


def _claim(
    ports: LoadPorts, dataset: str, current: Versioned[Snapshot], data: bytes, digest: str, now_ms: int
) -> Versioned[Snapshot] | None:
    """Name the next job and its file. None where somebody else was faster."""
    warehouse, before = ports.warehouse, current.value
    # A name of this attempt alone: another's file, left by a crash or written now, has other rows.
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


def _mend_table(ports: LoadPorts, table: TableReference) -> None:
    change = plan_table_change(HOUR_SCHEMA, ports.warehouse.columns(table))
    if change.create:
        ports.warehouse.create_table(table, change.columns, TableOptions(labels=_LABELS))
    elif change:
        ports.warehouse.update_columns(table, change.columns)


def _submit(ports: LoadPorts, dataset: str, told: Snapshot) -> None:
    job = LoadJob(
        told.job_id,
        told.project,
        told.location,
        TableReference(dataset, COMPLETENESS_TABLE),
        (ports.store.uri(told.path),),
        HOUR_SCHEMA,
        _LABELS,
        replace=True,
    )
    with contextlib.suppress(JobAlreadyExists, UnknownOutcome):
        ports.warehouse.insert_job(job)


def _settled(ports: LoadPorts, dataset: str, current: Versioned[Snapshot]) -> Versioned[Snapshot]:
    """Get the last job: the state is as before while it runs, and without a path once it has ended."""
    told = current.value
    job = ports.warehouse.get_job(told.job_id, told.project, told.location) if told.path else None
    if told.path and job is None:
        _mend_table(ports, TableReference(dataset, COMPLETENESS_TABLE))
        _submit(ports, dataset, told)  # not started: the same id again
    if job is None or job.state != "DONE":
        return current
    if job.error is not None:
        _LOGGER.warning("%s.%s: job %s: %s", dataset, COMPLETENESS_TABLE, told.job_id, job.error.message)
    ended = dataclasses.replace(told, path="", digest="" if job.error else told.digest)
    entries = ports.store.list(f"{COMPLETENESS}{dataset}/")  # those of crashes, too
    ports.store.delete_many([entry.path for entry in entries])
    with contextlib.suppress(PreconditionFailed, UnknownOutcome):
        state.swap(ports.store, current, ended)
    return _read(ports, dataset)
