"""A lake with one table in memory. Every call may be interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from kbq_assets.core.compaction.model import (
    CompactionPolicy,
    LakeFile,
    LakeView,
    RewriteTask,
    Rewritten,
    RowsDigest,
)
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import TableMoved, Tidied
from kbq_assets_tests.contracts.warehouse import TABLE

EVERYTHING = CompactionPolicy(target_bytes=40, min_files=2, min_age_ms=0)


class FakeLake:
    """`CompactedLake` and `Compaction` in one. ``interrupt`` is called with the name of each call, before and after
    it. ``jobs`` are the ids that ended. A row is its offset, and takes one byte. With ``hours``, the rows are in this
    many partitions of the first day, by offset."""

    def __init__(self, policy: CompactionPolicy = EVERYTHING) -> None:
        self.interrupt: Callable[[str], None] = lambda call: None
        self.policy = policy
        self.stored: dict[str, tuple[int, ...]] = {}
        self.snapshots: dict[int, tuple[str, ...]] = {0: ()}
        self.current = 0
        self.number = 0
        self.jobs: set[int] = set()
        self.attempts: Counter[int] = Counter()
        self.layout = "layout"
        self.days: dict[str, int] = {}
        self.hours = 0
        self.coarse: set[str] = set()
        self.corrupt: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda rows: rows

    @property
    def compaction(self) -> FakeLake:
        """Itself."""
        return self

    def load(self, *offsets: int) -> None:
        """A new load job."""
        self.run_job(max(self.jobs, default=0) + 1, *offsets)

    def run_job(self, job: int, *offsets: int) -> None:
        """A load job: it writes its file, and commits it on the snapshot that it read, if its id has not ended."""
        self.attempts[job] += 1
        path = f"job-{job}" if self.attempts[job] == 1 else f"job-{job}/{self.attempts[job]}"
        self.interrupt("before load")
        self.stored[path] = offsets
        while job not in self.jobs:
            read = self.current
            self.interrupt("before load commit")
            if read == self.current:
                self._commit((*self.snapshots[read], path))
                self.jobs.add(job)
                self.interrupt("after load commit")
                return
        self.stored.pop(path, None)

    def replace_all(self, *offsets: int) -> None:
        """A load job whose rows replace all."""
        job = max(self.jobs, default=0) + 1
        self.stored[f"job-{job}"] = offsets
        self._commit((f"job-{job}",))
        self.jobs.add(job)

    def offsets(self) -> list[int]:
        """All rows of the current snapshot."""
        return sorted(self.rows_of(self.current))

    def rows_of(self, snapshot: int) -> Iterator[int]:
        """The rows of a snapshot. Raises KeyError if one of its files does not exist."""
        for path in self.snapshots[snapshot]:
            yield from self.stored[path]

    def reader(self) -> Sequence[int]:
        """The current rows, read on demand."""
        lake, snapshot = self, self.current

        class Late(list[int]):
            def __iter__(self) -> Iterator[int]:
                return lake.rows_of(snapshot)

        return Late()

    def expire(self) -> None:
        """Expire all snapshots but the current one, delete what only they list, and orphans of jobs and compactions
        that have ended."""
        self.snapshots = {self.current: self.snapshots[self.current]}
        needed = set(self.snapshots[self.current])
        for path in [path for path in self.stored if path not in needed]:
            kind, _, rest = path.partition("-")
            number = int(rest.replace("/", "-").partition("-")[0])
            if number in self.jobs if kind == "job" else number < self.number:
                del self.stored[path]

    def view(self, table: TableReference) -> LakeView | None:
        """The current snapshot."""
        if table != TABLE:
            return None
        self.interrupt("before view")
        files = tuple(self._file(path) for path in sorted(self.snapshots[self.current]))
        return LakeView(
            TABLE, self.current, self.layout, self.number, files, self.policy, has_hours=bool(self.hours)
        )

    def _file(self, path: str) -> LakeFile:
        rows = self.stored[path]
        day = self.days.get(path, 0 if self.hours else None)
        hours = {row % self.hours for row in rows} if self.hours else set()
        assert len(hours) <= 1 or path in self.coarse, f"{path} has rows of several hours"
        hour = min(hours) if path not in self.coarse and hours else None
        partition = "p" if hour is None else f"p{hour}"
        return LakeFile(path, len(rows), len(rows), partition, 0, hour, day, coarse=path in self.coarse)

    def rewrite(self, task: RewriteTask) -> Rewritten:
        """Join the rows of files."""
        self.interrupt("before rewrite")
        if gone := [path for path in task.group.paths if path not in self.stored]:
            return Rewritten(task, failure=f"{gone[0]} is gone", gone=True)
        rows = tuple(offset for path in task.group.paths for offset in self.stored[path])
        path = f"compact-{task.job_id.rpartition('-')[2]}-{task.token}"
        self.stored[path] = self.corrupt(rows)
        self.coarse |= {path} if task.group.coarse else set()
        self.interrupt("after rewrite")
        if path not in self.stored:  # its id has ended meanwhile
            return Rewritten(task, failure=f"{path} is gone", gone=True)
        return Rewritten(task, path, len(rows), _digest(rows), _digest(self.stored[path]))

    def replace_files(self, view: LakeView, results: Sequence[Rewritten]) -> None:
        """Commit, only if snapshot, layout and number are those of the view."""
        self.interrupt("before commit")
        assert len({each.task.group.coarse for each in results}) == 1, (
            "a commit has files of one partitioning"
        )
        if (view.snapshot, view.layout, view.number) != (self.current, self.layout, self.number):
            raise TableMoved("moved")
        gone = {path for result in results for path in result.task.group.paths}
        kept = (path for path in self.snapshots[self.current] if path not in gone)
        self._commit((*kept, *(result.path for result in results)))
        self.number += 1
        self.interrupt("after commit")

    def drop_files(self, view: LakeView, paths: Sequence[str]) -> bool:
        """Commit the snapshot without files."""
        self.interrupt("before commit")
        if (view.snapshot, view.number) != (self.current, self.number):
            return False
        self._commit(tuple(path for path in self.snapshots[self.current] if path not in paths))
        self.number += 1
        return True

    def tidy(self, table: TableReference) -> Tidied:
        """Expire."""
        before = len(self.stored)
        self.expire()
        return Tidied(0, before - len(self.stored))

    def discard(self, table: TableReference, paths: Sequence[str]) -> None:
        """Delete files."""
        self.interrupt("before discard")
        for path in paths:
            self.stored.pop(path, None)

    def _commit(self, paths: tuple[str, ...]) -> None:
        self.current = max(self.snapshots) + 1
        self.snapshots[self.current] = paths


def _digest(rows: Sequence[int]) -> RowsDigest:
    return RowsDigest(len(rows), sum(hash((offset, 7)) for offset in rows) % (1 << 64))
