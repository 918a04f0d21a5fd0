"""A warehouse in memory for batches of files: job ids that run once, faults as in `FakeWarehouse`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from kbq_assets.core.errors import (
    ConfigurationError,
    JobAlreadyExists,
    JobFailed,
    KbqError,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.ports.warehouse import JobError, JobStatus
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

Result = TypeVar("Result")


class Visible(NamedTuple):
    """Rows of one job: the batch that its files belong to, and the contents of the files."""

    batch: str
    contents: tuple[str, ...]


class FakeFileWarehouse:
    """The `FileLoads` port, and the part of `Warehouse` that batches of files use. ``bad`` has words that make a file,
    or a statement, fail; ``held`` keeps jobs RUNNING; ``refused`` refuses their insertion."""

    project, location = "p", "US"
    limits = LoadLimits()

    def __init__(self, source: FaultyMemoryStore) -> None:
        self._source = source
        self.faults: Callable[[Call], Outcome] | None = None
        self.jobs: dict[str, JobStatus] = {}
        self.pending: dict[str, FileJob] = {}
        self.visible: list[Visible] = []
        self.inserted: list[FileJob] = []
        self.late: list[FileJob] = []
        self.bad: dict[str, JobError] = {}
        self.held = self.refused = False
        #: what statements say that they changed
        self.changed_rows = -1
        #: calls left until a loop that never ends is called one
        self.calls_left = 100_000

    def view(self, process: str) -> FileWarehouseView:
        """The warehouse as one process sees it."""
        return FileWarehouseView(self, process)

    def check(self, config: Mapping[str, Any], sql: str) -> None:
        if "unsupported" in str(config):
            raise ConfigurationError("load.json: unsupported")

    def insert(self, job: FileJob) -> None:
        if job.job_id in self.jobs:
            raise JobAlreadyExists(f"job {job.job_id} exists")
        if self.refused:
            raise JobFailed("the job is refused")
        self.inserted.append(job)
        own = ("(statement)",) if job.sql else job.source_uris
        self.jobs[job.job_id] = JobStatus(job.job_id, "RUNNING", own, statement=job.digest)
        self.pending[job.job_id] = job
        if not self.held:
            self.finish(job.job_id)

    def finish(self, job_id: str) -> None:
        """Run a job to its end."""
        job = self.pending.pop(job_id)
        paths = [path for uri in job.source_uris for path in self._matched(self._source.path_of(uri))]
        contents = tuple(
            self._source.objects[path].data.decode() if path in self._source.objects else "gone"
            for path in paths
        )
        error = next(
            (bad for word, bad in self.bad.items() if any(word in text for text in (*contents, job.sql))),
            None,
        )
        before = self.jobs[job_id]
        if error is None:
            folder = paths[0].rpartition("/")[0]
            self.visible.append(Visible(folder, contents))
        self.jobs[job_id] = JobStatus(
            job_id,
            "DONE",
            before.source_uris,
            0 if error else len(paths),
            error,
            statement=before.statement,
            changed_rows=self.changed_rows if job.sql else -1,
        )

    def _matched(self, path: str) -> list[str]:
        """The objects that a URI means: those that begin as it does, if a `*` ends it."""
        if not path.endswith("*"):
            return [path]
        return [each for each in sorted(self._source.objects) if each.startswith(path[:-1])]

    def get_job(self, job_id: str, project: str, location: str, table: object = None) -> JobStatus | None:
        self.calls_left -= 1
        assert self.calls_left, "this never ends"
        return self.jobs.get(job_id)

    def burn_job(self, job_id: str, project: str, location: str, table: object = None) -> None:
        if job_id in self.jobs:
            raise JobAlreadyExists(f"job {job_id} exists")
        self.jobs[job_id] = JobStatus(job_id, "DONE", ())

    def deliver_late(self) -> None:
        """Let the insertions that are on their way arrive."""
        while self.late:
            try:
                self.insert(self.late.pop())
            except KbqError:
                continue


class FileWarehouseView:
    """One process's warehouse: every call carries its name, and can fail."""

    project, location = FakeFileWarehouse.project, FakeFileWarehouse.location

    def __init__(self, warehouse: FakeFileWarehouse, process: str) -> None:
        self._warehouse = warehouse
        self.limits = warehouse.limits
        self._process = process

    def check(self, config: Mapping[str, Any], sql: str) -> None:
        self._warehouse.check(config, sql)

    def insert(self, job: FileJob) -> None:
        self._call("insert", job.job_id, lambda: self._warehouse.insert(job), late=job)

    def get_job(self, job_id: str, project: str, location: str, table: object = None) -> JobStatus | None:
        return self._call("get_job", job_id, lambda: self._warehouse.get_job(job_id, project, location))

    def burn_job(self, job_id: str, project: str, location: str, table: object = None) -> None:
        self._call("burn", job_id, lambda: self._warehouse.burn_job(job_id, project, location))

    def _call(
        self, operation: str, target: str, apply: Callable[[], Result], late: FileJob | None = None
    ) -> Result:
        call = Call(self._process, operation, target, writes=operation != "get_job")
        outcome = self._warehouse.faults(call) if self._warehouse.faults else Outcome.OK
        if outcome is Outcome.UNAVAILABLE:
            raise Unavailable(f"{operation} {target}")
        if outcome is Outcome.CRASH_BEFORE:
            raise Crash
        if outcome in (Outcome.LATE, Outcome.CRASH_LATE):
            if late is not None:
                self._warehouse.late.append(late)
            if outcome is Outcome.CRASH_LATE:
                raise Crash
            raise UnknownOutcome(f"{operation} {target}")
        if outcome is Outcome.OWN_RETRY:
            apply()
        result = apply()
        if outcome is Outcome.CRASH_AFTER:
            raise Crash
        if outcome is Outcome.LOST_REPLY:
            raise UnknownOutcome(f"{operation} {target}")
        return result
