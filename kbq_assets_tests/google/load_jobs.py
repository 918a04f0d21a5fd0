"""Load jobs as BigQuery runs them: judged here, one at a time per table, landed in local-bigquery in one piece.

local-bigquery only gets Parquet with exactly the table's columns. Before that the job's row notes how many rows the
table has, so that a job cut off by ``kill -9`` is known to have happened or not: it ends DONE either way.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import parquet

from kbq_assets_tests.google.avro_rows import Unreadable, arrow_table, read_avro
from kbq_assets_tests.google.avro_schema import Field, fields_of
from kbq_assets_tests.google.bucket_files import BucketFiles, NotLoaded, is_kbqs_own
from kbq_assets_tests.google.faults import Fault
from kbq_assets_tests.google.ledger import JobKey, Ledger, now_ms
from kbq_assets_tests.google.reverse_proxy import LOST, Upstream
from kbq_assets_tests.google.table_rules import is_expired, load_objection

MAX_PARTITIONS = 4000


class JobEnds(Exception):
    """The job ends DONE with this error."""

    def __init__(self, reason: str, message: str, location: str = "") -> None:
        super().__init__(message)
        self.error = {"reason": reason, "message": message, **({"location": location} if location else {})}


class LoadJobs:
    """Runs load jobs. ``held`` keeps jobs RUNNING before they touch anything, until it is cleared."""

    def __init__(self, upstream: Upstream, gcs: Upstream, ledger: Ledger, folder: Path) -> None:
        self._upstream, self._gcs, self._ledger, self._folder = upstream, gcs, ledger, folder
        self.files = BucketFiles(upstream, gcs, folder)
        self._tables: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._state = threading.Condition()
        self.held = False
        self._active: set[JobKey] = set()
        self._cancelled: set[JobKey] = set()
        self._broken = {key for key in ledger.unfinished() if "load" in ledger.configuration(key)}
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)

    def hold(self, held: bool) -> None:
        """Keep jobs from starting, or let them continue."""
        with self._state:
            self.held = held
            self._state.notify_all()

    def close(self) -> None:
        """Start nothing any more, and wait for what runs."""
        with self._state:
            self._closed = True
            self._state.notify_all()
            self._state.wait_for(lambda: not self._active, timeout=300)

    def start(self, key: JobKey, load: Mapping[str, Any], fault: Fault | None) -> None:
        """Run an inserted job in the background."""
        threading.Thread(target=self._run, args=(key, load, fault), daemon=True).start()

    def cancel(self, key: JobKey) -> None:
        """End the job as `stopped`, unless its rows are being written."""
        with self._state:
            if key not in self._active and not self._ledger.is_done(key):
                self._cancelled.add(key)
                self._finish(key, {"reason": "stopped", "message": "Job execution was cancelled"})
            self._state.notify_all()

    def settle(self) -> None:
        """After a kill: end every job that it cut off, as done if its rows are there, else with an error."""
        with self._state:
            self._state.wait_for(lambda: not self._active, timeout=300)
            broken, self._broken = self._broken, set()
        for key in broken:
            before = self._ledger.rows_before(key)
            if before is not None and self._row_count(self._ledger.configuration(key)["load"]) != before:
                self._finish(key, None)
            else:
                self._finish(key, {"reason": "backendError", "message": "The job was cut off. Try again"})

    def _run(self, key: JobKey, load: Mapping[str, Any], fault: Fault | None) -> None:
        stuck = fault is not None and fault.kind == "job_stuck"
        with self._state:
            self._state.wait_for(lambda: self._is_over(key) or not (self.held or stuck))
        with self._tables[_path_of(load["destinationTable"]).partition("$")[0]]:
            if not self._begins(key):
                return
            try:
                if fault is not None and fault.kind == "job_error":
                    raise JobEnds(fault.reason or "backendError", "injected by the test")
                self._load(key, load, extra_rows=fault is not None and fault.kind == "job_rows")
            except JobEnds as end:
                self._finish(key, end.error)
            except LOST:
                self._broken.add(key)  # the server was killed: `settle` finds out
            finally:
                self._upstream.hang_up()
                self._gcs.hang_up()
                with self._state:
                    self._active.discard(key)
                    self._state.notify_all()

    def _is_over(self, key: JobKey) -> bool:
        return self._closed or key in self._cancelled

    def _begins(self, key: JobKey) -> bool:
        with self._state:
            if self._is_over(key):
                return False
            self._active.add(key)
        self._ledger.update(key, status={"state": "RUNNING"})
        return True

    def _load(self, key: JobKey, load: Mapping[str, Any], extra_rows: bool) -> None:
        if not is_kbqs_own(load):
            return self._load_files(key, load)
        table = self._table(load["destinationTable"])
        rows, size = self._read(load, table)
        _check_partitions(rows, table)
        statistics = {
            "inputFiles": str(len(load["sourceUris"])),
            "inputFileBytes": str(size),
            "outputRows": str(rows.num_rows + extra_rows),
            "outputBytes": str(rows.nbytes),
            "badRecords": "0",
        }
        before = self._ledger.document(key)["statistics"]
        self._ledger.update(key, statistics={**before, "startTime": now_ms(), "load": statistics})
        if rows.num_rows or load.get("writeDisposition") == "WRITE_TRUNCATE":
            self._ledger.note_rows_before(key, self._row_count(load))
            self._land(_kept(rows, table), load)
        self._finish(key, None)

    def _load_files(self, key: JobKey, load: Mapping[str, Any]) -> None:
        """A load of files of any format."""
        try:
            rows = self.files.load(key.project, load)
        except NotLoaded as error:
            raise JobEnds(error.reason, str(error)) from error
        before = self._ledger.document(key)["statistics"]
        statistics = {"inputFiles": str(len(load["sourceUris"])), "outputRows": str(rows), "badRecords": "0"}
        self._ledger.update(key, statistics={**before, "startTime": now_ms(), "load": statistics})
        self._finish(key, None)

    def _table(self, reference: Mapping[str, str]) -> dict[str, Any]:
        status, table = self._upstream.call("GET", _path_of(reference))
        if status == 404:
            raise JobEnds("notFound", f"Not found: Table {_label(reference)}")
        return table  # type: ignore[no-any-return]

    def _read(self, load: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[pa.Table, int]:
        fields: list[Field] = table.get("schema", {}).get("fields", [])
        parts, size = [], 0
        for uri in load["sourceUris"]:
            data = self._object(uri)
            size += len(data)
            try:
                file = read_avro(data)
                if objection := load_objection(fields, fields_of(file.schema, _targets(load))):
                    label = _label(load["destinationTable"])
                    raise JobEnds(
                        "invalid", f"Provided Schema does not match Table {label}. {objection}", uri
                    )
                parts.append(arrow_table(file, fields))
            except Unreadable as error:
                message = f"Error while reading data, error message: {error} File: {uri}"
                raise JobEnds("invalid", message, uri) from error
        return pa.concat_tables(parts), size

    def _object(self, uri: str) -> bytes:
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        data = self._gcs.read(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")
        if data is None:
            raise JobEnds("notFound", f"Not found: URI {uri}", uri)
        return data

    def _land(self, rows: pa.Table, reported: Mapping[str, Any]) -> None:
        """Append the rows, or replace others with them, in a job of local-bigquery that is invisible to clients."""
        reference = reported["destinationTable"]
        inner = f"landing-{uuid.uuid4().hex}"
        path = self._folder / f"{inner}.parquet"
        parquet.write_table(rows, path)
        load = {
            "sourceUris": [f"file://{path}"],
            "sourceFormat": "PARQUET",
            "destinationTable": reference,
            "writeDisposition": reported.get("writeDisposition", "WRITE_APPEND"),
            "createDisposition": "CREATE_NEVER",
        }
        jobs = f"/bigquery/v2/projects/{reference['projectId']}/jobs"
        job = {"jobReference": {"jobId": inner}, "configuration": {"load": load}}
        status, document = self._upstream.call("POST", jobs, job)
        for pause in itertools.chain([0.01] * 10, itertools.repeat(0.05)):
            if status != 200 or document["status"]["state"] == "DONE":
                break
            time.sleep(pause)
            status, document = self._upstream.call("GET", f"{jobs}/{inner}")
        path.unlink()
        if status != 200 or "errorResult" in document["status"]:
            raise JobEnds("internalError", f"the local server could not take what BigQuery would: {document}")

    def _row_count(self, load: Mapping[str, Any]) -> int:
        status, rows = self._upstream.call("GET", f"{_path_of(load['destinationTable'])}/data?maxResults=0")
        return int(rows["totalRows"]) if status == 200 else 0

    def _finish(self, key: JobKey, error: Mapping[str, str] | None) -> None:
        failed = {"errorResult": error, "errors": [error]} if error else {}
        statistics = {**self._ledger.document(key)["statistics"], "endTime": now_ms()}
        if error:
            statistics.pop("load", None)
        self._ledger.update(key, status={"state": "DONE", **failed}, statistics=statistics)


def _kept(rows: pa.Table, table: Mapping[str, Any]) -> pa.Table:
    """The rows without those of expired partitions."""
    partitions = table.get("timePartitioning") or {}
    if not (expiration := partitions.get("expirationMs")) or not partitions.get("field"):
        return rows
    today = datetime.now(UTC).date()
    days = rows[partitions["field"]].to_pylist()
    return rows.filter(pa.array([not is_expired(day, expiration, today) for day in days]))


def _check_partitions(rows: pa.Table, table: Mapping[str, Any]) -> None:
    column = table.get("timePartitioning", {}).get("field")
    if not column:
        return
    touched = len(rows[column].unique())
    if touched > MAX_PARTITIONS:
        raise JobEnds(
            "invalid",
            f"Too many partitions produced by query, allowed {MAX_PARTITIONS}, "
            f"query produces at least {touched} partitions",
        )


def _targets(load: Mapping[str, Any]) -> list[str]:
    return load.get("decimalTargetTypes") or ["NUMERIC"]


def _path_of(reference: Mapping[str, str]) -> str:
    return "/bigquery/v2/projects/{projectId}/datasets/{datasetId}/tables/{tableId}".format(**reference)


def _label(reference: Mapping[str, str]) -> str:
    return "{projectId}:{datasetId}.{tableId}".format(**reference)
