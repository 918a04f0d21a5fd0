"""Compacts lake tables: read the table -> plan -> rewrite -> one commit. If the table changed, plan again (C2)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from kbq_assets.core.compaction.model import (
    ChosenFiles,
    CompactionPlan,
    CompactionRule,
    FileGroup,
    LakeView,
    RewriteTask,
    Rewritten,
)
from kbq_assets.core.compaction.planning import next_round, plan_compaction
from kbq_assets.core.errors import KbqError, NotFound, TransientError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import IN_PROCESS_BYTES, Compaction, OpenRewriter, Rewriter, TableMoved

#: Attempts of a round. Then the next run continues.
ATTEMPTS: Final = 20


@dataclass(frozen=True)
class CompactionReport:
    """The result for a table. ``failures`` are the errors of partitions that keep their files. ``message`` is the
    reason for stopping early; ``transient``: whether the next run may continue. ``hours`` are those of replaced
    files."""

    table: TableReference
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    commits: int = 0
    hours: tuple[int, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    transient: bool = False


def existing_view(compaction: Compaction, table: TableReference) -> LakeView:
    """A table's files. Raises NotFound, Unavailable, ConfigurationError."""
    found = compaction.view(table)
    if found is None:
        raise NotFound(f"table {table} does not exist", next_step="kbq status lists the tables")
    return found


class TableCompaction:
    """One table's compaction, round by round. The rule is what its topics require."""

    def __init__(
        self,
        compaction: Compaction,
        table: TableReference,
        now_ms: Callable[[], int],
        open_rewriter: OpenRewriter,
        chosen: ChosenFiles | None = None,
        rule: Callable[[], CompactionRule] = CompactionRule,
    ) -> None:
        self._read_rule = rule
        self._chosen = chosen
        self._open_rewriter = open_rewriter
        self._compaction = compaction
        self._table = table
        self._now_ms = now_ms
        self._token = uuid.uuid4().hex[:12]
        self._made = 0
        self._commits = 0
        self._compacted: set[int] = set()
        self._failures: dict[str, str] = {}
        #: new files that are not committed yet, with the view that they were written for
        self._done: dict[FileGroup, Rewritten] = {}
        self._written_for = ("", -1)
        #: groups whose input files did not exist, with the snapshot
        self._gone: dict[FileGroup, int] = {}

    def plan(self) -> CompactionPlan:
        """What `run` would do."""
        return self._plan(self._view())

    def _plan(self, view: LakeView) -> CompactionPlan:
        is_current = self._written_for == (view.layout, view.number)
        kept = list(self._done) if is_current else ()
        return plan_compaction(view, self._now_ms(), self._failures, self._chosen, kept)

    def run(self) -> CompactionReport:
        plan: CompactionPlan | None = None
        try:
            plan = self.plan()
            with self._rewriter(plan) as rewriter:
                for _ in plan.groups:  # each round commits a group or gives one up
                    if not self._round(rewriter):
                        break
        except KbqError as error:
            return self._report(plan, error)
        return self._report(plan)

    def _rewriter(self, plan: CompactionPlan) -> AbstractContextManager[Rewriter]:
        if plan.rewritten_bytes < IN_PROCESS_BYTES:
            return nullcontext(lambda tasks: [self._compaction.rewrite(task) for task in tasks])
        return self._open_rewriter()

    def _view(self) -> LakeView:
        view = existing_view(self._compaction, self._table)
        return replace(view, policy=self._rule.over(view.policy))

    @cached_property
    def _rule(self) -> CompactionRule:
        """The rule that the table's topics set. It is read once, as part of the run."""
        return self._read_rule()

    def _round(self, rewriter: Rewriter) -> bool:
        """Replace the files of some groups in one commit. Returns False if nothing is left to do."""
        try:
            for _ in range(ATTEMPTS):
                view = self._view()
                wanted = next_round(self._plan(view).groups)
                if not wanted:
                    return False
                if self._attempt(rewriter, view, wanted):
                    return True
        finally:
            self._discard(list(self._done))
        raise TransientError(
            f"{self._table} changed {ATTEMPTS} times while it was compacted",
            next_step="the next run continues; check which other program writes to the table",
        )

    def _attempt(self, rewriter: Rewriter, view: LakeView, wanted: Sequence[FileGroup]) -> bool:
        """Rewrite groups that are not written yet, and commit. Failed groups are given up. False: plan again."""
        if self._written_for != (view.layout, view.number):
            self._discard(list(self._done))
            self._written_for = view.layout, view.number
        self._discard([group for group in self._done if group not in wanted])
        tasks = [self._task(view, group) for group in wanted if group not in self._done]
        if not self._take(view, rewriter(tasks) if tasks else ()):
            return False
        if not self._done:
            return True
        committing, self._done = self._done, {}  # if the commit is interrupted, do not delete its files (C7)
        try:
            self._compaction.replace_files(view, list(committing.values()))
        except TableMoved:
            self._done = committing
            return False
        self._commits += 1
        self._compacted.update(hour for group in committing for hour in group.hours)
        return True

    def _take(self, view: LakeView, results: Iterable[Rewritten]) -> bool:
        """Keep results that may be committed. False if input files are gone, because the plan is too old. If the table
        still lists these files, they are lost, and their partition fails."""
        is_current = True
        for each in results:
            if each.gone and self._gone.get(each.task.group) != view.snapshot:
                self._gone[each.task.group] = view.snapshot
                is_current = False
            elif why := each.failure or each.difference:
                self._failures[each.task.group.partition] = why
                self._compaction.discard(self._table, [each.path] if each.path else [])
            else:
                self._done[each.task.group] = each
        return is_current

    def _task(self, view: LakeView, group: FileGroup) -> RewriteTask:
        self._made += 1
        token = f"{self._token[:6]}{self._made:06x}"
        return RewriteTask(self._table, view.metadata, f"kbq-compact-{view.number}", token, group)

    def _discard(self, groups: Sequence[FileGroup]) -> None:
        paths = [self._done.pop(group).path for group in groups]
        if paths:
            self._compaction.discard(self._table, paths)

    def _report(self, plan: CompactionPlan | None, error: KbqError | None = None) -> CompactionReport:
        view = None
        try:
            view = self._compaction.view(self._table)
        except KbqError as unread:
            error = error or unread
        after = view.files if view else ()
        return CompactionReport(
            table=self._table,
            files_before=plan.files if plan else len(after),
            files_after=len(after),
            bytes_before=plan.bytes if plan else sum(file.bytes for file in after),
            bytes_after=sum(file.bytes for file in after),
            commits=self._commits,
            hours=tuple(sorted(self._compacted)),
            failures=dict(self._failures),
            message=str(error) if error else "",
            transient=isinstance(error, TransientError),
        )
