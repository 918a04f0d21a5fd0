"""A lake whose small files become large ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, runtime_checkable

from kbq_assets.core.compaction.model import LakeView, RewriteTask, Rewritten
from kbq_assets.core.errors import ConflictError
from kbq_assets.core.protocol.names import TableReference

#: Rewrites groups of files, here or in Spark tasks: an outcome per task, failures among them.
Rewriter: TypeAlias = Callable[[Sequence[RewriteTask]], Sequence[Rewritten]]
OpenRewriter: TypeAlias = Callable[[], AbstractContextManager[Rewriter]]
#: Less is rewritten in this process: a Spark application takes 10 s to start.
IN_PROCESS_BYTES: Final = 256 << 20


class TableMoved(ConflictError):
    """The table changed after the plan: plan anew (PROTOCOL C2)."""


@dataclass(frozen=True)
class Tidied:
    """How many snapshots expired, and how many orphans were deleted."""

    snapshots: int = 0
    orphans: int = 0


class Compaction(Protocol):
    """Guarantees: `replace_files` is one commit, which removes the groups' files and adds the new ones, or changes
    nothing. It succeeds only on the snapshot, the layout and the number of the view that it is given. So does
    `drop_files`, which adds none."""

    def view(self, table: TableReference) -> LakeView | None:
        """A table's files as its current snapshot lists them, None if there is no such table. Raises Unavailable,
        ConfigurationError."""

    def rewrite(self, task: RewriteTask) -> Rewritten:
        """Write a group's rows into one file, which no snapshot lists yet. Raises nothing: the outcome says why it
        failed."""

    def replace_files(self, view: LakeView, results: Sequence[Rewritten]) -> None:
        """Commit. Raises TableMoved, UnknownOutcome, Unavailable."""

    def drop_files(self, view: LakeView, paths: Sequence[str]) -> bool:
        """Commit a table without these files, which stay until their snapshots expire. False if the table moved.
        Raises UnknownOutcome, Unavailable."""

    def tidy(self, table: TableReference) -> Tidied:
        """Expire old snapshots as the table's properties say, and delete orphans. Raises Unavailable."""

    def discard(self, table: TableReference, paths: Sequence[str]) -> None:
        """Delete new files that are not committed, as far as possible: what stays is an orphan."""


@runtime_checkable
class Compacts(Protocol):
    """A warehouse whose tables are files that compaction can replace."""

    compaction: Compaction
