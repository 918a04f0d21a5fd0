"""Load jobs whose files are written by tasks, on Spark or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias, runtime_checkable

from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import LoadJob, Warehouse


@dataclass(frozen=True)
class WriteTask:
    """The part of a job's sources for one task. ``metadata`` is the file with the table's metadata."""

    job: LoadJob
    metadata: str

    @property
    def table(self) -> TableReference:
        """The job's table."""
        return self.job.table


@dataclass(frozen=True)
class WrittenFiles:
    """The result of a task: ``files`` as the lake's library describes them, or the ``error`` if there are none."""

    rows: int = 0
    files: tuple[object, ...] = ()
    error: KbqError | None = None


#: Runs tasks and returns an outcome for each, also for failed ones. Raises Unavailable if it gives up on a task.
RunTasks: TypeAlias = Callable[[Sequence[WriteTask]], Sequence[WrittenFiles]]
OpenTasks: TypeAlias = Callable[[], AbstractContextManager[RunTasks]]


@runtime_checkable
class LoadsByTasks(Protocol):
    """A warehouse whose load jobs can have their files written by tasks. The job itself commits the files, once."""

    def by_tasks(self, run: RunTasks, from_bytes: int) -> Warehouse:
        """The same warehouse, but tasks write the load jobs that have at least ``from_bytes`` of files."""


class OnDemandTasks:
    """Runs tasks on a backend that starts with the first job and stops with the block, so a run that has only small
    jobs does not start Spark."""

    def __init__(self, open_tasks: OpenTasks) -> None:
        self._open = open_tasks
        self._opened = ExitStack()
        self._run: RunTasks | None = None

    def __enter__(self) -> OnDemandTasks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run = None
        self._opened.__exit__(kind, error, trace)

    def __call__(self, tasks: Sequence[WriteTask]) -> Sequence[WrittenFiles]:
        """Run tasks, and start the backend if this is the first call."""
        if self._run is None:
            self._run = self._opened.enter_context(self._open())
        return self._run(tasks)
