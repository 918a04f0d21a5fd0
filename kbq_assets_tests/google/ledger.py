"""The jobs of the BigQuery proxy, on disk: a used id stays used, whatever is killed."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS jobs (project TEXT, location TEXT, id TEXT, document TEXT, rows_before INTEGER, "
    "PRIMARY KEY (project, location, id))"
)


@dataclass(frozen=True)
class JobKey:
    """What names a job. ``location`` is in lower case."""

    project: str
    location: str
    job_id: str

    def __str__(self) -> str:
        return f"{self.project}:{shown(self.location)}.{self.job_id}"


def shown(location: str) -> str:
    """A location as BigQuery prints it: US and EU, but europe-west3."""
    return location.upper() if len(location) == 2 else location.lower()


class Ledger:
    """Every job that was ever inserted: the document that jobs.get returns."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")  # it must outlive processes, not machines
        self._database.execute(_SCHEMA)

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def enter(self, key: JobKey, document: dict[str, Any], strict: bool = True) -> bool:
        """Take the id, False if it is taken. Without ``strict`` the new job replaces the old one."""
        verb = "INSERT OR IGNORE" if strict else "INSERT OR REPLACE"
        return self._write(f"{verb} INTO jobs VALUES (?, ?, ?, ?, NULL)", key, json.dumps(document)) == 1

    def remove(self, key: JobKey) -> None:
        """Free the id of a job that was refused."""
        self._write("DELETE FROM jobs WHERE project = ? AND location = ? AND id = ?", key)

    def document(self, key: JobKey) -> dict[str, Any]:
        """The job as it is now. Raises KeyError for one that was never inserted."""
        sql = "SELECT document FROM jobs WHERE project = ? AND location = ? AND id = ?"
        rows = self._read(sql, key.project, key.location, key.job_id)
        if not rows:
            raise KeyError(key)
        return json.loads(rows[0][0])  # type: ignore[no-any-return]

    def configuration(self, key: JobKey) -> dict[str, Any]:
        """The job's configuration."""
        return self.document(key)["configuration"]  # type: ignore[no-any-return]

    def is_done(self, key: JobKey) -> bool:
        """Whether the job has ended."""
        return bool(self.document(key)["status"]["state"] == "DONE")

    def update(self, key: JobKey, **parts: Any) -> dict[str, Any]:
        """Replace parts of the document; return all of it."""
        with self._lock:
            document = {**self.document(key), **parts}
            sql = "UPDATE jobs SET document = ? WHERE project = ? AND location = ? AND id = ?"
            self._database.execute(sql, (json.dumps(document), key.project, key.location, key.job_id))
        return document

    def note_rows_before(self, key: JobKey, rows: int) -> None:
        """How many rows the table has before the job's are written: after a kill, this tells whether they were."""
        with self._lock:
            sql = "UPDATE jobs SET rows_before = ? WHERE project = ? AND location = ? AND id = ?"
            self._database.execute(sql, (rows, key.project, key.location, key.job_id))

    def rows_before(self, key: JobKey) -> int | None:
        """What was noted, None where no row was written."""
        sql = "SELECT rows_before FROM jobs WHERE project = ? AND location = ? AND id = ?"
        return self._read(sql, key.project, key.location, key.job_id)[0][0]  # type: ignore[no-any-return]

    def keys(self, project: str, job_id: str) -> list[JobKey]:
        """The jobs of this id, one per location."""
        rows = self._read("SELECT location FROM jobs WHERE project = ? AND id = ?", project, job_id)
        return [JobKey(project, location, job_id) for (location,) in rows]

    def unfinished(self) -> list[JobKey]:
        """Jobs that are not DONE."""
        keys = [JobKey(*row) for row in self._read("SELECT project, location, id FROM jobs")]
        return [key for key in keys if not self.is_done(key)]

    def _write(self, sql: str, key: JobKey, *values: Any) -> int:
        with self._lock:
            return self._database.execute(sql, (key.project, key.location, key.job_id, *values)).rowcount

    def _read(self, sql: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._database.execute(sql, values).fetchall()


def new_job(key: JobKey, configuration: dict[str, Any]) -> dict[str, Any]:
    """A job as jobs.insert returns it."""
    return {
        "kind": "bigquery#job",
        "id": str(key),
        "jobReference": {
            "projectId": key.project,
            "jobId": key.job_id,
            "location": shown(key.location),
        },
        "configuration": configuration,
        "status": {"state": "PENDING"},
        "statistics": {"creationTime": now_ms()},
        "user_email": "tests@kbq.invalid",
    }


def now_ms() -> str:
    """BigQuery's time, in its spelling."""
    return str(time.time_ns() // 1_000_000)
