"""Spark through dagster-pyspark. The Spark context starts with the first unit and stops with the run."""

# No postponed annotations here: Pydantic reads the annotations of fields.

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

#: Resource keys, also names of parameters. Tests replace `ENGINE`; to start Spark in another way, replace `PYSPARK`.
PYSPARK = "pyspark"
ENGINE = "extraction_engine"


class KbqPySpark(PySparkResource):
    """Spark, configured by KBQ_SPARK_* variables. It starts when it is first used.

    Variables may name credentials, so the UI shows none of them. Options in ``spark_config`` override the variables.
    """

    spark_config: dict[str, Any] = {}
    settings: dg.ResourceDependency[Settings]
    _open: ExitStack = PrivateAttr(default_factory=ExitStack)
    _context: Any = PrivateAttr(default=None)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Do not start Spark yet: a run without work does not need it."""

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop Spark if it was started."""
        self._open.close()
        self._context = None

    @property
    def spark_context(self) -> Any:
        """The run's context. Extraction needs no SQL session, and a session takes longer to start."""
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
    """Runs units of extraction as Spark tasks on the context of the `pyspark` resource, or in processes of this machine
    if KBQ_SPARK_MASTER=processes[*]."""

    pyspark: dg.ResourceDependency[PySparkResource]
    settings: dg.ResourceDependency[Settings]

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[ExtractionEngine]:
        """An engine that starts with its first unit and ends with the run. In a run of many extractions, each one reads
        the schema registry again."""
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
