"""Spark through dagster-pyspark: its context starts for the first unit and stops with the run."""

# Pydantic reads the annotations of fields: no postponed annotations here.

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import dagster as dg
from dagster_pyspark import PySparkResource
from pydantic import PrivateAttr

from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.engine import ExtractionEngine, OnDemandEngine
from kbq_assets.worker.engines import open_runner
from kbq_assets.worker.task import UnitTask

#: Resource keys, also names of parameters. Tests replace `ENGINE`; another way to start Spark replaces `PYSPARK`.
PYSPARK = "pyspark"
ENGINE = "extraction_engine"


class KbqPySpark(PySparkResource):
    """Spark, configured by KBQ_SPARK_* variables; it starts when it is first used.

    Variables may name credentials, so the UI shows none of them. ``spark_config`` holds further options, which win.
    """

    spark_config: dict[str, Any] = {}
    settings: dg.ResourceDependency[Settings]
    _open: ExitStack = PrivateAttr(default_factory=ExitStack)
    _context: Any = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Start nothing yet: a run without work needs no Spark."""

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop Spark if it was started."""
        self._open.close()
        self._context = None

    @property
    def spark_context(self) -> Any:
        """The run's context. A SQL session on it takes more time to start and brings nothing to extraction."""
        if self._context is None:
            from kbq_assets.adapters.spark.session import spark_context
            from kbq_assets.worker import daemon

            spark = self.settings.spark
            spark = dataclasses.replace(spark, options={**spark.options, **self.spark_config})
            self._context = self._open.enter_context(spark_context(spark, self.settings.home, daemon.MODULE))
        return self._context

    @property
    def spark_session(self) -> Any:
        """A SQL session on the run's context."""
        from pyspark.sql import SparkSession

        return SparkSession(self.spark_context)


class SparkExtraction(dg.ConfigurableResource[ExtractionEngine]):
    """Runs units of extraction as Spark tasks, on the context of the `pyspark` resource; with
    KBQ_SPARK_MASTER=processes[*] in processes of this machine."""

    pyspark: dg.ResourceDependency[PySparkResource]
    settings: dg.ResourceDependency[Settings]

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[ExtractionEngine]:
        """An engine that starts with its first unit, and ends with the run. A run of many extractions asks the
        registry anew in each."""
        note, cycles = context.log.info if context.log is not None else None, itertools.count()
        where = self.settings.spark.master

        with open_runner(self.settings, lambda: self.pyspark.spark_context) as runner:

            def opened() -> ExtractionEngine:
                cycle = next(cycles)
                if note is not None and not cycle:
                    note(
                        f"starting {where}" if self.settings.spark.processes else f"starting Spark ({where})"
                    )
                return runner.engine(UnitTask(self.settings, cycle))

            yield OnDemandEngine(opened)
