"""Work as Spark tasks. A command starts a context of its own, without Dagster, whose import takes a second; a run in
Dagster uses its resource's."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, TypeAlias

from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.backup_copies import RunCopies
from kbq_assets.ports.compaction import Rewriter
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.load_tasks import RunTasks

#: Gives Spark's context, which starts when it is first asked for: a run without work needs none.
Spark: TypeAlias = Callable[[], Any]


@contextmanager
def open_spark(settings: Settings) -> Iterator[Spark]:
    """Spark for one command."""

    def started() -> Any:
        from kbq_assets.adapters.spark.session import spark_context
        from kbq_assets.worker import daemon

        return stack.enter_context(spark_context(settings.spark, settings.home, daemon.MODULE))

    with ExitStack() as stack:
        yield cache(started)


@contextmanager
def open_engine(settings: Settings) -> Iterator[ExtractionEngine]:
    """An engine for one extraction."""
    with open_spark(settings) as spark:
        yield engine_on(spark, settings)


@contextmanager
def open_resident_engines(settings: Settings) -> Iterator[Callable[[Settings], ExtractionEngine]]:
    """Engines for extraction after extraction, all on one context."""
    from kbq_assets.adapters.spark.session import resident_options

    options = resident_options(settings.spark)
    resident = dataclasses.replace(settings, spark=dataclasses.replace(settings.spark, options=options))
    cycles = itertools.count(1)
    with open_spark(resident) as spark:
        yield lambda of: engine_on(spark, of, next(cycles))


@contextmanager
def open_rewriter(settings: Settings) -> Iterator[Rewriter]:
    """Spark for the large plans of one compaction."""
    with open_spark(settings) as spark:
        yield rewriter_on(spark, settings)


@contextmanager
def open_writer(settings: Settings) -> Iterator[RunTasks]:
    """Spark for the large load jobs of one run."""
    with open_spark(settings) as spark:
        yield writer_on(spark, settings)


@contextmanager
def open_copier(settings: Settings) -> Iterator[RunCopies]:
    """Spark for the many files of a backup that an erasure writes again."""
    from kbq_assets.adapters.spark.tasks import SparkTasks
    from kbq_assets.worker.erased_records import CopyOnWorker

    with open_spark(settings) as spark:
        yield SparkTasks(spark, CopyOnWorker.of(settings), "an erasure in the backup of")


def engine_on(spark: Spark, settings: Settings, cycle: int = 0) -> ExtractionEngine:
    """Units of extraction as tasks on a context, which starts now."""
    from kbq_assets.adapters.spark.engine import SparkEngine
    from kbq_assets.worker.task import UnitTask

    task = UnitTask(settings, cycle)
    return SparkEngine(spark(), task)


def rewriter_on(spark: Spark, settings: Settings) -> Rewriter:
    """Groups of a compaction as tasks on a context. Raises ConfigurationError if the warehouse is no lake."""
    from kbq_assets.adapters.spark.tasks import SparkTasks
    from kbq_assets.worker.compaction import RewriteOnWorker

    return SparkTasks(spark, RewriteOnWorker.of(settings), "a compaction of")


def writer_on(spark: Spark, settings: Settings) -> RunTasks:
    """Parts of a load job as tasks on a context, which starts with the first job."""
    from kbq_assets.adapters.spark.tasks import SparkTasks
    from kbq_assets.worker.loading import WriteOnWorker

    return SparkTasks(spark, WriteOnWorker.of(settings), "a load of")
