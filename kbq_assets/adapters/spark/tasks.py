"""Runs work on a lake's table as Spark tasks: one Spark job with a task per item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from kbq_assets.adapters.spark.engine import cause
from kbq_assets.core.errors import KbqError, Unavailable
from kbq_assets.ports.engine import OfTable

Item = TypeVar("Item", bound=OfTable)
Outcome = TypeVar("Outcome")


class SparkTasks(Generic[Item, Outcome]):
    """Runs items in Spark tasks; the driver commits. If ``task`` fails in an expected way, it returns the reason in its
    outcome instead of raising. ``what`` names the work, such as "a compaction of"."""

    def __init__(self, context: Callable[[], Any], task: Callable[[Item], Outcome], what: str) -> None:
        self._context = context
        self._task = task
        self._what = what

    def __call__(self, items: Sequence[Item]) -> list[Outcome]:
        """An outcome per item. Raises Unavailable if Spark does not start or gives up a task, whose files are then
        orphans."""
        task: Any = self._task
        what = f"{self._what} {items[0].table}"
        try:
            context = self._context()
            context.setJobDescription(what)
            return list(context.parallelize(items, len(items)).map(task).collect())
        except KbqError:
            raise
        except Exception as error:
            raise Unavailable(
                f"a Spark task of {what} failed: {cause(error)}",
                next_step="nothing was committed; the next run tries again",
            ) from error
