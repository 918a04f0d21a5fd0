"""Runs tasks on Spark or in processes of this machine, as KBQ_SPARK_MASTER says.

A command starts what it needs without Dagster, whose import takes a second. A Dagster run uses its Spark resource.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from kbq_assets.adapters.forking.spare import spare_process
from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.backup_copies import RunCopies
from kbq_assets.ports.compaction import Rewriter
from kbq_assets.ports.engine import ExtractionEngine, OfTable
from kbq_assets.ports.load_tasks import RunTasks
from kbq_assets.worker.task import UnitTask

if TYPE_CHECKING:
    from kbq_assets.adapters.process_pool.pool import ProcessPool

#: Returns Spark's context and starts it on the first call, since a run without work needs none.
Spark: TypeAlias = Callable[[], Any]
Item = TypeVar("Item", bound=OfTable)
Outcome = TypeVar("Outcome")


class Runner(Protocol):
    """Runs tasks. Spark or the processes start with the first engine or the first items."""

    def engine(self, task: UnitTask) -> ExtractionEngine:
        """An engine that runs units of extraction."""

    def each(self, task: Callable[[Item], Outcome], what: str) -> Callable[[Sequence[Item]], list[Outcome]]:
        """A function that runs one task per item; ``what`` names the work, such as "a compaction of"."""


@contextmanager
def open_runner(settings: Settings, spark: Spark | None = None) -> Iterator[Runner]:
    """A runner until the block ends: on the given ``spark``, on a Spark context of its own, or on processes."""
    with ExitStack() as stack:
        if settings.spark.processes:
            yield _OnProcesses(cache(lambda: stack.enter_context(_process_pool(settings.spark.processes))))
        else:
            yield _OnSpark(spark or cache(lambda: stack.enter_context(_spark_context(settings))))


def spare_forker(settings: Settings) -> AbstractContextManager[None]:
    """Within the block, a spare process for the program that forks workers, if it runs on this machine. The modules
    that both processes need are imported before, because each would import them later."""
    if not settings.spark.is_local:
        return nullcontext()
    import encodings.idna  # noqa: F401 (for the first connection)

    import kbq_assets.adapters.kafka.offsets
    import kbq_assets.worker.adapters

    if isinstance(settings.staging, Bucket):
        import kbq_assets.adapters.gcs
    if not settings.spark.processes:
        import kbq_assets.adapters.spark.session  # noqa: F401
    return spare_process()


@contextmanager
def open_engine(settings: Settings) -> Iterator[ExtractionEngine]:
    """An engine for one extraction."""
    with open_runner(settings) as runner:
        yield runner.engine(UnitTask(settings))


@contextmanager
def open_resident_engines(settings: Settings) -> Iterator[Callable[[Settings], ExtractionEngine]]:
    """A factory of engines, one per extraction, which share one Spark application or pool of processes."""
    spark = settings.spark
    if not spark.processes:
        from kbq_assets.adapters.spark.session import resident_options

        spark = dataclasses.replace(spark, options=resident_options(spark))
    cycles = itertools.count(1)
    with open_runner(dataclasses.replace(settings, spark=spark)) as runner:
        yield lambda of: runner.engine(UnitTask(of, next(cycles)))


@contextmanager
def open_rewriter(settings: Settings, spark: Spark | None = None) -> Iterator[Rewriter]:
    """A rewriter for the large plans of one compaction. Raises ConfigurationError if the warehouse is not a lake."""
    from kbq_assets.worker.compaction import RewriteOnWorker

    with open_runner(settings, spark) as runner:
        yield runner.each(RewriteOnWorker.of(settings), "a compaction of")


@contextmanager
def open_writer(settings: Settings, spark: Spark | None = None) -> Iterator[RunTasks]:
    """Runs the parts of one run's large load jobs."""
    from kbq_assets.worker.loading import WriteOnWorker

    with open_runner(settings, spark) as runner:
        yield runner.each(WriteOnWorker.of(settings), "a load of")


@contextmanager
def open_copier(settings: Settings) -> Iterator[RunCopies]:
    """Runs the rewriting of many backup files for an erasure."""
    from kbq_assets.worker.erased_records import CopyOnWorker

    with open_runner(settings) as runner:
        yield runner.each(CopyOnWorker.of(settings), "an erasure in the backup of")


@dataclass(frozen=True)
class _OnSpark:
    """A Runner on a Spark context."""

    spark: Spark

    def engine(self, task: UnitTask) -> ExtractionEngine:
        from kbq_assets.adapters.spark.engine import SparkEngine

        return SparkEngine(self.spark(), task)

    def each(self, task: Callable[[Item], Outcome], what: str) -> Callable[[Sequence[Item]], list[Outcome]]:
        from kbq_assets.adapters.spark.tasks import SparkTasks

        return SparkTasks(self.spark, task, what)


@dataclass(frozen=True)
class _OnProcesses:
    """A Runner on a pool of processes."""

    pool: Callable[[], ProcessPool]

    def engine(self, task: UnitTask) -> ExtractionEngine:
        from kbq_assets.adapters.process_pool.tasks import ProcessEngine

        return ProcessEngine(self.pool(), task)

    def each(self, task: Callable[[Item], Outcome], what: str) -> Callable[[Sequence[Item]], list[Outcome]]:
        from kbq_assets.adapters.process_pool.tasks import ProcessTasks

        return ProcessTasks(self.pool, task, what)


def _spark_context(settings: Settings) -> Any:
    from kbq_assets.adapters.spark.session import spark_context
    from kbq_assets.worker import daemon

    return spark_context(settings.spark, settings.home, daemon.MODULE)


def _process_pool(size: str) -> ProcessPool:
    from kbq_assets.adapters.process_pool.cores import usable_cores
    from kbq_assets.adapters.process_pool.pool import ProcessPool
    from kbq_assets.worker import fork_server

    return ProcessPool(fork_server.MODULE, usable_cores() if size == "*" else int(size))
