"""Compaction's groups as Spark tasks: one job, a task per group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark import SparkContext

from kbq_assets.adapters.spark.engine import cause
from kbq_assets.core.compaction.model import RewriteTask, Rewritten
from kbq_assets.core.errors import Unavailable


class SparkRewriter:
    """Rewrites groups in Spark tasks; the driver commits. ``task`` raises nothing: its outcome says why it failed."""

    def __init__(self, context: SparkContext, task: Callable[[RewriteTask], Rewritten]) -> None:
        self._context = context
        self._task = task

    def __call__(self, tasks: Sequence[RewriteTask]) -> list[Rewritten]:
        """An outcome per task. Raises Unavailable if Spark gives a task up: its files are orphans."""
        task: Any = self._task
        self._context.setJobDescription(f"compact {tasks[0].table}")
        try:
            return list(self._context.parallelize(tasks, len(tasks)).map(task).collect())
        except Exception as error:
            raise Unavailable(
                f"a Spark task of the compaction of {tasks[0].table} failed: {cause(error)}",
                next_step="nothing was committed; the next run tries again",
            ) from error
