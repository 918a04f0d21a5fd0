"""Load jobs whose files are written by tasks: on Spark, or wherever they run."""

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
    """A part of a job's sources, for one task. ``metadata`` is the file with the table's metadata."""

    job: LoadJob
    metadata: str

    @property
    def table(self) -> TableReference:
        """The job's table."""
        return self.job.table


@dataclass(frozen=True)
class WrittenFiles:
    """What a task wrote: ``files`` as the lake's library describes them, or the ``error`` that left none."""

    rows: int = 0
    files: tuple[object, ...] = ()
    error: KbqError | None = None


#: Runs tasks: an outcome per task, failures among them. Raises Unavailable if a task is given up.
RunTasks: TypeAlias = Callable[[Sequence[WriteTask]], Sequence[WrittenFiles]]
OpenTasks: TypeAlias = Callable[[], AbstractContextManager[RunTasks]]


@runtime_checkable
class LoadsByTasks(Protocol):
    """A warehouse whose load jobs tasks can write. The job itself commits what they wrote, once."""

    def by_tasks(self, run: RunTasks, from_bytes: int) -> Warehouse:
        """The same warehouse, whose load jobs of ``from_bytes`` of files or more are written by tasks."""


class OnDemandTasks:
    """Tasks that open with the first job, and close with the block: a run with small jobs alone starts no Spark."""

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
        """Run tasks."""
        if self._run is None:
            self._run = self._opened.enter_context(self._open())
        return self._run(tasks)
