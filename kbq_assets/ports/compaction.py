"""Compaction: merges a lake's small files into large ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, runtime_checkable

from kbq_assets.core.compaction.model import LakeView, RewriteTask, Rewritten
from kbq_assets.core.errors import ConflictError
from kbq_assets.core.protocol.names import TableReference

#: Rewrites groups of files, in this process or in Spark tasks. Returns an outcome per task, also for failed ones.
Rewriter: TypeAlias = Callable[[Sequence[RewriteTask]], Sequence[Rewritten]]
OpenRewriter: TypeAlias = Callable[[], AbstractContextManager[Rewriter]]
#: Smaller rewrites run in this process, because a Spark application takes 10 s to start.
IN_PROCESS_BYTES: Final = 256 << 20


class TableMoved(ConflictError):
    """The table changed after it was planned; plan again (PROTOCOL C2)."""


@dataclass(frozen=True)
class Tidied:
    """Numbers of expired snapshots and deleted orphans."""

    snapshots: int = 0
    orphans: int = 0


class Compaction(Protocol):
    """Guarantees: `replace_files` is one commit that removes the groups' files and adds the new ones, or it changes
    nothing. It succeeds only if the table still has the given view's snapshot, layout and number. The same is true of
    `drop_files`, which only removes files."""

    def view(self, table: TableReference) -> LakeView | None:
        """A table's files in its current snapshot, None if the table does not exist. Raises Unavailable,
        ConfigurationError."""

    def rewrite(self, task: RewriteTask) -> Rewritten:
        """Write a group's rows into one file, which no snapshot lists yet. Never raises: the outcome has the error."""

    def replace_files(self, view: LakeView, results: Sequence[Rewritten]) -> None:
        """Commit. Raises TableMoved, UnknownOutcome, Unavailable."""

    def drop_files(self, view: LakeView, paths: Sequence[str]) -> bool:
        """Commit the table without these files, which are stored until their snapshots expire. Returns False if the
        table changed. Raises UnknownOutcome, Unavailable."""

    def tidy(self, table: TableReference) -> Tidied:
        """Expire old snapshots by the table's properties, and delete orphans. Raises Unavailable."""

    def discard(self, table: TableReference, paths: Sequence[str]) -> None:
        """Delete new files that were not committed. Files that cannot be deleted become orphans."""


@runtime_checkable
class Compacts(Protocol):
    """A warehouse whose tables are files that compaction can replace."""

    compaction: Compaction
